"""A simulated cluster without faults but one: a process is killed at one operation, and started again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

from eventstore_cluster.registry.replica_keys import ReplicaKey
from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replica.registry_state import Seat, Swap
from tests.cluster.killing.operations import LATE_S, How, Kill, Operation, Operations
from tests.cluster.simulation.aggregates import IDS
from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.disk import IN_A_CHUNK, Disk, Record
from tests.cluster.simulation.process import Process
from tests.cluster.simulation.registry import SimulatedRegistry
from tests.cluster.simulation.world import World

_COMMANDS_BEFORE: Final = 1
_COMMANDS_LATER: Final = 3
_CLIENT_S: Final = 0.1
_EVENTS_AT_ONCE: Final = 2
_RESTART_S: Final = 0.1
_LOOK_S: Final = 0.2
_SETTLES_S: Final = 60.0
"""Of simulated time: what takes longer after one kill is stuck."""


class Killed(BaseException):
    """A process of a machine ends here."""

    def __init__(self, world: KilledWorld, name: str) -> None:
        super().__init__(name)
        self.world, self.name = world, name


class KilledWorld(World):
    """One client appends the same commands to all aggregates in every history, and repeats those that are not acknowledged."""

    registry: KilledRegistry

    def __init__(self, seed: int, replicas: int, kill: Kill | None) -> None:
        self.operations = Operations(kill)
        self.asker_died = False
        self.before: dict[int, object] = {}
        self._held_up: dict[str, float] = {}
        self._loses_answer = False
        super().__init__(seed, replicas=replicas, splits=True, moves=True)
        self.schedule.quiet = True  # no other faults

    def _surround(self, key: ShardKey) -> None:
        super()._surround(key)
        self.registry = KilledRegistry(self, key)

    def new_disk(self, name: str) -> Disk:
        return KilledDisk(self, name)

    def shards(self) -> list[KilledWorld]:
        return [world for world in self.family.owners() if isinstance(world, KilledWorld)]

    # the history

    def settles(self) -> None:
        """Takes steps until nothing is wanted any more, all replicas are equal, and all commands are acknowledged.

        Raises Broken: it does not come to that, or a promise does not hold.
        """
        ends = self.now + _SETTLES_S
        while not self._is_settled():
            if self.now > ends:
                keys = [each.registry.key for each in self.shards()]
                raise Broken(f"not settled after {_SETTLES_S:g} s: {self.outcome()}, {keys}")
            self.passes(_LOOK_S)
            if all(each.is_as_wanted() for each in self.shards()):
                self.operations.end()
        self.family.healed()

    def passes(self, seconds: float) -> None:
        """Takes the steps of the next seconds."""
        self.schedule.run_until(self.now + seconds, lambda: False)

    def _is_settled(self) -> bool:
        known = [self.acknowledged(each) for each in IDS]
        return known == [list(range(1, self._commands() + 1))] * len(IDS) and all(each.is_quiet() for each in self.shards())

    def is_as_wanted(self) -> bool:
        """Whether the shard is on the nodes that it should be on and nowhere else, and is led."""
        state = self.registry.state
        if state.wanted or state.successor or state.split or {each.node for each in state.in_sync} != set(state.replicas):
            return False
        running = {name: machine.process for name, machine in self.machines.items() if machine.process is not None}
        if set(running) != set(state.replicas) or self._folders() != set(state.replicas):
            return False
        return sum(process.opened for process in running.values()) == 1

    def is_quiet(self) -> bool:
        """Whether the shard is as it was wanted, and its replicas have the same."""
        if not self.is_as_wanted():
            return False
        disks = [self.machines[name].disk for name in self.registry.state.replicas]
        return all((each.records, each.documents) == (disks[0].records, disks[0].documents) for each in disks)

    def _folders(self) -> set[str]:
        return {name for name, machine in self.machines.items() if machine.disk.incarnations}

    def outcome(self) -> dict[str, object]:
        """Returns what the history ended with, that of another one must be the same."""
        found: dict[str, object] = {each: self.acknowledged(each) for each in IDS}
        for world in self.shards():
            key, state = world.registry.key, world.registry.state
            in_sync = sorted(member.node for member in state.in_sync)
            kept = (state.replicas, in_sync, state.in_sync_min, sorted(world._folders()))
            found[f"shard {world.number_of_shard}"] = (key.slots, state.splits, state.wanted, state.split, *kept)
        return found

    def placed(self) -> dict[int, object]:
        """Returns what a person decides of each shard: its slots, who keeps it and who leads it."""
        found = {world.number_of_shard: world.registry for world in self.shards()}
        return {number: (each.key.slots, each.state.replicas, each.leader) for number, each in found.items()}

    def acknowledged(self, aggregate: str) -> list[int]:
        """Returns the commands that took effect on an aggregate, in order."""
        return [event.command for event in self.family.aggregates.known(aggregate)]

    # kills

    def after(self, delay: float, step: Callable[[], None]) -> None:
        super().after(delay, partial(self._guarded, step))

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Killed as killed:
            killed.world.kill(killed.name)

    def kill(self, name: str) -> None:
        """Ends the process of this shard on a machine, wherever it is; it is started again soon."""
        machine = self.machines[name]
        self.note(name, "is killed")
        if machine.process is None and machine.clone is None:  # it was just starting, or only its node was at work
            machine.disk.lose_power(self.random)
            self.after(_RESTART_S, lambda: self.start(machine))
        self.stop(machine, restart_s=_RESTART_S)

    def operation(self, name: str, what: str, do: Callable[[], None]) -> None:
        """Does what a process of a machine begins. Raises Killed: it dies before that, or after."""
        how = self.operations.begins(Operation(self.number_of_shard, name, what))
        if how == "before":
            raise Killed(self, name)
        do()
        if how is not None:
            raise Killed(self, name)

    def transact(self, process: Process, swap: Swap) -> None:
        name = process.machine.name
        how = self.operations.begins(Operation(self.number_of_shard, name, _described(swap), transaction=True))
        if how == "before":
            raise Killed(self, name)
        if how is not None:
            self.registry.strikes[swap.state.nonce] = partial(self._struck, name, how)
        if how in LATE_S:
            self._held_up[swap.state.nonce] = LATE_S[how]
        super().transact(process, swap)
        if how in LATE_S:
            raise Killed(self, name)

    def _struck(self, name: str, how: How) -> None:
        """A transaction has just reached the registry, and its answer is on the way."""
        if how == "after":
            self.after(0.0, lambda: self.kill(name))
        elif how == "unanswered":
            self._loses_answer = True
        elif how in ("others", "all"):
            for other in self.machines:
                if how == "all" or other != name:
                    self.after(0.0, partial(self.family.stop, other, _RESTART_S))

    def _mishap(self, swap: Swap) -> float:
        return self._held_up.pop(swap.state.nonce, 0.0)

    def _answer_lost(self) -> bool:
        lost, self._loses_answer = self._loses_answer, False
        return lost

    # the client

    def _commands(self) -> int:
        """Returns how many there are for each aggregate: most of them while the change is under way."""
        return _COMMANDS_LATER if self.operations.counted else _COMMANDS_BEFORE

    def _client(self) -> None:
        self.after(_CLIENT_S, self._client)
        for machine in self.machines.values():
            if machine.process is not None and machine.process.alive:
                self._served_by(machine.process)

    def _served_by(self, process: Process) -> None:
        process.sort()
        leading = process.replica.leading
        if leading is None or not process.opened or not leading.takes_appends(process.clock()):
            return
        events = (self._next(process, each, leading.epoch) for each in process.store.owned)
        if some := list(islice((each for each in events if each is not None), _EVENTS_AT_ONCE)):
            process.append([some, [(leading.epoch, self.number())]])
        if process.alive and process.replica.may_read(process.clock()):
            self.checks.read(process)
            self.readers.read(process)
            self.family.read(process)

    def _next(self, process: Process, aggregate: str, epoch: int) -> Record | None:
        done = len(self.acknowledged(aggregate))
        if done == self._commands():
            return None
        event = process.store.append(aggregate, done + 1)
        if event is None:
            return None
        number = self.number()
        self.family.aggregates.events[number] = event
        return epoch, number


class KilledDisk(Disk):
    """The disk of a machine, as far as one shard is on it: each operation can be the last one of its process."""

    def __init__(self, world: KilledWorld, name: str) -> None:
        super().__init__(finished=world.parent is None)
        self._world, self._name = world, name

    def _does(self, what: str, do: Callable[[], None]) -> None:
        self._world.operation(self._name, what, do)

    def begin(self, incarnation: str) -> None:
        self._does("writes an incarnation", partial(super().begin, incarnation))

    def finish(self) -> None:
        self._does("finishes a clone", super().finish)

    def lead(self, epoch: int) -> None:
        self._does("begins an epoch", partial(super().lead, epoch))

    def append(self, payload: list[list[Record]]) -> None:
        if any(payload):
            self._does("writes", partial(super().append, payload))

    def sync(self, counts: list[int]) -> None:
        if counts != self.synced:
            self._does("syncs", partial(super().sync, counts))

    def replaced(self, version: tuple[int, int]) -> None:
        self._does("replaces documents", partial(super().replaced, version))

    def cut(self, ends: LogEnds) -> None:
        self._does("cuts back", partial(super().cut, ends))

    def sort(self, committed: LogEnds) -> None:
        if min(committed[0][0] - 1, self.synced[0] // IN_A_CHUNK) > self.sorted:
            self._does("sorts", partial(super().sort, committed))

    def link(self, other: Disk, through: int) -> None:
        self._does("links files", partial(super().link, other, through))

    def wipe(self) -> None:
        self._does("puts a folder away", super().wipe)


class KilledRegistry(SimulatedRegistry):
    """`strikes`: what is done once the transaction with this nonce has reached it."""

    def __init__(self, world: KilledWorld, key: ShardKey) -> None:
        super().__init__(key)
        self.strikes: dict[str, Callable[[], None]] = {}
        self._world = world

    def keep_alive(self, lease: str, holder: Seat, until: float, now: float) -> bool:
        if lease in self._holders:
            return super().keep_alive(lease, holder, until, now)
        kept = [False]

        def grant() -> None:
            kept[0] = super(KilledRegistry, self).keep_alive(lease, holder, until, now)

        self._world.operation(holder.node, "asks for a lease", grant)
        return kept[0]

    def said(self, node: str, clone: ReplicaKey) -> None:
        self._world.operation(node, "says how far its clone is", partial(super().said, node, clone))

    def apply(self, swap: Swap, own: ShardKey, lease: str, now: float, may: Callable[[], bool] = lambda: True) -> int:
        before = len(self.state.in_sync)
        applied = super().apply(swap, own, lease, now, may)
        self.strikes.pop(swap.state.nonce, lambda: None)()
        operations = self._world.operations
        if applied and swap.leads is None and operations.counted and operations.kill is None:
            self._stays_redundant(before)
        return applied

    def _stays_redundant(self, before: int) -> None:
        """Without a kill no leader leaves fewer replicas in sync than there were before a change, or than are wanted."""
        state = self.state
        least = min(len(state.before or state.replicas), len(state.wanted or state.replicas))
        if len(state.in_sync) < min(before, least):
            raise Broken(f"{sorted(state.in_sync)} are in sync, of {state.before} that are to become {state.wanted}")


def _described(swap: Swap) -> str:
    if swap.leads is not None:
        return "is elected"
    if swap.yields:
        return "hands over"
    if swap.gifts:
        return "gives slots away"
    return f"has {len(swap.state.in_sync)} in sync, of {','.join(swap.state.replicas)}"
