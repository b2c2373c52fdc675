"""The world of one seed: time, machines, faults, clients. Everything random comes from the seed."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from eventstore.records.cluster_map import ALL_SLOTS
from eventstore_cluster.registry.replicated_keys import ShardKey, clones_of
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.registry_state import Seat, ShardState, Swap
from tests.cluster.simulation.accepted_loss import AcceptedLoss
from tests.cluster.simulation.byte_disk import ByteDisk
from tests.cluster.simulation.checks import Checks
from tests.cluster.simulation.clone import Clone
from tests.cluster.simulation.decisions import Decisions
from tests.cluster.simulation.disk import Disk, Record, place
from tests.cluster.simulation.family import Family
from tests.cluster.simulation.faults import Faults
from tests.cluster.simulation.lost_registry import LostRegistry
from tests.cluster.simulation.moves import Moves
from tests.cluster.simulation.network import Network
from tests.cluster.simulation.process import Process
from tests.cluster.simulation.readers import Readers
from tests.cluster.simulation.registry import SimulatedRegistry
from tests.cluster.simulation.run import Run
from tests.cluster.simulation.schedule import Schedule

_QUIET_S = 25.0
_CATCHING_UP_S = 8.0
_SETTLE_S = 5.0
_SMALL_FILE_BYTES = place(3)[1]
_SLOWEST_ANSWER_S = 0.8


@dataclass
class Machine:
    """Where a replica of one shard is. `parent`: of the shard that this one is split off. `clone`: the process while its folder
    is in the making.
    """

    name: str
    disk: Disk = field(default_factory=Disk)
    parent: Machine | None = None
    process: Process | None = None
    clone: Clone | None = None

    @property
    def parent_disk(self) -> Disk:
        assert self.parent is not None, "it was split off"
        return self.parent.disk


class World:
    """One shard, with all that happens to its replicas. Runs `faulty_s` seconds of faults, then a quiet time. In a share of the
    histories there are more machines than replicas, which move (`moving`). `loses_registry`: it does for sure, which
    otherwise happens in one of five histories; no replica moves then. `accepts_loss`: a person does. `real_logs`: events are
    written to the real log, on the simulated disk. `splits`: the shard is split, and those that it becomes: each has a world of
    its own in the `family`, of the same machines and the same time. `moves`: whether replicas move, if it does not follow from
    the seed.
    """

    def __init__(
        self,
        seed: int,
        *,
        replicas: int = 3,
        faulty_s: float = 40.0,
        traced: bool = False,
        loses_registry: bool = False,
        accepts_loss: bool = False,
        real_logs: bool = False,
        splits: bool = False,
        moves: bool | None = None,
    ) -> None:
        self.schedule = Schedule(seed, traced=traced)
        self.random = self.schedule.random
        self.parent: World | None = None
        self.number_of_shard = 0
        self.called_off = False
        self.moving = (seed % 3 == 1 if moves is None else moves) and not loses_registry and not accepts_loss
        self._loses_registry, self._real_logs, self.splitting = loses_registry, real_logs, splits
        self._accepts_loss = accepts_loss or (seed % 12 == 2 and not loses_registry and not real_logs and not splits)
        machines = replicas + 2 if self.moving else replicas
        self.limits = Limits(
            lag_max_s=1.0,
            stall_max_s=4.0,
            silence_s=1.0,
            retry_s=0.3,
            split_file_bytes=_SMALL_FILE_BYTES,
            split_files_lacking=seed % 2 * 2,
            split_max_s=3.0,
            hand_over_file_bytes=_SMALL_FILE_BYTES,
            hand_over_sort_s=2.0,
        )  # more happens in a history
        self._late = self.random.choice((0.05, 0.15, 0.4))
        self.lease_s = 2.0
        self.faulty_s = faulty_s
        names = [f"n{number + 1}" for number in range(machines)]
        self.machines = {
            name: Machine(name, ByteDisk(seed + at) if real_logs else self.new_disk(name)) for at, name in enumerate(names)
        }
        for machine in self.machines.values():
            machine.disk.incarnations.append(self.token("i"))
        first = tuple(self.machines)[:replicas]
        members = frozenset(Seat(name, self.machines[name].disk.incarnations[0]) for name in first)
        self.registry_away: dict[str, float] = {}
        state = ShardState(0, members, first, min(2, replicas))
        self.family = Family(self)
        self.decisions = Decisions(seed)
        self._surround(ShardKey(uuid.UUID(int=1), ALL_SLOTS, state))

    def _surround(self, key: ShardKey) -> None:
        self.registry = SimulatedRegistry(key)
        self._faults = Faults(self)
        self.network = Network(self, self.parent.network.cut if self.parent is not None else {})
        self.losses = LostRegistry(self)
        self.accepted = AcceptedLoss(self)
        self.moves = Moves(self)
        self.readers = Readers(self)
        self.checks = Checks(self)

    def new_disk(self, name: str) -> Disk:
        """Returns the disk of a machine, as far as this shard is on it. `name`: that of the machine."""
        return Disk(finished=self.parent is None)

    def child(self, number: int, key: ShardKey) -> World:
        """Returns the world of a shard that is to get slots of this one."""
        child = copy.copy(self)
        child.parent, child.number_of_shard = self, number
        child.machines = {name: Machine(name, child.new_disk(name), machine) for name, machine in self.machines.items()}
        child._surround(key)
        return child

    def run(self) -> World:
        """Raises Broken if a promise does not hold."""
        for machine in self.machines.values():
            self.after(self.random.uniform(0, 0.5), lambda machine=machine: self.start(machine))  # type: ignore[misc]
        self.begin()
        if self.splitting:
            self.family.begin()
        elif self.moving:
            pass
        elif self._accepts_loss:
            self.accepted.begin()
        elif self.random.random() < (1.0 if self._loses_registry else 0.3):
            self.after(self.random.uniform(4.0, 20.0), self.losses.happen)
        self.schedule.run_until(self.faulty_s, lambda: self.losses.hopeless)
        self.schedule.quiet = True
        for world in self.family.shards.values():
            world.heal()
        self.schedule.run_until(self.faulty_s + _QUIET_S, lambda: self.losses.hopeless)
        for world in self.family.shards.values():
            for machine in world.machines.values():
                if machine.process is not None:
                    world.checks.replica(machine.process)
        if not self.losses.hopeless:
            self.family.healed()
        return self

    def begin(self) -> None:
        """The shard has slots: there are clients, and what may go wrong does."""
        self.after(0.5, self._client)
        self._faults.begin()
        if self.moving:
            self.moves.begin()

    def prepare(self) -> None:
        """Its nodes make clones."""
        for machine in self.machines.values():
            late = 0.05 if self.quiet else self.random.choice((0.05, 0.5, 3.0))
            self.after(late, lambda machine=machine: self.start(machine))  # type: ignore[misc]

    def call_off(self) -> None:
        """The shard gets no slots, and its clones are removed."""
        self.called_off = True
        for machine in self.machines.values():
            late = 0.05 if self.quiet else self.random.choice((0.05, 0.5, 3.0))
            self.after(late, lambda machine=machine: self.stop(machine, restart_s=0.1))  # type: ignore[misc]

    # time

    @property
    def now(self) -> float:
        return self.schedule.now

    @property
    def quiet(self) -> bool:
        return self.schedule.quiet

    @property
    def trace(self) -> list[str]:
        return self.schedule.trace

    def after(self, delay: float, step: Callable[[], None]) -> None:
        self.schedule.after(delay, step)

    def number(self) -> int:
        return self.schedule.number()

    def token(self, prefix: str) -> str:
        return self.schedule.token(prefix)

    def note(self, who: str, what: object) -> None:
        self.schedule.note(who if self.parent is None else f"{who}/{self.number_of_shard}", what)

    # delays

    def disk_delay(self) -> float:
        return self.random.choice((0.001, 0.004, 0.02, 0.2 if not self.quiet else 0.01))

    def network_delay(self) -> float:
        if self.quiet:
            return 0.001
        return self.random.uniform(1.0, 6.0) if self.random.random() < 0.01 else self.random.choice((0.0005, 0.002, 0.01, 0.3))

    # the registry

    def reach_registry(self, process: Run) -> float:
        """Returns how long a request of this process takes to the registry."""
        away = max(0.0, self.registry_away.get(process.machine.name, 0.0) - self.now)
        slow = 0.0 if self.quiet or self.random.random() > self._late else self.random.uniform(0.5, 15.0)
        return away + slow + self.random.uniform(0.001, 0.01)

    def _answer_lost(self) -> bool:
        return not self.quiet and self.random.random() < self._late

    def read_registry(self, process: Process) -> None:

        def read() -> None:
            seen, key, latest = self.registry.read(self.now), self.registry.key, self.family.snapshot(self.registry.key)
            if seen is not None and not self._answer_lost():
                seen = replace(seen, clones=clones_of(key.state, latest))
                process.later(self.reach_registry(process), lambda: process.saw(seen, key, latest))

        self.after(self.reach_registry(process), read)

    def transact(self, process: Process, swap: Swap) -> None:
        """Applies the transaction at some time, also after its sender gave up or died."""
        lease, successor = process.lease, swap.state.successor or ""
        fetched_at = process.fetched.get(successor, -1.0)
        own, gift = process.writes(swap)
        if gift is not None:
            self.family.happens(self, process.machine)
        answered: list[int | None] = []

        def answer(applied: int | None) -> None:
            if not answered:
                answered.append(applied)
                process.answered(swap, own, applied)

        def apply() -> None:
            may = (lambda: self.family.may_give(gift)) if gift is not None else lambda: True
            applied = self.registry.apply(swap, own, lease, self.now, may)
            self.note("registry", f"{swap} of {process.run}: {applied or 'refused'}")
            if applied and swap.leads is not None:
                self.checks.elected(swap.leads, swap.state.epoch)
            if applied and swap.yields:
                self.checks.handed_over(process, successor, fetched_at)
            if applied and gift is not None:
                self.family.give(self, gift)
            if applied:
                self.losses.written()
            self.checks.in_sync()
            if swap.yields and not self.quiet and self.random.random() < 0.4:  # it does not hear of it
                self.registry_away[process.machine.name] = self.now + 3.0
            elif not self._answer_lost():
                process.later(self.reach_registry(process), lambda: answer(applied))

        self.after(self.reach_registry(process) + self._mishap(swap), apply)
        process.later(_SLOWEST_ANSWER_S, lambda: answer(None))

    def _mishap(self, swap: Swap) -> float:
        """Sometimes a member dies just when it is added, and the transaction that adds it is late: what R1 and R2 are for."""
        added = sorted(swap.state.in_sync - self.registry.state.in_sync) if swap.leads is None else []
        if self.quiet or not added or self.random.random() > 0.3:
            return 0.0
        machine = self.machines[added[0].node]
        self.after(self.random.uniform(0.0, 0.3), lambda: self.stop(machine, restart_s=8.0))
        return self.random.uniform(0.5, 6.0)

    def keep_alive(self, process: Run, renewed: Callable[[bool], None]) -> None:
        lease = process.lease

        def renew() -> None:
            kept = self.registry.keep_alive(lease, process.member, self.now + self.lease_s, self.now)
            process.later(self.reach_registry(process), lambda: renewed(kept))

        self.after(self.reach_registry(process), renew)

    # processes

    def start(self, machine: Machine, sit_out: float = 0.0) -> None:
        if machine.process or machine.clone or self.called_off or machine.name not in self.registry.state.replicas:
            return
        if machine.disk.finished:
            machine.process = Process(self, machine, self.token(machine.name + "."), sit_out)
        else:
            machine.clone = Clone(self, machine)

    def ended(self, process: Process, reason: str, sit_out: bool) -> None:
        """A process ends by itself; its supervisor revokes its lease and starts it again."""
        self.note(process.machine.name, f"ends: {reason}")
        self.stop(process.machine, restart_s=0.1, sit_out=self.lease_s if sit_out else 0.0)
        self.after(self.random.uniform(0.0, 0.1), lambda: self.registry.revoke(process.lease, self.now))

    def may_crash_while(self, process: Process, share: float) -> None:
        """Crashes the machine now and then while its disk does what it was just asked for, if there is more to see of that than
        in the model.
        """
        if self._real_logs and self.now < self.faulty_s + _CATCHING_UP_S and self.random.random() < share:
            self.after(0.0, lambda: self.stop(process.machine, restart_s=0.1) if process.alive else None)

    def wipe(self, name: str) -> None:
        """Loses the folder of a machine."""
        machine = self.machines[name]
        self.stop(machine, restart_s=0.1)
        machine.disk.wipe()
        machine.disk.finished = machine.parent is None

    def stop(self, machine: Machine, *, restart_s: float, sit_out: float = 0.0) -> None:
        if machine.clone is not None:
            machine.clone.alive, machine.clone = False, None
        elif machine.process is not None:
            process, machine.process = machine.process, None
            process.alive = False
            self.network.died(process)
        else:
            return
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
        leading = process.replica.leading
        if leading.takes_appends(process.clock()):
            events = self.family.commits(process, leading.epoch) if self.splitting else self._records(leading.epoch)
            process.append([events, self._records(leading.epoch)])
            if process.alive and self.random.random() < 0.2:
                process.replace_document(self.random.choice("ab"))
        if process.alive and process.replica.may_read(process.clock()):
            self.checks.read(process)
            self.readers.read(process)
            self.decisions.read(process)
            self.family.read(process)
        if process.alive and not self.quiet and self.random.random() < 0.002:
            self.note(process.machine.name, "has a full disk")
            process.disk_full()

    def _records(self, epoch: int) -> list[Record]:
        return [(epoch, self.number()) for _ in range(self.random.choice((0, 0, 1, 1, 3)))]

    # the quiet time

    def heal(self) -> None:
        self.registry.others_copy = self.registry.paused = False
        self.network.cut.clear()
        self.registry_away.clear()
        if self.splitting:
            self.registry.state = replace(self.registry.state, successor=None)  # one that does not come is waited for
        for machine in self.machines.values():
            if (runs := machine.process or machine.clone) is not None:
                runs.paused_until = min(runs.paused_until, self.now)
            else:
                self.after(0.1, lambda machine=machine: self.start(machine))  # type: ignore[misc]
