"""Holds a store to what it promises of conditions by query, while it is killed: `python -m tests.decisions.checks`.

Three checks run at once. Writers decide on random queries and commit; what they decided on is in their events, so afterwards
each commit is compared with the whole log: no event that passes its query may lie between its place and itself. Readers poll;
what a later read of everything has before their position they must have got. Writers that share no tag with anybody must never
be refused. Each outcome that was acknowledged must be in the log, once.

A server with a domain gets commands as well, which it decides on queries, beside clients that decide by the same rules: no
course has more students than places, no student more courses than allowed, and what was refused is not stored.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

import eventstore as es
from eventstore.records.slots import slot_of
from tests.cluster.node_process import NodeProcess
from tests.ports import free_port
from tests.server.commands.enrolments import MOST, Enrol, Offer, of_both
from tests.server_process import ServerProcess

COURSES, PLACES = "{courses}", 4
SCOPES = ("{a}", "{b}", "{c}", "{d}")
TAGS = tuple(f"t:{number}" for number in range(5))
TYPES = ("A", "B", "C")
QUERIES = [[[], ["t:0"]], [["A"], []], [["A", "B"], ["t:1", "t:2"]], [[], ["t:3"]], [["C"], ["t:4"]]]
"""Types and tags of items, of which writers join up to two."""
FILE_BYTES = 256 * 1024
"""So small that files are sorted all the time."""


class Wrong(Exception):
    """The store broke a promise."""


@dataclass
class Checks:
    """What runs against the store at an address, and what it was told."""

    address: str
    rng: random.Random
    acknowledged: dict[str, es.Committed] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    ended: trio.Event = field(default_factory=trio.Event)
    commits_max: int | None = None
    has_domain: bool = False
    refused: set[str] = field(default_factory=set)

    async def run(self, writers: int) -> None:
        """Runs all of them until `ended`, then compares. Raises Wrong."""
        async with es.connect(self.address, reconnect_timeout=120, timeout=math.inf) as store:
            async with trio.open_nursery() as nursery:
                for number in range(writers):
                    nursery.start_soon(self._decide, store, number)
                    nursery.start_soon(self._alone, store, number)
                    if self.has_domain:
                        nursery.start_soon(self._enrol, store, number)
                for scope in SCOPES:
                    nursery.start_soon(self._poll, store, scope)
            await self._compare(store)

    async def _decide(self, store: es.NetworkStore, number: int) -> None:
        for turn in itertools.count():
            if self.ended.is_set():
                return
            items = self.rng.sample(QUERIES, self.rng.choice((1, 1, 2)))
            query, scope = query_of(items), self.rng.choice(SCOPES)
            _, position = await store.query(query, await self._begin(store))
            for _ in range(self.rng.randint(0, 3)):
                await trio.lowlevel.checkpoint()
            shard = await self._shard_of(store, scope)
            decided = {"items": items, "after": position.shards[shard][0], "scope": scope}
            tags = self.rng.sample(TAGS, self.rng.randint(0, 2))
            events = [es.NewEvent(self.rng.choice(TYPES), decided, tags=tags) for _ in range(self.rng.choice((1, 1, 2)))]
            names = [f"{name}-{scope}-{number}-{turn}" for name in ("x", "y")[: self.rng.choice((1, 1, 2))]]
            try:
                done = await store.commit(
                    [es.Write(name, events, 0) for name in names],
                    unless=query, after=position, scope=scope, command_id=f"d-{number}-{turn}",
                )  # fmt: skip
            except es.ConditionFailed:
                self.counts["refused"] += 1
            else:
                self.counts["committed"] += 1
                if self.counts["committed"] == self.commits_max:
                    self.ended.set()
                self.acknowledged.update((each.aggregate_id, each) for each in done)

    async def _alone(self, store: es.NetworkStore, number: int) -> None:
        """Decides on a tag that nobody else has."""
        scope, query = SCOPES[number % len(SCOPES)], es.Query(tags=[f"own:{number}"])
        _, position = await store.query(query)
        for turn in itertools.count():
            if self.ended.is_set():
                return
            name = f"z-{scope}-{number}-{turn}"
            write = es.Write(name, [es.NewEvent("Z", {"turn": turn}, tags=[f"own:{number}"])], 0)
            try:
                (done,) = await store.commit([write], unless=query, after=position, scope=scope, command_id=f"z-{turn}")
            except es.ConditionFailed as error:
                raise Wrong(f"a commit that nobody is beside was refused: {error}") from None
            self.counts["alone"] += 1
            self.acknowledged[name] = done
            found, position = await store.query(query, position)
            if [event.aggregate_id for event in found] != [name]:
                raise Wrong(f"{name} was committed, and a query after it finds {[event.aggregate_id for event in found]}")

    async def _enrol(self, store: es.NetworkStore, number: int) -> None:
        """Has the domain enrol students, or enrols them itself."""
        for turn in itertools.count():
            if self.ended.is_set():
                return
            course, student = f"c{turn // 25}-{self.rng.randrange(3)}", f"s{turn // 25}-{self.rng.randrange(8)}"
            enrol, command_id = Enrol(f"e-{COURSES}-{number}-{turn}", course, student), f"e-{number}-{turn}"
            with suppress(es.Rejected):
                await store.send(Offer(f"o-{COURSES}-{course}", course, PLACES), f"o-{number}")
            try:
                if self.rng.random() < 0.8:
                    sent = await store.send(enrol, command_id)
                else:
                    query = of_both(enrol)
                    events, position = await store.query(query)
                    if broken_by([*pairs_of(events), (course, student)]):
                        continue
                    write = es.Write(enrol.id, [made(enrol)], 0)
                    (sent,) = await store.commit([write], unless=query, after=position, command_id=command_id)
            except (es.Rejected, es.ConditionFailed):
                self.counts["enrolments refused"] += 1
                self.refused.add(enrol.id)
            else:
                assert isinstance(sent, es.Committed)
                self.counts["enrolled"] += 1
                self.acknowledged[enrol.id] = sent

    async def _poll(self, store: es.NetworkStore, scope: str) -> None:
        query, got = es.Query(tags=["t:0"]) | es.Query(["C"]), list[es.Event]()
        found, position = await store.query(query)
        while not self.ended.is_set():
            got += found
            self.counts["polled"] += 1
            found, position = await store.query(query, position)
        got += found
        everything, _ = await store.query(query)
        places = {shard: sequence for shard, (sequence, _) in position.shards.items()}
        before = [event for event in everything if event.sequence <= places[await self._shard_of(store, event.aggregate_id)]]
        if Counter(event.aggregate_id for event in got) != Counter(event.aggregate_id for event in before):
            raise Wrong(f"a reader that polled got {len(got)} events, and there are {len(before)} before its position")

    async def _begin(self, store: es.NetworkStore) -> es.Position | int:
        """Returns where a writer queries from: mostly near the end, so that it does not read all for each decision."""
        if self.rng.random() < 0.05:
            return 0
        _, position = await store.query(es.Query(tags=["nothing"]))
        return position

    async def _shard_of(self, store: es.NetworkStore, aggregate_id: str) -> int:
        return (await store.cluster_map()).owner_of(aggregate_id) if store.shards else 0

    async def _compare(self, store: es.NetworkStore) -> None:
        shards = store.shards or {0: store}
        stored: Counter[str] = Counter()
        for shard in shards.values():
            events = [event async for event in shard.read_all()]
            check_order(events)
            check_enrolments(events, self.refused)
            for event in events:
                stored[event.aggregate_id] += 1
                done = self.acknowledged.get(event.aggregate_id)
                if done is not None and event.version == done.version and event.sequence != done.sequence:
                    raise Wrong(f"{event.aggregate_id} was acknowledged at {done.sequence} and lies at {event.sequence}")
        if missing := [name for name, done in self.acknowledged.items() if stored[name] != done.version]:
            raise Wrong(f"{len(missing)} acknowledged commits are not stored as they were, such as {missing[0]}")
        self.counts["events"] = sum(stored.values())


def query_of(items: list[list[list[str]]]) -> es.Query:
    """Returns the query with these types and tags of its items."""
    query = es.Query(*items[0])
    for item in items[1:]:
        query = query | es.Query(*item)
    return query


def check_order(events: list[es.Event]) -> None:
    """Raises Wrong if an event that passes the query of a commit lies between the commit and the place it was decided at."""
    by_command: dict[str, int] = {}
    for event in events:
        by_command.setdefault(event.command_id, event.sequence)
    for event in events:
        if event.type not in TYPES:
            continue
        decided = event.json()
        query, first = query_of(decided["items"]), by_command[event.command_id]
        slot = slot_of(decided["scope"])
        for other in events[decided["after"] : first - 1]:
            if slot_of(other.aggregate_id) == slot and query.matches(other):
                raise Wrong(
                    f"event {event.sequence} was decided at {decided['after']} unless {decided['items']}, "
                    f"and event {other.sequence} is that: {other!r}"
                )


def made(command: Enrol) -> es.NewEvent:
    """Returns the event of an enrolment."""
    fields = {"course": command.course, "student": command.student}
    return es.NewEvent("Enrolled", fields, tags=[f"course:{command.course}", f"student:{command.student}"])


def pairs_of(events: list[es.Event]) -> list[tuple[str, str]]:
    """Returns course and student of each enrolment."""
    return [(event.json()["course"], event.json()["student"]) for event in events if event.type == "Enrolled"]


def broken_by(enrolled: list[tuple[str, str]]) -> str | None:
    """Returns which rule these enrolments break."""
    for what, found, most in (
        ("course {} has {} students", Counter(course for course, _ in enrolled), PLACES),
        ("student {} takes {} courses", Counter(student for _, student in enrolled), MOST),
        ("{} is there {} times", Counter(enrolled), 1),
    ):
        for each, count in found.items():
            if count > most:
                return f"{what.format(each, count)}, the limit is {most}"
    return None


def check_enrolments(events: list[es.Event], refused: set[str]) -> None:
    """Raises Wrong if a rule is broken, or if something is stored that was refused."""
    if broken := broken_by(pairs_of(events)):
        raise Wrong(broken)
    if stored := refused.intersection(event.aggregate_id for event in events):
        raise Wrong(f"{len(stored)} enrolments were refused, and are stored, such as {min(stored)}")


async def run(folder: Path, seconds: float, seed: int, shards: int, kill_every: float, writers: int) -> Counter[str]:
    """Runs the checks against a server, or a node of several shards, that is killed again and again. Raises Wrong."""
    port = free_port()
    rng, deadline, kills = random.Random(seed), trio.current_time() + seconds, 0

    def start() -> ServerProcess | NodeProcess:
        given: dict[str, Any] = {
            "listen": f"127.0.0.1:{port}",
            "file_size_bytes": FILE_BYTES,
            "preallocate_bytes": FILE_BYTES // 4,
        }
        if shards == 1:
            return ServerProcess(folder / "data", domain="tests.server.commands.enrolments:app", **given)
        return NodeProcess(folder / "data", shards, **given)

    with ExitStack() as stack:
        process = await trio.to_thread.run_sync(start)
        stack.callback(lambda: process.kill())
        checks = Checks(f"tcp://127.0.0.1:{port}", rng, has_domain=shards == 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(checks.run, writers)
            while trio.current_time() + kill_every < deadline:
                await trio.sleep(kill_every * rng.uniform(0.5, 1.5))
                await trio.to_thread.run_sync(process.kill)
                process, kills = await trio.to_thread.run_sync(start), kills + 1
            await trio.sleep_until(deadline)
            checks.ended.set()
        checks.counts["kills"] = kills
        return checks.counts


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--kill-every", type=float, default=5, metavar="SECONDS")
    parser.add_argument("--writers", type=int, default=6)
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}, {given.shards} shard(s)")
    with TemporaryDirectory() as folder:
        counts = trio.run(run, Path(folder), given.seconds, given.seed, given.shards, given.kill_every, given.writers)
    print(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
