"""Breaks the machines of a world and what is between them, and has leadership handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster.simulation.world import Machine, World


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._every_s = world.random.choice((1.0, 3.0, 8.0) if world.splitting else (0.4, 1.0, 3.0))
        self._hand_over_s = 12.0 if world.splitting else 1.5  # what is to be handed over is not split

    def begin(self) -> None:
        self._world.after(1.0, self._fault)
        self._world.after(2.0, self._hand_over)

    def _fault(self) -> None:
        if self._world.quiet:
            return
        self._world.after(self._world.random.expovariate(1 / self._every_s), self._fault)
        machine, other = self._world.random.sample(list(self._world.machines.values()), 2)
        match self._world.random.choice(("crash", "crash", "pause", "cut", "cut one way", "no registry", "wipe")):
            case "crash":
                self._world.note(machine.name, "crashes")
                self._world.stop(machine, restart_s=self._world.random.choice((0.1, 1.0, 8.0)))
                if self._world.splitting and self._world.random.random() < 0.3:
                    self._world.family.stop(machine.name, self._world.random.choice((0.1, 1.0, 8.0)))
            case "pause" if (machine := self._leading_or(machine)).process is not None:
                machine.process.paused_until = self._world.now + self._world.random.choice((0.2, 2.0, 7.0, 12.0))
                self._world.note(machine.name, f"is paused until {machine.process.paused_until:.3f}")
            case "cut":
                self._cut((machine.name, other.name), (other.name, machine.name))
            case "cut one way":
                self._cut((machine.name, other.name))
            case "no registry":
                self._world.registry_away[machine.name] = self._world.now + self._world.random.choice((0.5, 3.0, 9.0))
            case "wipe" if all(_may_wipe(each, machine.name) for each in self._world.family.shards.values()):
                self._world.note(machine.name, "loses its folder")
                for each in self._world.family.shards.values():
                    each.wipe(machine.name)

    def _hand_over(self) -> None:
        """A person wants another node to lead; most of the time one that may at once. A split waits until it does, so there it
        is one that `hand_over` would not refuse for good.
        """
        if self._world.quiet:
            return
        self._world.after(self._world.random.expovariate(1 / self._hand_over_s), self._hand_over)
        leader, state = self._world.registry.leader, self._world.registry.state
        kept = set(state.replicas).intersection(state.wanted or state.replicas)
        may = kept if self._world.splitting else set(self._world.machines)
        others = [each for each in self._world.machines if each in may and (leader is None or each != leader.member.node)]
        if not others:
            return
        ready = sorted(member.node for member in state.in_sync if member.node in others)
        name = self._world.random.choice(ready if ready and self._world.random.random() < 0.8 else others)
        if not self._world.registry.lost:
            process = self._world.machines[name].process
            if process is not None and self._world.random.random() < 0.2:  # it hangs: its last Fetch was a moment before
                process.paused_until = self._world.now + 2.0
                self._world.note(name, f"is paused until {process.paused_until:.3f}")
            self._world.note(name, "is to lead")
            self._world.registry.ask_for(name, self._world.now)
            self._world.losses.written()

    def _leading_or(self, machine: Machine) -> Machine:
        """Returns the machine that leads, most of the time: only there does a pause put reads at risk."""
        leader = self._world.registry.leader
        return self._world.machines[leader.member.node] if leader is not None and self._world.random.random() < 0.7 else machine

    def _cut(self, *ways: tuple[str, str]) -> None:
        until = self._world.now + self._world.random.choice((0.5, 3.0, 9.0))
        for way in ways:
            self._world.network.cut[way] = until
            self._world.note(way[0], f"does not reach {way[1]} until {until:.3f}")


def _may_wipe(world: World, name: str) -> bool:
    """One folder of the set at a time: with the last one the events are gone."""
    if world.losses.away:
        return False
    members = world.registry.state.in_sync
    held = [each for each in members if each.incarnation in world.machines[each.node].disk.incarnations]
    return not world.registry.key.slots or (len(held) == len(members) and any(each.node != name for each in held))
