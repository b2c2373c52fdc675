"""Replicas move to other machines while everything else happens: a person wants it, each machine's node acts on what it saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster.simulation.world import Machine, World


class Moves:
    def __init__(self, world: World) -> None:
        self._world = world
        self._earlier: tuple[str, ...] = ()

    def begin(self) -> None:
        self._world.after(2.0, self._move)
        for machine in self._world.machines.values():
            self._world.after(0.5, lambda machine=machine: self._supervise(machine))  # type: ignore[misc]

    def _move(self) -> None:
        """A person wants other nodes to keep the replicas, or those again that did before."""
        if self._world.quiet:
            return
        self._world.after(self._world.random.choice((4.0, 9.0) if self._world.splitting else (0.2, 0.2, 0.2, 4.0)), self._move)
        state = self._world.registry.state
        self._world.registry.others_copy = self._world.random.random() < 0.3
        self._world.registry.paused = self._world.random.random() < 0.1
        if state.wanted is not None:
            if self._world.random.random() < 0.02:
                self._world.registry.take_back()
            return
        wanted = tuple(self._world.random.sample(list(self._world.machines), self._world.random.choice((2, 3, 3, 4))))
        if self._earlier and self._world.random.random() < 0.4:
            wanted = self._earlier  # what has just left comes back
        self._world.note("registry", f"{wanted} are to keep replicas")
        self._earlier = state.replicas
        self._world.registry.ask_to_keep(wanted)

    def _supervise(self, machine: Machine) -> None:
        """The node of a machine does what the registry said some time ago: it runs a process, or ends it."""
        named = machine.name in self._world.registry.state.replicas
        late = 0.1 if self._world.quiet else self._world.random.choice((0.05, 0.3, 4.0))

        def act() -> None:
            self._supervise(machine)
            self._world.start(machine) if named else self._leaves(machine)

        self._world.after(late, act)

    def _leaves(self, machine: Machine) -> None:
        """The process of a replica that moved away is ended; then its folder is put away, if it is still not named."""
        self._world.stop(machine, restart_s=1.0)
        self._world.after(self._world.disk_delay(), lambda: self._put_away(machine))

    def _put_away(self, machine: Machine) -> None:
        if machine.process is None and machine.clone is None and machine.disk.incarnations and self.may_put_away(machine):
            self._world.note(machine.name, "puts its folder away")
            self._world.checks.put_away(machine.name)
            self._world.wipe(machine.name)

    def may_put_away(self, machine: Machine) -> bool:
        """Reads the registry again: what was seen before the process ended may be old."""
        return machine.name not in self._world.registry.state.replicas
