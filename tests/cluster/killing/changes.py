"""What a person asks of a cluster, by the code of the commands: hand-overs, moves, splits, more and fewer replicas, a drain."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from eventstore.errors import EventStoreError
from eventstore_cluster.nodes.moving.asking import ask, moved
from eventstore_cluster.nodes.moving.plans import ask_for_all
from eventstore_cluster.nodes.placing.balancing import drain, resize
from eventstore_cluster.nodes.placing.fleet import Fleet
from eventstore_cluster.nodes.placing.survey import surveyed
from eventstore_cluster.nodes.splitting.asking import ask_to_split
from eventstore_cluster.registry.node_keys import DRAINING, NODES, NodeKey
from eventstore_cluster.registry.registry import Changes, RegistryEntry, RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import LEADERS, leader_value
from tests.cluster.killing.killed_world import KilledWorld
from tests.cluster.killing.operations import Kill, Operation, Operations

_LATE_S: Final = 0.5


class Died(BaseException):
    """The process of the command ends here."""


class Person:
    """Runs commands. `operations`: theirs on the registry, at one of which the command may die. `led`: who led when it was
    asked first.
    """

    by = "ops"

    def __init__(self, world: KilledWorld, kill: Kill | None = None) -> None:
        self.operations = Operations(kill)
        self.operations.begin()
        self._world = world
        self._draining: set[str] = set()
        leader = world.registry.leader
        assert leader is not None
        self.led = leader.member.node
        self.others = [name for name in world.registry.state.replicas if name != self.led]
        self.free = [name for name in world.machines if name not in world.registry.state.replicas]

    def asks(self, command: Command) -> None:
        """Runs a command to its end, or to where it dies; what is refused is what was asked for before."""
        with contextlib.suppress(EventStoreError, Died):
            _run(command(self))

    def seen(self) -> RegistrySnapshot:
        seen = self._world.family.seen()
        nodes = {f"{NODES}{name}": RegistryEntry(NodeKey("127.0.0.1:1", name, "1").value(), 1) for name in self._world.machines}
        leaves = {f"{DRAINING}{name}": RegistryEntry({}, 1) for name in self._draining}
        leaders = {
            f"{LEADERS}{world.number_of_shard}": RegistryEntry(
                leader_value(world.registry.leader), world.registry.leader_revision
            )
            for world in self._world.shards()
            if world.registry.leader is not None
        }
        return RegistrySnapshot(seen.revision, {**seen.entries, **nodes, **leaves, **leaders})

    def fleet(self, seen: RegistrySnapshot) -> Fleet:
        return surveyed(seen, {})

    @property
    def registry(self) -> Any:
        return self

    async def transact(self, compared: Mapping[str, int], changes: Changes) -> int | None:
        how = self.operations.begins(Operation(0, "", ", ".join(changes), transaction=True))
        if how == "late":
            self._world.after(_LATE_S, lambda: _run(self._written(compared, changes)))
        if how in ("before", "late"):
            raise Died
        done = await self._written(compared, changes)
        if how is not None:
            raise Died
        return done

    async def _written(self, compared: Mapping[str, int], changes: Changes) -> int | None:
        drained = {key for key in changes if key.startswith(DRAINING)}
        self._draining |= {key.removeprefix(DRAINING) for key in drained}
        rest = {key: value for key, value in changes.items() if key not in drained}
        return await self._world.family.transact(compared, rest) if rest else 1


Command = Callable[[Person], Coroutine[Any, Any, Any]]


def _run(begun: Coroutine[Any, Any, Any]) -> None:
    try:
        begun.send(None)
    except StopIteration:
        return
    raise AssertionError("a command waits for something else than the registry")


async def _move(person: Person, source: str) -> None:
    seen = person.seen()
    wanted, leader = moved(person.fleet(seen), 0, source, person.free[0])
    await ask(person.registry, seen, 0, wanted, leader)


async def hand_over(person: Person) -> None:
    """As a rebalance of leaders; nothing if it is done."""
    seen, target = person.seen(), person.others[0]
    shard = person.fleet(seen).shards[0]
    if shard.leader != target:
        await ask(person.registry, seen, 0, shard.replicas, target)


def move_a_follower(person: Person) -> Awaitable[Any]:
    return _move(person, person.others[0])


def move_the_leader(person: Person) -> Awaitable[Any]:
    return _move(person, person.led)


async def _resize(person: Person, count: int) -> None:
    seen = person.seen()
    await ask_for_all(person.registry, seen, resize(person.fleet(seen), count))


def _to(count: int) -> Command:
    return lambda person: _resize(person, count)


async def split(person: Person) -> None:
    await ask_to_split(person.registry, person.seen(), 0, 2)


async def drain_the_leader(person: Person) -> None:
    """As `cluster drain NODE`: it plans, notes that the node is draining, and asks shard by shard."""
    seen = person.seen()
    plan = drain(person.fleet(seen), person.led)
    await person.registry.transact({}, {f"{DRAINING}{person.led}": {}})
    await ask_for_all(person.registry, seen, plan)


@dataclass(frozen=True)
class Change:
    """`replicas`: before it. `first`: what is asked for, and done, before."""

    what: str
    replicas: int
    command: Command
    first: Command | None = None


CHANGES: Final = (
    Change("leadership is handed over", 3, hand_over),
    Change("a follower moves", 3, move_a_follower),
    Change("the leader moves", 3, move_the_leader),
    Change("the only replica moves", 1, move_the_leader),
    Change("a split", 3, split),
    Change("2 replicas of 1", 1, _to(2)),
    Change("3 replicas of 2", 2, _to(3)),
    Change("2 replicas of 3", 3, _to(2)),
    Change("a drain of two shards", 2, drain_the_leader, split),
)


def history(
    change: Change, kill: Kill | None = None, seed: int = 0, *, asker: Kill | None = None, again_s: float = 0.0
) -> KilledWorld:
    """Runs a history in which the change is asked for, and a process is killed, or that of the command; then it is asked again
    after some time.

    Raises Broken: a promise does not hold, or something is stuck.
    """
    world = KilledWorld(seed, change.replicas, kill)
    for machine in world.machines.values():
        world.start(machine)
    world.begin()
    world.settles()
    if change.first is not None:
        Person(world).asks(change.first)
        world.settles()
    world.operations.begin()
    world.before = world.placed()
    person = Person(world, asker)
    person.asks(change.command)
    world.asker_died = person.operations.struck
    if world.asker_died:
        world.passes(again_s)
        person.asks(change.command)
    world.settles()
    return world
