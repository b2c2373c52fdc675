"""The shards of one history: a person has them split, and calls that off; things go wrong at each step of it."""

from __future__ import annotations

import contextlib
import uuid
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from eventstore.errors import EventStoreError
from eventstore.records.slots import SLOTS
from eventstore_cluster.nodes.splitting.asking import ask_to_split, call_off
from eventstore_cluster.registry.registry import Changes, RegistryEntry, RegistrySnapshot
from eventstore_cluster.registry.replica_keys import REPLICAS
from eventstore_cluster.registry.replicated_keys import (
    CLUSTER,
    LEADERS,
    SHARDS,
    ClusterKey,
    ShardKey,
    read_cluster,
    read_leader,
    read_shard,
)
from eventstore_cluster.replication.slot_gifts import Gift
from tests.cluster.simulation.aggregates import IDS, Aggregates, owned
from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.disk import Record

if TYPE_CHECKING:
    from tests.cluster.simulation.process import Process
    from tests.cluster.simulation.world import Machine, World

_SHARDS_MAX: Final = 5
_TAKEN_EVERY: Final = 4
_CALLED_OFF: Final = 0.05
_UNHEARD_S: Final = 0.5
_AGAIN: Final = 0.15
_READ: Final = 0.2


def _number(key: str) -> int:
    return int(key.rpartition("/")[2])


class Family:
    """`shards`: the world of each, by its number, also while it is in preparation. `given`: how often slots were given away."""

    by = ""
    """Who asks."""

    def __init__(self, first: World) -> None:
        self._random, self._schedule = first.random, first.schedule
        self.shards = {0: first}
        self.aggregates = Aggregates()
        self.given = 0
        self._reads = 0
        self._cluster = ClusterKey(uuid.UUID(int=1), 1, 3, 2)
        self._revision = 1
        self._commands: dict[str, int] = defaultdict(int)

    def begin(self) -> None:
        self._schedule.after(self._random.uniform(1.0, 4.0), self._ask)

    # a person

    def _ask(self) -> None:
        """Has a shard split, or calls off that it is to be."""
        if self._schedule.quiet:
            return
        self._schedule.after(self._random.choice((0.3, 1.0, 4.0)), self._ask)
        states = [(world, world.registry.state) for world in self.owners()]
        asked = [world for world, state in states if state.split]
        if asked and self._random.random() < _CALLED_OFF:
            self._call_off(asked[0])
        free = [world for world, state in states if state.wanted is None and state.successor is None and not state.split]
        if free and len(self.shards) < _SHARDS_MAX:
            self._split(self._random.choice(free), self._random.choice((2, 2, 3)))

    def _split(self, parent: World, parts: int) -> None:
        seen, shard = self.seen(), parent.number_of_shard
        self._command(lambda: ask_to_split(self._registry, seen, shard, parts))

    def _call_off(self, parent: World) -> None:
        """A person looks, and calls it off a moment later: the slots may have been given away meanwhile."""
        seen, shard = self.seen(), parent.number_of_shard
        self._command(lambda: call_off(self._registry, seen, shard))
        if self._random.random() < 0.5:  # others are to get slots
            self._schedule.after(0.6, lambda: self._split(parent, self._random.choice((2, 3))))

    def _call_off_unheard(self, parent: World, machine: Machine) -> None:
        """As `_call_off`; its leader hears of that only with what is asked for next: other shards are to get slots by then."""
        shard = parent.number_of_shard
        parent.registry_away[machine.name] = self._schedule.now + _UNHEARD_S
        self._at_once(lambda: call_off(self._registry, self.seen(), shard))
        ask = partial(self._at_once, lambda: ask_to_split(self._registry, self.seen(), shard, 3))
        self._schedule.after(_UNHEARD_S / 2, ask)

    def _command(self, begun: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._schedule.after(
            0.0 if self._schedule.quiet else self._random.choice((0.0, 0.02, 0.5)), lambda: self._at_once(begun)
        )

    def _at_once(self, begun: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        with contextlib.suppress(EventStoreError, StopIteration):
            begun().send(None)

    def seen(self) -> RegistrySnapshot:
        """Returns the keys that a person's command reads."""
        entries = {CLUSTER: RegistryEntry(self._cluster.value(), self._revision)}
        for number, world in self.shards.items():
            entries[f"{SHARDS}{number}"] = RegistryEntry(world.registry.key.value(), world.registry.state_revision)
        return RegistrySnapshot(self._revision, entries)

    async def transact(self, compared: Mapping[str, int], changes: Changes) -> int | None:
        """Writes what a person's command writes, at once."""
        if any(self._written_by(key) != revision for key, revision in compared.items()):
            return None
        self._revision += 1
        new = []
        for key, value in changes.items():
            self._schedule.note("registry", f"{key}: {value}")
            if key == CLUSTER:
                self._cluster = read_cluster(value or {})
            elif value is None:
                self.shards.pop(_number(key)).call_off()
            elif (world := self.shards.get(_number(key))) is not None:
                world.registry.write(read_shard(0, value), self._schedule.now)
            else:
                new.append(self._child(_number(key), read_shard(0, value)))
        for world in new:
            world.prepare()
        return self._revision

    def _child(self, number: int, key: ShardKey) -> World:
        assert key.lineage.birth is not None
        child = self.shards[number] = self.shards[key.lineage.birth.parent].child(number, key)
        return child

    @property
    def _registry(self) -> Any:
        return self

    # the registry

    def owners(self) -> list[World]:
        """Returns the shards that have slots."""
        return [world for world in self.shards.values() if world.registry.key.slots]

    def snapshot(self, key: ShardKey) -> RegistrySnapshot:
        """Returns the keys that the leader of a shard reads of those that are to get slots of it."""
        entries = {CLUSTER: RegistryEntry(self._cluster.value(), self._revision)}
        for number in key.state.split:
            if (child := self.shards.get(number)) is None:
                continue
            registry = child.registry
            entries[f"{SHARDS}{number}"] = RegistryEntry(registry.key.value(), registry.state_revision)
            for name, clone in registry.clones.items():
                assert clone.clone is not None
                if registry.is_leased(f"lease{clone.clone.lease}"):
                    entries[f"{REPLICAS}{number}/{name}"] = RegistryEntry(clone.value(), registry.revision)
        return RegistrySnapshot(self._revision, entries)

    def changed(self, child: World) -> None:
        """A key of a shard in preparation was written: the leader of its parent reads it with its own."""
        if child.parent is not None:
            child.parent.registry.revision += 1

    def may_give(self, gift: Gift) -> bool:
        """Whether what the transaction compares is so, and the leases are there that it writes keys under."""
        if any(self._written_by(key) != revision for key, revision in gift.compared.items()):
            return False
        return all(self._shard(key).registry.is_leased(f"lease{lease}") for key, lease in gift.heirs.items())

    def _written_by(self, key: str) -> int:
        if key == CLUSTER:
            return self._revision
        child = self.shards.get(_number(key))
        return 0 if child is None else child.registry.state_revision

    def _shard(self, key: str) -> World:
        return self.shards[_number(key)]

    def give(self, giver: World, gift: Gift) -> None:
        """The transaction that gives slots away was applied, to the key of the giver."""
        self.given += 1
        self._revision += 1
        for key, value in gift.changes.items():
            if value is None or not key.startswith(SHARDS):
                continue
            child, given = self._shard(key), read_shard(0, value)
            leader_key = f"{LEADERS}{child.number_of_shard}"
            leader = None
            if (named := gift.changes.get(leader_key)) is not None:
                leader = read_leader(RegistryEntry(named, 0))
            child.registry.given(given, leader, f"lease{gift.heirs.get(leader_key)}")
            self._begin(giver, child)
            if leader is not None:
                child.checks.elected(leader, given.state.epoch)
        slots = sorted(pair for world in self.owners() for pair in world.registry.key.slots)
        if [low for low, _ in slots] != [0, *(high + 1 for _, high in slots[:-1])] or slots[-1][1] != SLOTS - 1:
            raise Broken(f"the shards own {slots}")

    def _begin(self, giver: World, child: World) -> None:
        through = child.registry.key.lineage.splits[0].through
        known = giver.checks.records[0]
        if len(known) < through:
            raise Broken(f"shard {child.number_of_shard} begins with {through} records, of which {len(known)} are committed")
        child.checks.begins_with(known[:through])
        child.begin()

    # faults

    def happens(self, world: World, machine: Machine) -> None:
        """A step of a split begins on this machine: now and then something goes wrong with it."""
        if self._schedule.quiet:
            return
        at = self._random.choice((0.0, 0.002, 0.05, 0.3))
        match self._random.choice(("nothing", "crash", "machine", "call off", "call off unheard", "registry", "nothing")):
            case "crash":
                self._schedule.after(at, lambda: world.stop(machine, restart_s=self._random.choice((0.1, 3.0))))
            case "machine":
                self._schedule.after(at, lambda: self.stop(machine.name, self._random.choice((0.1, 3.0))))
            case "call off":
                self._schedule.after(at, lambda: self._call_off(world))
            case "call off unheard":
                self._call_off_unheard(world, machine)
            case "registry":
                world.registry_away[machine.name] = self._schedule.now + self._random.choice((0.5, 3.0, 9.0))

    def stop(self, name: str, restart_s: float) -> None:
        """Ends all processes of a machine, as a power failure does."""
        for world in list(self.shards.values()):
            world.stop(world.machines[name], restart_s=restart_s)

    # clients

    def commits(self, process: Process, epoch: int) -> list[Record]:
        """Returns the records of what clients have this leader append, new commands and some that were sent before."""
        records = []
        for _ in range(self._random.choice((0, 0, 1, 1, 3))):
            aggregate = self._random.choice(IDS)
            again = self._commands[aggregate] and self._random.random() < _AGAIN
            if not again:
                self._commands[aggregate] += 1
            command = self._random.randint(1, self._commands[aggregate]) if again else self._commands[aggregate]
            if (event := process.store.append(aggregate, command)) is not None:
                number = self._schedule.number()
                self.aggregates.events[number] = event
                records.append((epoch, number))
        return records

    def read(self, process: Process) -> None:
        """Now and then a client reads an aggregate at this leader, which may answer."""
        self._reads += 1
        if self._reads % _TAKEN_EVERY == 0:  # it is slow
            self._check_taken(process)
        if self._random.random() < _READ and (mine := process.store.owned):
            self._read(process, self._random.choice(mine))

    def _check_taken(self, process: Process) -> None:
        """A leader that holds nothing back for a split takes what its shard owns, as far as it has heard."""
        key, leading = process.shard_key, process.replica.leading
        if key is None or leading is None or leading.splitting.holding:
            return
        if process.store.owned != (wanted := owned(key.slots)):
            raise Broken(f"{process.run} takes {process.store.owned}, and owns {wanted}")

    def _read(self, process: Process, aggregate: str) -> None:
        self.aggregates.read(process.run, aggregate, process.visible)

    def healed(self) -> None:
        """After a quiet time each aggregate is read in full where its slot is."""
        for world in self.owners():
            world.checks.healed()
            (process,) = [each.process for each in world.machines.values() if each.process is not None and each.process.opened]
            wanted = owned(world.registry.key.slots)
            if process.store.owned != wanted:
                raise Broken(f"{process.run} serves {process.store.owned}, and owns {wanted}")
            for aggregate in wanted:
                self._read(process, aggregate)
