"""Reactions across a split: each takes place once, at the shard that has the aggregate; what is parked goes with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from eventstore import blocking
from tests.cluster.led_shards import LedShards
from tests.server.commands import echoes
from tests.server.work.worker_thread import WorkerThread
from tests.waiting import wait_until

CALLERS = [f"caller-{number}" for number in range(12)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LedShards]:
    echoes.failing.clear()
    with LedShards(tmp_path, 1, domain="tests.server.commands.echoes:app") as cluster:
        yield cluster
    echoes.failing.clear()


def call(cluster: LedShards, number: int) -> None:
    with blocking.connect(cluster.address) as store:
        for each in CALLERS:
            store.send(echoes.Call(each, number))


def echoed(cluster: LedShards) -> Counter[tuple[str, int]]:
    with blocking.connect(cluster.address) as store:
        events = [event for event in store.read_all() if event.type == "Echoed"]
    return Counter((event.aggregate_id.removeprefix("echo-"), event.json()["number"]) for event in events)


def parked(cluster: LedShards, shard: int) -> set[str]:
    with blocking.connect(f"tcp://{cluster.leaders[shard].leader}") as store:  # type: ignore[union-attr] # there is one
        return {each.aggregate_id for each in store.reactions.parked("echo")}


def states(cluster: LedShards) -> list[str]:
    found = []
    for leader in cluster.leaders:
        with blocking.connect(f"tcp://{leader.leader}") as store:  # type: ignore[union-attr] # there is one
            found += [each.state for each in store.reactions.progress()]
    return found


@pytest.mark.parametrize("restarts", [False, True])
def test_reactions_take_place_once_and_what_is_parked_stays_with_its_aggregate(cluster: LedShards, restarts: bool) -> None:
    call(cluster, 1)
    wait_until(lambda: len(echoed(cluster)) == len(CALLERS), "all calls are echoed")
    echoes.failing.update(dict.fromkeys(CALLERS, "a bug in a reaction"))
    call(cluster, 2)
    wait_until(lambda: parked(cluster, 0) == set(CALLERS), "all are parked")
    for _ in range(2):
        cluster.split(0, restarts=restarts)
        wait_until(lambda: sum(len(parked(cluster, each)) for each in range(len(cluster.leaders))) == len(CALLERS), "split")
    call(cluster, 3)
    shards = range(len(cluster.leaders))
    wait_until(lambda: set().union(*(parked(cluster, each) for each in shards)) == set(CALLERS), "they are parked")
    assert states(cluster) == ["running"] * 3
    echoes.failing.clear()
    for shard in shards:
        with blocking.connect(f"tcp://{cluster.leaders[shard].leader}") as store:  # type: ignore[union-attr] # there is one
            store.reactions.retry("echo", who="ada", why="mended")
        assert not parked(cluster, shard)
    wait_until(lambda: len(echoed(cluster)) == 3 * len(CALLERS), "all are handled")
    assert set(echoed(cluster).values()) == {1}


@pytest.mark.parametrize("stopped", [False, True])
def test_reactions_of_a_worker_take_place_once_through_splits_whether_it_runs_or_not(tmp_path: Path, stopped: bool) -> None:
    domain, checkpoint = "tests.server.commands.echoes:app", tmp_path / "reactions.json"
    with LedShards(tmp_path, 1) as cluster, ExitStack() as stack:
        worker = stack.enter_context(WorkerThread(cluster.address, checkpoint, domain=domain))

        def call_all(number: int) -> None:
            with blocking.connect(worker.address) as store:
                for each in CALLERS:
                    store.send(echoes.Call(each, number))
            wait_until(lambda: len(echoed(cluster)) == number * len(CALLERS), "all calls are echoed")

        for number in range(1, 4):
            call_all(number)
            if stopped:
                worker.stop()
            cluster.split(0, restarts=number == 1)
            if stopped:
                worker = stack.enter_context(WorkerThread(cluster.address, checkpoint, domain=domain))
        call_all(4)
        assert set(echoed(cluster).values()) == {1}
        with blocking.connect(worker.address) as store:
            assert [each.name for each in store.reactions.progress()] == [f"echo@{number}" for number in range(4)]
            assert {each.state for each in store.reactions.progress()} == {"running"}


@pytest.mark.parametrize("side", [0, 1])
def test_a_mark_at_an_event_of_another_shard_is_where_a_reaction_goes_on(cluster: LedShards, side: int) -> None:
    call(cluster, 1)
    wait_until(lambda: len(echoed(cluster)) == len(CALLERS), "all calls are echoed")
    cluster.split(0, restarts=True)
    address = f"tcp://{cluster.leaders[side].leader}"  # type: ignore[union-attr] # there is one
    with blocking.connect(address) as store:
        own = {event.sequence for event in store.read_all()}
        foreign = next(sequence for sequence in range(1, max(own)) if sequence not in own)
        assert store.reactions.replay("echo", foreign + 1, who="ada", why="again") == foreign
    cluster.restart()
    cluster.publish()
    call(cluster, 2)
    wait_until(lambda: len(echoed(cluster)) == 2 * len(CALLERS), "both sides go on")
    assert states(cluster) == ["running"] * 2
    assert set(echoed(cluster).values()) == {1}
