"""The world of one seed: time, machines, faults, clients. Everything random comes from the seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.registry_state import Member, ShardState, Swap
from tests.cluster.simulation.checks import Checks
from tests.cluster.simulation.disk import KINDS, Disk, Record
from tests.cluster.simulation.network import Network
from tests.cluster.simulation.process import Process
from tests.cluster.simulation.registry import SimulatedRegistry

_QUIET_S = 25.0
_SETTLE_S = 5.0
_SLOWEST_ANSWER_S = 0.8


@dataclass
class Machine:
    name: str
    disk: Disk = field(default_factory=Disk)
    process: Process | None = None


class World:
    """Runs `faulty_s` seconds of faults, then a quiet time. `trace`: each step as a line."""

    def __init__(self, seed: int, *, machines: int = 3, faulty_s: float = 40.0, traced: bool = False) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.limits = Limits(lag_max_s=1.0, stall_max_s=4.0, silence_s=1.0, retry_s=0.3)  # more happens in a history
        self._late = self.random.choice((0.05, 0.15, 0.4))
        self._fault_every_s = self.random.choice((0.4, 1.0, 3.0))
        self.lease_s = 2.0
        self.faulty_s = faulty_s
        self.trace: list[str] = []
        self._traced = traced
        self._numbers = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self.machines = {name: Machine(name) for name in (f"n{number + 1}" for number in range(machines))}
        for machine in self.machines.values():
            machine.disk.incarnations.append(self.token("i"))
        members = frozenset(Member(machine.name, machine.disk.incarnations[0]) for machine in self.machines.values())
        self.registry = SimulatedRegistry(ShardState(0, members, tuple(self.machines), min(2, machines)))
        self.registry_away: dict[str, float] = {}
        self.network = Network(self)
        self.checks = Checks(self)
        self.quiet = False

    def run(self) -> World:
        """Raises Broken if a promise does not hold."""
        for machine in self.machines.values():
            self.after(self.random.uniform(0, 0.5), lambda machine=machine: self.start(machine))  # type: ignore[misc]
        self.after(0.5, self._client)
        self.after(1.0, self._fault)
        self.after(2.0, self._hand_over)
        self._until(self.faulty_s)
        self._heal()
        self._until(self.faulty_s + _QUIET_S)
        self.checks.healed()
        return self

    def _until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, step = heapq.heappop(self._queue)
            step()
        self.now = end

    def after(self, delay: float, step: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + max(delay, 0.0), self.number(), step))

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def token(self, prefix: str) -> str:
        return f"{prefix}{self.number()}"

    def note(self, who: str, what: object) -> None:
        if self._traced:
            self.trace.append(f"{self.now:10.4f} {who} {what}")

    # delays

    def disk_delay(self) -> float:
        return self.random.choice((0.001, 0.004, 0.02, 0.2 if not self.quiet else 0.01))

    def network_delay(self) -> float:
        if self.quiet:
            return 0.001
        return self.random.uniform(1.0, 6.0) if self.random.random() < 0.01 else self.random.choice((0.0005, 0.002, 0.01, 0.3))

    # the registry

    def _reach_registry(self, process: Process) -> float:
        """Returns how long a request of this process takes to the registry."""
        away = max(0.0, self.registry_away.get(process.machine.name, 0.0) - self.now)
        slow = 0.0 if self.quiet or self.random.random() > self._late else self.random.uniform(0.5, 15.0)
        return away + slow + self.random.uniform(0.001, 0.01)

    def _answer_lost(self) -> bool:
        return not self.quiet and self.random.random() < self._late

    def read_registry(self, process: Process) -> None:
        def read() -> None:
            seen = self.registry.read(self.now)
            if not self._answer_lost():
                process.later(self._reach_registry(process), lambda: process.do(process.replica.saw(seen, process.clock())))

        self.after(self._reach_registry(process), read)

    def transact(self, process: Process, swap: Swap) -> None:
        """Applies the transaction at some time, also after its sender gave up or died."""
        lease = process.lease
        answered: list[int | None] = []

        def answer(applied: int | None) -> None:
            if not answered:
                answered.append(applied)
                process.do(process.replica.answered(swap.number, applied, process.clock()))

        def apply() -> None:
            applied = self.registry.apply(swap, lease, self.now)
            self.note("registry", f"{swap} of {process.run}: {applied or 'refused'}")
            if applied and swap.leads is not None:
                self.checks.elected(swap.leads, swap.state.epoch)
            self.checks.in_sync()
            if swap.yields and not self.quiet and self.random.random() < 0.4:  # it does not hear of it
                self.registry_away[process.machine.name] = self.now + 3.0
            elif not self._answer_lost():
                process.later(self._reach_registry(process), lambda: answer(applied))

        self.after(self._reach_registry(process) + self._mishap(swap), apply)
        process.later(_SLOWEST_ANSWER_S, lambda: answer(None))

    def _mishap(self, swap: Swap) -> float:
        """Sometimes a member dies just when it is added, and the transaction that adds it is late: what R1 and R2 are for."""
        added = sorted(swap.state.in_sync - self.registry.state.in_sync) if swap.leads is None else []
        if self.quiet or not added or self.random.random() > 0.3:
            return 0.0
        machine = self.machines[added[0].node]
        self.after(self.random.uniform(0.0, 0.3), lambda: self._stop(machine, restart_s=8.0))
        return self.random.uniform(0.5, 6.0)

    def keep_alive(self, process: Process, renewed: Callable[[bool], None]) -> None:
        lease = process.lease

        def renew() -> None:
            kept = self.registry.keep_alive(lease, self.now + self.lease_s, self.now)
            process.later(self._reach_registry(process), lambda: renewed(kept))

        self.after(self._reach_registry(process), renew)

    # processes

    def start(self, machine: Machine, sit_out: float = 0.0) -> None:
        if machine.process is None:
            machine.process = Process(self, machine, self.token(machine.name + "."), sit_out)

    def ended(self, process: Process, reason: str, sit_out: bool) -> None:
        """A process ends by itself; its supervisor revokes its lease and starts it again."""
        self.note(process.machine.name, f"ends: {reason}")
        self._stop(process.machine, restart_s=0.1, sit_out=self.lease_s if sit_out else 0.0)
        self.after(self.random.uniform(0.0, 0.1), lambda: self.registry.revoke(process.lease, self.now))

    def _stop(self, machine: Machine, *, restart_s: float, sit_out: float = 0.0) -> None:
        process = machine.process
        if process is None:
            return
        process.alive = False
        machine.process = None
        self.network.died(process)
        machine.disk.lose_power(self.random)
        self.after(restart_s, lambda: self.start(machine, sit_out))

    # clients

    def _client(self) -> None:
        if self.now > self.faulty_s + _QUIET_S - _SETTLE_S:
            return
        self.after(self.random.expovariate(1 / 0.04), self._client)
        process = self.random.choice(list(self.machines.values())).process
        if process is None or self.now < process.paused_until or process.replica.leading is None:
            return
        if process.replica.takes_appends(process.clock()):
            epoch = process.replica.leading.epoch if process.replica.leading is not None else 0
            process.append([self._records(epoch) for _ in range(KINDS)])
            if process.alive and self.random.random() < 0.2:
                process.replace_document(self.random.choice("ab"))
        if process.alive and process.replica.may_read(process.clock()):
            self.checks.read(process)
        if process.alive and not self.quiet and self.random.random() < 0.002:
            self.note(process.machine.name, "has a full disk")
            process.disk_full()

    def _records(self, epoch: int) -> list[Record]:
        return [(epoch, self.number()) for _ in range(self.random.choice((0, 0, 1, 1, 3)))]

    # faults

    def _fault(self) -> None:
        if self.quiet:
            return
        self.after(self.random.expovariate(1 / self._fault_every_s), self._fault)
        machine, other = self.random.sample(list(self.machines.values()), 2)
        match self.random.choice(("crash", "crash", "pause", "cut", "cut one way", "no registry", "wipe")):
            case "crash":
                self.note(machine.name, "crashes")
                self._stop(machine, restart_s=self.random.choice((0.1, 1.0, 8.0)))
            case "pause" if (machine := self._leading_or(machine)).process is not None:
                machine.process.paused_until = self.now + self.random.choice((0.2, 2.0, 7.0, 12.0))
                self.note(machine.name, f"is paused until {machine.process.paused_until:.3f}")
            case "cut":
                self._cut((machine.name, other.name), (other.name, machine.name))
            case "cut one way":
                self._cut((machine.name, other.name))
            case "no registry":
                self.registry_away[machine.name] = self.now + self.random.choice((0.5, 3.0, 9.0))
            case "wipe" if self._may_wipe(machine):
                self.note(machine.name, "loses its folder")
                self._stop(machine, restart_s=0.1)
                machine.disk.wipe()

    def _hand_over(self) -> None:
        """A person wants another node to lead; most of the time one that may at once."""
        if self.quiet:
            return
        self.after(self.random.expovariate(1 / 1.5), self._hand_over)
        leader = self.registry.leader
        others = [each for each in self.machines if leader is None or each != leader.member.node]
        ready = sorted(member.node for member in self.registry.state.in_sync if member.node in others)
        name = self.random.choice(ready if ready and self.random.random() < 0.8 else others)
        self.note(name, "is to lead")
        self.registry.ask_for(name)

    def _leading_or(self, machine: Machine) -> Machine:
        """Returns the machine that leads, most of the time: only there does a pause put reads at risk."""
        leader = self.registry.leader
        return self.machines[leader.member.node] if leader is not None and self.random.random() < 0.7 else machine

    def _cut(self, *ways: tuple[str, str]) -> None:
        until = self.now + self.random.choice((0.5, 3.0, 9.0))
        for way in ways:
            self.network.cut[way] = until
            self.note(way[0], f"does not reach {way[1]} until {until:.3f}")

    def _may_wipe(self, machine: Machine) -> bool:
        """One folder of the set at a time: with the last one the events are gone."""
        members = self.registry.state.in_sync
        held = [each for each in members if each.incarnation in self.machines[each.node].disk.incarnations]
        return len(held) == len(members) and any(each.node != machine.name for each in held)

    def _heal(self) -> None:
        self.quiet = True
        self.network.cut.clear()
        self.registry_away.clear()
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.paused_until = min(machine.process.paused_until, self.now)
            else:
                self.after(0.1, lambda machine=machine: self.start(machine))  # type: ignore[misc]
