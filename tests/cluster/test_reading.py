"""Reading all shards of a node: stored events, and new ones as they are appended."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio

import eventstore as es
from eventstore import ANY, Commit, NewEvent, blocking
from tests.cli.processes import output, refused, run, start
from tests.cluster.node_process import NodeProcess, kill_process
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.heavy
EVENT = NewEvent("Happened", b"1")
IDS = [f"a-{number}" for number in range(400)]


def fill(node: NodeProcess, ids: Iterable[str] = IDS, type: str = "Happened") -> None:
    with blocking.connect(node.address) as store:
        outcomes = store.append_many([Commit(each, [NewEvent(type, b"1")], ANY) for each in ids])
    assert {es.Committed} == {each.__class__ for each in outcomes}


def names(events: Iterable[es.Event]) -> list[str]:
    return [event.aggregate_id for event in events]


async def gathered(stream: Any) -> list[es.Event]:
    return [event async for event in stream]


def test_stored_events_of_all_shards_are_read_from_any_position_on(tmp_path: Path) -> None:
    async def main(node: NodeProcess) -> None:
        async with es.connect(node.address) as store:
            assert sorted(names(await gathered(store.read_all()))) == sorted(IDS)
            wanted = [each for each in IDS if each.startswith("a-1")]
            assert sorted(names(await gathered(store.read_all(aggregate_prefix="a-1")))) == sorted(wanted)
            for limit in (0, 1, 150, 399, 400, 1_000):
                first = store.read_all(limit=limit)
                some = await gathered(first)
                assert len(some) == min(limit, 400)
                rest = store.read_all(es.Position.parse(str(first.position)))
                assert sorted(names([*some, *await gathered(rest)])) == sorted(IDS)
                assert [event async for event in store.read_all(rest.position)] == []
            async with store.read_all() as events:
                some = [await anext(events) for _ in range(17)]
                position = events.position
            assert sorted(names([*some, *await gathered(store.read_all(position))])) == sorted(IDS)
            async with store.read_all() as events:
                seen: list[es.Event | None] = []
                while not seen or seen[-1] is not None:
                    with anyio.move_on_after(0):  # waits are cancelled
                        seen.append(await anext(events, None))
                    seen.append(await anext(events, None))
            assert sorted(names(each for each in seen if each is not None)) == sorted(IDS)
            for wrong, why in ((5, "a sequence of one shard, but this cluster has 3"), (es.END, "only `subscribe` takes that")):
                with pytest.raises(es.InvalidArgument, match=why):
                    store.read_all(wrong)
            async with store.subscribe(es.END) as stream:
                with pytest.raises(es.InvalidArgument, match="have not said where that is"):
                    _ = stream.position
                await anext(stream)
                ends = [{shard: place[0] for shard, place in each.position.shards.items()} for each in (stream, rest)]
                assert ends[0] == ends[1]

    with NodeProcess(tmp_path / "data", 3) as node:
        fill(node)
        trio.run(main, node)
        with blocking.connect(node.address) as store:
            first = store.read_all(limit=150)
            some = list(first)
            rest = store.read_all(first.position)  # type: ignore[union-attr] # of several shards
            assert sorted(names([*some, *rest])) == sorted(IDS)
            assert list(store.read_all(rest.position)) == []  # type: ignore[union-attr] # as above
        assert node.terminate() == 0


@pytest.mark.parametrize("client", ["trio", "asyncio", "blocking"])
@pytest.mark.parametrize("hung", [0, 2])
def test_a_read_hands_out_what_the_others_have_before_the_error_that_names_a_shard_that_hangs(
    tmp_path: Path, client: str, hung: int
) -> None:
    found: list[es.Event] = []
    timeouts = {"connect_timeout": 0.5, "reconnect_timeout": 0.5, "silence_timeout": 0.5}
    lost = partial(pytest.raises, es.ConnectionLost, match=f"^shard {hung}: ")

    async def take(events: Any) -> None:
        async for event in events:
            found.append(event)

    async def read(address: str) -> Any:
        async with es.connect(address, **timeouts) as store:
            events = store.read_all()
            with lost():
                await take(events)
            with lost():  # its end has not been reached
                await anext(events)
            return events.position

    def read_blocking(address: str) -> Any:
        with blocking.connect(address, **timeouts) as store:
            events: Any = store.read_all()
            with lost():
                found.extend(events)
            return events.position

    with NodeProcess(tmp_path / "data", 3) as node:
        fill(node)
        rows = node.rows()
        pid = rows[hung].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            address = node.address
            position = read_blocking(address) if client == "blocking" else anyio.run(read, address, backend=client)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert len(found) == sum(row.events or 0 for row in rows if row.shard != hung)
        with blocking.connect(node.address) as store:
            rest = list(store.read_all(position))
        assert sorted(names([*found, *rest])) == sorted(IDS)


def test_a_subscription_gets_what_is_stored_is_caught_up_once_and_gets_what_follows(tmp_path: Path) -> None:
    async def main(node: NodeProcess) -> None:
        async with es.connect(node.address) as store:
            async with store.subscribe() as stream:
                seen = [await anext(stream) for _ in range(401)]
                caught_up = [item for item in seen if isinstance(item, es.CaughtUp)]
                assert isinstance(seen[-1], es.CaughtUp)
                assert [item.sequence for item in caught_up] == [400]
                position = stream.position
                await anyio.to_thread.run_sync(fill, node, ["new-1", "new-2", "new-3"])
                more = [await anext(stream) for _ in range(3)]
            async with store.subscribe(position) as stream:
                again = [await anext(stream) for _ in range(3)]
            assert sorted(map(repr, again)) == sorted(map(repr, more))
            async with store.subscribe(es.END, ["Other"]) as stream:
                assert isinstance(await anext(stream), es.CaughtUp)
                await anyio.to_thread.run_sync(partial(fill, node, ["b"], "Other"))
                item = await anext(stream)
                assert isinstance(item, es.Event)
                assert item.aggregate_id == "b"

    with NodeProcess(tmp_path / "data", 3) as node:
        fill(node)
        trio.run(main, node)
        with blocking.connect(node.address) as store, store.subscribe() as stream:  # type: ignore[union-attr] # of several
            seen = [next(stream) for _ in range(405)]
            assert isinstance(seen[-1], es.CaughtUp)
            fill(node, ["last"])
            item = next(stream)
            assert isinstance(item, es.Event)
            assert item.aggregate_id == "last"
        assert node.terminate() == 0


def check_in_order(items: Iterable[es.Event]) -> None:
    """Each aggregate's events come once, in order."""
    versions: dict[str, list[int]] = defaultdict(list)
    for event in items:
        versions[event.aggregate_id].append(event.version)
    assert len(versions) == 24
    assert all(found == list(range(1, 31)) for found in versions.values())


def killer(node: NodeProcess, acknowledged: Callable[[], int]) -> Callable[[], None]:
    """Returns a function that kills two shards on the way to 720 acknowledged events."""
    chance = random.Random("reading")
    at, pids = sorted(chance.sample(range(50, 600), 2), reverse=True), [row.pid for row in node.rows()]

    def kill() -> None:
        if at and acknowledged() >= at[-1]:
            at.pop()
            pid = pids.pop()
            kill_process(pid)

    return kill


def test_a_subscription_loses_and_doubles_nothing_while_shards_are_killed(tmp_path: Path) -> None:
    """A shard that is started again listens somewhere else."""
    done = 0

    async def load(store: es.NetworkStore, aggregate_id: str, kill: Callable[[], None]) -> None:
        nonlocal done
        for version in range(30):
            await store.append(aggregate_id, [EVENT], version, f"{aggregate_id}/{version}")
            done += 1
            kill()

    async def main(node: NodeProcess) -> None:
        seen: list[es.Event] = []
        with trio.fail_after(DEADLINE_SECONDS):
            async with es.connect(node.address) as store, trio.open_nursery() as nursery:
                kill = killer(node, lambda: done)
                for each in IDS[:24]:
                    nursery.start_soon(load, store, each, kill)
                async with store.subscribe() as stream:
                    while len(seen) < 24 * 30:
                        item = await anext(stream)
                        if isinstance(item, es.Event):
                            seen.append(item)
        check_in_order(seen)

    with NodeProcess(tmp_path / "data", 3) as node:
        trio.run(main, node)
        with blocking.connect(node.address) as store:
            check_in_order(store.read_all())
        assert node.terminate() == 0


def test_a_blocking_subscription_survives_a_killed_shard(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3) as node, blocking.connect(node.address) as store:
        fill(node)
        with store.subscribe() as stream:  # type: ignore[union-attr] # of several shards
            seen = [next(stream) for _ in range(200)]
            pid = node.rows()[1].pid
            kill_process(pid)
            fill(node, ["later"])
            while len(seen) < 402:
                seen.append(next(stream))
        assert sorted(names(item for item in seen if isinstance(item, es.Event))) == sorted([*IDS, "later"])
        assert node.terminate() == 0


def test_a_blocking_subscription_finds_a_shard_that_was_away_when_the_client_read_the_map(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3) as node:
        fill(node)
        pid = node.rows()[1].pid
        kill_process(pid)
        wait_until(lambda: node.rows()[1].leader is None or node.rows()[1].pid not in (None, pid), "the node has noticed")
        with blocking.connect(node.address) as store:
            node.wait_for_pid(1, other_than=pid)
            with store.subscribe() as stream:  # type: ignore[union-attr] # of several shards
                seen = [next(stream) for _ in range(401)]
        assert sorted(names(item for item in seen if isinstance(item, es.Event))) == sorted(IDS)
        assert node.terminate() == 0


def test_a_blocking_subscription_that_is_closed_or_interrupted_ends_with_all_its_threads(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with NodeProcess(tmp_path / "data", 3) as node, blocking.connect(node.address) as store:
        fill(node)
        before = set(threading.enumerate())
        closed, interrupted = store.subscribe(), store.subscribe()
        seen = list(islice(closed, 401))
        reader = threading.Thread(target=lambda: seen.extend(closed), daemon=True)
        reader.start()
        closed.close()  # type: ignore[union-attr] # of several shards
        reader.join(DEADLINE_SECONDS)
        assert not reader.is_alive()
        assert len(list(islice(interrupted, 401))) == len(seen) == 401
        usual = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                next(interrupted)
        finally:
            signal.signal(signal.SIGALRM, usual)
        with pytest.raises(es.Closed, match="KeyboardInterrupt ended this iteration"):
            next(interrupted)
        wait_until(lambda: set(threading.enumerate()) <= before, "the threads end")
        assert node.terminate() == 0


def test_sequences_that_are_printed_name_the_shard_in_which_they_count(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node:
        fill(node, IDS[:30])
        with blocking.connect(node.address) as store:
            at = {event.aggregate_id: (event.sequence, shard) for shard in (0, 1) for event in store.shards[shard].read_all()}
            last = [shard.stats()["events"] for shard in store.shards.values()]
        expected = {f"#{sequence}@{shard}  {each}" for each, (sequence, shard) in at.items()}
        assert {
            "  ".join(line.split()[:2]) for line in output("tail", "--no-follow", store=node.address).splitlines()
        } == expected
        for command in (["tail", "--no-follow", "--json"], ["export"]):
            lines = [json.loads(line) for line in output(*command, store=node.address).splitlines()]
            assert {line["aggregate_id"]: (line["sequence"], line["shard"]) for line in lines} == at
        sequence, shard = at[IDS[7]]
        read = json.loads(output("read", IDS[7], "--json", store=node.address))
        assert (read["sequence"], read["shard"]) == (sequence, shard)
        assert output("read", IDS[7], store=node.address).startswith(f"#{sequence}@{shard}  v1  ")
        with start("tail", "--after", 0, "--store", node.address, stdout=PIPE, stderr=PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert {"  ".join(process.stdout.readline().decode().split()[:2]) for _ in IDS[:30]} == expected
            assert (
                process.stderr.readline()
                == f"caught up at #{last[0]}@0 #{last[1]}@1; waiting for more (Ctrl-C ends)\n".encode()
            )
            process.send_signal(signal.SIGINT)
        assert node.terminate() == 0


def test_backwards_the_command_prints_the_newest_of_all_shards_by_time(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3) as node:
        with blocking.connect(node.address) as store:
            for number in range(30):
                store.append(IDS[number], [EVENT], ANY, f"c-{number}", timestamp=(number + 1) * 1_000_000)

        def shown(*options: object) -> tuple[list[str], str]:
            printed = run("tail", "--backwards", "--json", "--position", *options, store=node.address)
            assert printed.returncode == 0, printed.stderr
            ids = [json.loads(each)["aggregate_id"] for each in printed.stdout.splitlines()]
            return ids, json.loads(printed.stderr)["position"]

        newest, position = shown("--limit", 7)
        assert newest == IDS[29:22:-1]
        older, position = shown("--limit", 3, "--before", position)
        assert older == IDS[22:19:-1]
        rest, _ = shown("--before", position)
        assert rest == IDS[19::-1]
        assert "a sequence of one shard" in refused("tail", "--backwards", "--before", 5, store=node.address, code=2)
        assert node.terminate() == 0


@pytest.mark.parametrize(("place", "said"), [("9999", "the store ends at"), ("1-00000000", "has another event there")])
def test_a_place_that_a_shard_does_not_have_is_refused_by_the_number_of_the_shard(
    tmp_path: Path, place: str, said: str
) -> None:
    with NodeProcess(tmp_path / "data", 2) as node:
        fill(node, IDS[:30])
        with blocking.connect(node.address) as store:
            after = es.Position.parse(f"p1.{store.cluster_map().cluster.hex()}.1.0-0.1-{place}")  # type: ignore[union-attr]
            with pytest.raises(es.Diverged, match=f"^shard 1: .*{said}") as refused, store.subscribe(after) as stream:
                list(stream)
            assert refused.value.fields["shard"] == 1

        async def main() -> None:
            async with es.connect(node.address) as store, store.subscribe(after) as stream:
                await gathered(stream)

        with pytest.raises(es.Diverged, match=f"^shard 1: .*{said}"):
            trio.run(main)
        assert node.terminate() == 0


def test_tail_and_export_print_the_events_of_all_shards(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3) as node:
        fill(node, IDS[:30])
        for command in (["tail", "--no-follow", "--json"], ["export"]):
            lines = output(*command, store=node.address).splitlines()
            assert sorted(json.loads(line)["aggregate_id"] for line in lines) == sorted(IDS[:30])
        with NodeProcess(tmp_path / "other", 2) as other:
            imported = output("import", "-", store=other.address, text="\n".join(lines))
            assert imported.startswith("30 events ")
            assert other.terminate() == 0
        assert "is not a position" in refused("export", "--after", "p7", store=node.address, code=2)
        assert "sequence of one shard" in refused("export", "--after", 7, store=node.address, code=2)
        assert node.terminate() == 0


def test_query_prints_what_passes_on_all_shards_and_the_position_where_a_condition_begins(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3) as node:
        fill(node, IDS[:30])
        with blocking.connect(node.address) as store:
            for each in IDS[:30:3]:
                store.append(each, [NewEvent("Marked", b"1", tags=["m:1"])], ANY)
        told = run("query", "--tag", "m:1", "--json", store=node.address)
        found = [json.loads(line) for line in told.stdout.splitlines()]
        assert sorted(each["aggregate_id"] for each in found) == sorted(IDS[:30:3])
        assert len({each["shard"] for each in found}) > 1
        position = json.loads(told.stderr)["position"]
        again = run("query", "--tag", "m:1", "--after", position, "--json", store=node.address)
        assert (again.stdout, json.loads(again.stderr)) == ("", {"position": position})
        with blocking.connect(node.address) as store:
            after, query = es.Position.parse(position), es.Query(tags=["m:1"])
            write = es.Write("b-{0}", [NewEvent("Marked", b"1", tags=["m:1"])], ANY)
            store.commit([write], unless=query, after=after, command_id="c-1")
            with pytest.raises(es.ConditionFailed):
                store.commit([write], unless=query, after=after, command_id="c-2")
        assert node.terminate() == 0
