"""`eventstore-spark verify --against`: the same events are the same, wherever they are; the first other one is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql import SparkSession

import eventstore as es
from eventstore.cli.transfer.extract_run import extract
from eventstore.model import NewEvent
from eventstore.records.slots import slot_of
from eventstore.store.append import NewCommit
from pyspark_eventstore.jobs import verify
from pyspark_eventstore.jobs.comparison import SlotSums, compare
from tests.cluster.node_process import NodeProcess
from tests.spark.made import MadeStore, commits
from tests.spark.source.test_node_folder_slots import node_of_three

COMMITS = commits(60, aggregates=20)


def made(path: Path, wanted: list[NewCommit], *, sort: bool = False) -> str:
    store = MadeStore(path, file_size_bytes=4096 if sort else 16 * 1024)
    for commit in wanted:
        store.append_all([commit])
    if sort:
        assert store.sort() > 0
    store.close()
    return str(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return made(tmp_path_factory.mktemp("one") / "store", COMMITS)


def by_aggregate() -> list[NewCommit]:
    """The same commits, those of one aggregate after another."""
    return sorted(COMMITS, key=lambda commit: str(commit[0]), reverse=True)


@pytest.mark.heavy
@pytest.mark.long
def test_a_store_and_a_node_of_three_shards_with_the_same_events_are_equal(
    spark: SparkSession, tmp_path: Path, store: str
) -> None:
    _, events = node_of_three(tmp_path / "node", 60)
    other = made(tmp_path / "sorted", by_aggregate(), sort=True)
    for against in (str(tmp_path / "node"), other):
        compared = compare(spark, [store], [against])
        assert compared.slots == []
        assert compared.told("A", "B") == f"no differences: 20 aggregates, {len(events)} events, 20 slots"
    sums = compared.sums[0]
    assert {*sums} == {slot_of(event.aggregate_id) for event in events}
    assert sum(each.versions for each in sums.values()) == sum(event.version for event in events)
    parts = [str(tmp_path / "node" / f"shard-{number}") for number in (2, 0, 1)]
    assert compare(spark, parts, [store]).slots == []


@pytest.mark.heavy
@pytest.mark.long
def test_a_shard_that_was_extracted_equals_its_folder_until_an_event_follows(spark: SparkSession, tmp_path: Path) -> None:
    shards, _ = node_of_three(tmp_path / "node", 60)
    copy = tmp_path / "one"
    with NodeProcess(tmp_path / "node") as node:
        extracted = trio.run(extract, node.address, 1, copy, lambda *_: None)
        assert extracted.events > 0
        shard = str(tmp_path / "node" / "shard-1")
        assert compare(spark, [shard], [str(copy)]).slots == [], "live against an extract"

        async def append() -> None:
            async with es.connect(node.address) as store:
                first = await anext(aiter(store.shards[1].read_all(limit=1)))
                await store.append(first.aggregate_id, [NewEvent("More", b"")], es.EXISTS)

        trio.run(append)
        compared = compare(spark, [shard], [str(copy)])
    assert [owner for owner in compared.slots if owner in range(*shards[1].identity.slots[0])] == compared.slots != []
    assert "the first difference is in aggregate" in compared.told("A", "B")


CHANGES: dict[str, Callable[[NewCommit], Any]] = {
    "a time": lambda commit: (*commit[:3], int(str(commit[3])) + 1, commit[4]),
    "a command id": lambda commit: (*commit[:2], "other", *commit[3:]),
    "contents": lambda commit: (*commit[:4], commits(1, first=1_000)[0][4]),
}


@pytest.mark.heavy
@pytest.mark.parametrize("what", CHANGES)
def test_another_event_is_named_by_slot_aggregate_and_version(
    spark: SparkSession, tmp_path: Path, store: str, what: str
) -> None:
    place = 45  # the third commit of its aggregate
    changed = [*COMMITS[:place], CHANGES[what](COMMITS[place]), *COMMITS[place + 1 :]]
    aggregate_id = str(COMMITS[place][0])
    compared = compare(spark, [store], [made(tmp_path / "other", changed)])
    assert (compared.slots, compared.aggregate_id) == ([slot_of(aggregate_id)], aggregate_id)
    assert compared.version == 6, "one to three events a commit"


@pytest.mark.heavy
def test_events_that_one_side_lacks_are_named_and_the_command_ends_with_1(
    spark: SparkSession, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shorter = made(tmp_path / "shorter", [each for each in COMMITS[:-1] if each[0] != "acc-003"])
    compared = compare(spark, [store], [shorter])
    lacking = {"acc-003", str(COMMITS[-1][0])}
    assert compared.slots == sorted(map(slot_of, lacking))
    first = compared.slots[0]
    assert compared.aggregate_id == next(each for each in lacking if slot_of(each) == first)
    assert compared.sums[0][slot_of("acc-003")].aggregates == 1
    assert compared.sums[1].get(slot_of("acc-003"), SlotSums()) == SlotSums()
    told = compared.told("A", "B").splitlines()
    assert told[0] == f"2 slots differ, the first is slot {first}:"
    assert told[-1] == f"  the first difference is in aggregate {compared.aggregate_id}, version {compared.version}"
    monkeypatch.setattr(verify, "session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    from pyspark_eventstore.main import run

    assert run(["verify", store, "--against", shorter]) == 1
    assert "2 slots differ" in capsys.readouterr().out
    assert run(["verify", store, "--against", store]) == 0
    assert run(["verify", store, "--against", str(tmp_path / "nothing")]) == 1


@pytest.mark.heavy
def test_metadata_that_are_missing_are_not_the_same_as_empty_ones(spark: SparkSession, tmp_path: Path) -> None:
    paths = []
    for name, metadata in (("one", None), ("other", b"")):
        store = MadeStore(tmp_path / name)
        store.append("a", NewEvent("T", b"data", metadata), command_id="c")
        store.close()
        paths.append(str(tmp_path / name))
    compared = compare(spark, paths[:1], paths[1:])
    assert (compared.slots, compared.aggregate_id, compared.version) == ([slot_of("a")], "a", 1)
