"""Tags in the engine: found through sorting, restarts and rollbacks; conditions see all that is on its way to the disk."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio

import eventstore as es
from eventstore.errors import ConditionFailed, Corrupt, Diverged, InvalidArgument, StorageFull, UnsupportedVersion
from eventstore.event_identity import LogPosition
from eventstore.model import ANY, Event, NewEvent
from eventstore.query import Query
from eventstore.records.event_filter import EventFilter
from eventstore.records.raw_commit import JointWrites, Unless
from eventstore.records.slots import slot_of
from eventstore.settings.setting_declaration import MIB
from eventstore.settings.store import StoreSettings
from eventstore.store.append import COMMITTED, DUPLICATE, REFUSED, NewCommit
from eventstore.store.sorted.event_index import open_index
from eventstore.store.verification.check_index import check_index
from eventstore.store.verification.file_contents import read_contents
from eventstore.store.verification.findings import Findings
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker
from tests.store.stepped import EVENTS, SMALL, Stepped, events_bytes, raw, together

TAGS = [f"t:{number}" for number in range(6)]


def some_event(rng: Random, tags: int = 3) -> NewEvent:
    metadata = rng.choice((None, b"", b"m" * rng.randint(1, 20)))
    return NewEvent(rng.choice("ABC"), bytes(rng.randint(0, 40)), metadata, rng.sample(TAGS, rng.randint(0, tags)))


def some_query(rng: Random) -> Query:
    query = Query(rng.sample("ABCD", rng.choice((0, 0, 1, 2))), rng.sample(TAGS, rng.choice((0, 1, 1, 2))))
    return query if rng.random() < 0.6 else query | some_query(rng)


def some_commit(rng: Random, number: int) -> NewCommit:
    events = [some_event(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    if rng.random() < 0.3:
        names = rng.sample("abcdefgh", rng.randint(1, 3))
        return together(f"c-{number}", *((name, ANY, events) for name in names))
    return raw(rng.choice("abcdefgh"), f"c-{number}", *events)


def unless(query: Query, after: int, aggregate_id: str, command_id: str, identity: str = "") -> NewCommit:
    condition = Unless(query, LogPosition(after, identity), aggregate_id)
    writes = JointWrites(((aggregate_id, ANY, events_bytes([NewEvent("Z", b"")])),), (), condition)
    return writes, ANY, command_id, 1, b""


def check_queries(store: Stepped, rng: Random, rounds: int) -> None:
    events = store.read_all()
    for _ in range(rounds):
        wanted, after = EventFilter(query=some_query(rng)), rng.randint(0, len(events))
        passing = [event for event in events if wanted.query is not None and wanted.query.matches(event)]
        pages = {"page_bytes": rng.choice((1, 300, 1 << 20)), "events_max": rng.choice((None, 1, 3))}
        assert store.read_all(after, wanted, **pages) == [each for each in passing if each.sequence > after]
        assert store.read_back(after, wanted, **pages) == [each for each in reversed(passing) if each.sequence < after]


def noted_tags(store: Stepped) -> list[dict[str, list[int]]]:
    """Returns what memory says of the tags, in a form to be compared."""
    return [{tag: list(ordinals) for tag, ordinals in file.tags.items()} for file in store.engine.tail.files]


@pytest.mark.parametrize("seed", range(8))
def test_queries_find_the_same_before_and_after_sorting_and_restarts(opened: Maker, seed: int) -> None:
    rng, store = Random(seed), opened()
    for number in range(160):
        store.append(*(some_commit(rng, 3 * number + place) for place in range(rng.randint(1, 3))))
        if number % 40 == 30:
            check_queries(store, rng, 6)
            store.sort(files=rng.randint(0, 3))
            check_queries(store, rng, 6)
        if number % 50 == 49:
            before = noted_tags(store)
            store = store.reopen()
            assert noted_tags(store) == before
    store.sort()
    check_queries(store, rng, 20)


@pytest.mark.parametrize("seed", range(8))
def test_a_condition_is_that_of_a_list_of_all_events_durable_or_not(opened: Maker, seed: int) -> None:
    rng, store, failed = Random(seed), opened(), 0
    for number in range(120):
        store.append(*(some_commit(rng, 3 * number + place) for place in range(rng.randint(0, 3))))
        if rng.random() < 0.1:
            store.sort(files=1)
        pending = [some_commit(rng, 10_000 + 3 * number + place) for place in range(rng.randint(0, 3))]
        query, name = some_query(rng), rng.choice("abcdefgh")
        after = rng.randint(0, store.engine.barrier) if rng.random() < 0.3 else max(0, store.engine.barrier - rng.randint(0, 9))
        *_, (status, outcome, _) = store.engine.append_batch([*pending, unless(query, after, name, f"u-{number}")])
        store.persist()
        passing = [
            event
            for event in store.read_all(after)
            if event.type != "Z" and query.matches(event) and slot_of(event.aggregate_id) == slot_of(name)
        ]
        zs = [each for each in store.read_all(after) if each.type == "Z" and each.command_id != f"u-{number}"]
        if any(query.matches(each) for each in zs):
            continue
        failed += status == REFUSED
        assert (status == REFUSED) == bool(passing)
        if passing:
            assert isinstance(outcome, ConditionFailed)
            assert outcome.fields["sequence"] == passing[0].sequence
    assert 10 < failed < 110


def test_a_condition_is_checked_where_it_was_looked_ahead_to(opened: Maker) -> None:
    store, query = opened(), Query(tags=["t:1"])
    for number in range(100):
        store.append(raw("a", f"c-{number}", NewEvent("A", bytes(100), tags=["t:2"])))
    store.append(raw("a", "c", NewEvent("A", b"", tags=["t:1"])))
    store.sort()
    condition = Unless(query, LogPosition(0), "a")
    assert not store.engine.is_quick(condition)
    found = store.engine.look_ahead(condition)
    while found.found is None:
        found = store.engine.look_ahead(found)
    assert found.found.sequence == 101
    assert store.engine.is_quick(found)
    passed = store.engine.look_ahead(condition._replace(after=LogPosition(101)))
    assert (passed.found, passed.after) == (None, LogPosition(101))


@pytest.mark.parametrize("query", [Query(tags=["t:1"]), Query(["A"])])
def test_events_of_other_scopes_are_passed_over_by_the_page_not_one_by_one(opened: Maker, query: Query) -> None:
    store = opened()
    for number in range(0, 400, 10):
        of_others = [raw(f"{{{each}}}", f"c-{each}", NewEvent("A", b"", tags=["t:1"])) for each in range(number, number + 10)]
        store.append(*of_others)
    store.sort()
    condition, pages = Unless(query, LogPosition(0), "{other}"), 0
    while condition.after.sequence < store.engine.visible_sequence:
        condition, pages = store.engine.look_ahead(condition), pages + 1
    assert condition.found is None
    assert pages <= 3


def test_a_condition_on_tags_that_are_frequent_each_is_for_a_thread_though_few_events_have_both(opened: Maker) -> None:
    """What takes long is to compare the commits of the two, not to read those that are found."""
    store = opened(settings=replace(SMALL, file_size_bytes=1 << 20))
    for number in range(100):
        store.append(raw("a", f"c-{number}", NewEvent("A", tags=["t:1", "t:3"] if number % 50 else ["t:2"])))
    for tags, quick in ((["t:1"], False), (["t:1", "t:3"], False), (["t:1", "t:2"], True), (["t:1", "t:9"], True)):
        assert store.engine.is_quick(Unless(Query(tags=tags), LogPosition(0), "b")) == quick


def test_a_condition_that_large_commits_have_to_be_compared_with_is_not_quick(opened: Maker) -> None:
    store = opened()
    for number, events in enumerate(([NewEvent("A", bytes(300_000), tags=["t"])], [NewEvent("A", b"", tags=["u"])] * 3_000)):
        store.append(raw("a", f"c-{number}", *events))
    store.append(raw("a", "c-9", NewEvent("A", b"", tags=["t", "u"])))
    end = store.engine.barrier
    for tag, after, quick in (("t", 0, False), ("t", 1, True), ("u", 1, True), ("u", end - 1, True)):
        assert store.engine.is_quick(Unless(Query(tags=[tag]), LogPosition(after), "a")) is quick
    two = Query(tags=["u"]) | Query(["B"], ["u"])
    assert not store.engine.is_quick(Unless(two, LogPosition(1), "a"))


def test_a_place_beyond_the_end_or_of_another_history_is_refused(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "c-1"), raw("a", "c-2"))
    (first, second) = store.read_all()
    for after, identity in ((3, ""), (2, LogPosition.at(first).identity), (1, "00000000")):
        ((status, error, _),) = store.append(unless(Query(tags=["t"]), after, "a", "c-3", identity))
        assert (status, type(error)) == (REFUSED, Diverged)
    ((status, *_),) = store.append(unless(Query(tags=["t"]), 2, "a", "c-3", LogPosition.at(second).identity))
    assert status == COMMITTED


@pytest.mark.parametrize("place", ["last", "middle"])
def test_a_place_whose_file_is_sorted_before_the_check_is_still_compared_with_its_event(opened: Maker, place: str) -> None:
    """The file was in memory when the condition was found quick; a sort released it before the commit was checked."""
    store, number = opened(), 0
    while not store.unsorted():
        store.append(raw("a", f"c-{number}", NewEvent("A", bytes(100), tags=["t:2"])))
        number += 1
    last = store.engine.tail.files[0].next_sequence - 1
    event = store.read_all()[(last if place == "last" else last // 2) - 1]
    known = LogPosition.at(event)
    assert store.engine.is_quick(Unless(Query(tags=["t:1"]), known, "a"))
    store.sort()
    refused, kept = store.append(
        unless(Query(tags=["t:1"]), event.sequence, "a", "u-1", "00000000"),
        unless(Query(tags=["t:1"]), event.sequence, "a", "u-2", known.identity),
    )
    assert (refused[0], type(refused[1])) == (REFUSED, Diverged)
    assert kept[0] == COMMITTED


def test_a_repetition_is_answered_before_its_condition_is_looked_at(opened: Maker) -> None:
    store, query = opened(), Query(tags=["t"])
    store.append(unless(query, 0, "a", "c-1"))
    store.append(raw("a", "c-2", NewEvent("A", b"", tags=["t"])))
    ((status, *_),) = store.append(unless(query, 0, "a", "c-1"))
    assert status == DUPLICATE


def test_what_is_rolled_back_has_no_tags_left(opened: Maker) -> None:
    store = opened()
    rng = Random(3)
    store.append(*(some_commit(rng, number) for number in range(8)))
    before = noted_tags(store)
    for number in range(3):
        store.engine.append_batch([some_commit(rng, 100 + 10 * number + place) for place in range(5)])
        if number == 1:
            store.engine.take()
    store.engine.roll_back(StorageFull("full", path="/data"))
    assert noted_tags(store)[: len(before)] == before
    assert len(noted_tags(store)) == len(before)
    check_queries(store, rng, 10)


def test_a_store_of_format_1_takes_no_tags(tmp_path: Path) -> None:
    store = Stepped(SimulatedDisk(0), tmp_path / "lmdb", epoch=1)
    event = NewEvent("A", b"", tags=["t"])
    for commit in (raw("a", "c-1", event), together("c-1", ("a", ANY, [event]))):
        ((status, error, _),) = store.append(commit)
        assert status == REFUSED
        assert isinstance(error, UnsupportedVersion)
        assert "--upgrade-format" in str(error)
    assert store.read_all() == []
    store.abandon()


@pytest.mark.parametrize(
    "envelope",
    [
        None,
        b"",
        b"\x01",
        b"\x01\x00",
        b"\x01\x01\x01",
        b"\x01\x01\x01a?",
        b"\x03\x01\x01a",
        b"\x80\x01\x01a",
        b"\x01\x02\x01b\x01a",
        b"\x01\x02\x01a\x01a",
        b"\x01\x01\x01\n",
        b"\x01\x01\x01\xff",
        b"\x01\x21" + b"".join(b"\x02%02d" % number for number in range(33)),
    ],
)
def test_an_envelope_from_outside_is_as_the_client_makes_it_or_refused(opened: Maker, envelope: bytes | None) -> None:
    store = opened()
    event = tuple.__new__(NewEvent, (4, "A", b"", envelope))
    for commit in (raw("a", "c-1", event), raw("a", "c-1", NewEvent("A", b""), event)):
        ((status, error, _),) = store.append(commit)
        assert status == REFUSED
        assert isinstance(error, InvalidArgument)
        assert error.fields["field"] == "tags"
    assert store.read_all() == []


def test_a_flipped_bit_in_the_columns_of_tags_is_never_an_answer_and_is_found_by_a_verification(opened: Maker) -> None:
    store, rng = opened(), Random(5)
    for number in range(60):
        store.append(some_commit(rng, number))
    store.sort()
    expected = {tag: store_answer(store, tag) for tag in TAGS}
    store.close()
    disk, path = store.disk, EVENTS / "0000000001.index"
    assert isinstance(disk, SimulatedDisk)
    index = open_index(disk, path)
    for name in ("tag_hash", "tag_ends", "tag_rows", "tag_frames"):
        place = index.header.columns[name]
        for offset in range(place.offset, place.offset + place.size, 7):
            disk.flip(path, offset, 1)
            store = opened(disk)
            for tag in TAGS:
                with suppress(Corrupt):
                    assert store_answer(store, tag) == expected[tag]
            folder, findings = store.engine.files.folder, Findings()
            contents = read_contents(folder, 1, None, findings, lambda _: None, b"")
            check_index(folder, contents, True, findings)
            assert any(f"column {name} does not match" in line for line in map(str, findings.kept))
            store.close()
            disk.flip(path, offset, 1)


def store_answer(store: Stepped, tag: str) -> list[Event]:
    return store.read_all(wanted=EventFilter(query=Query(tags=[tag])))


def test_the_index_of_a_file_with_tags_is_small(opened: Maker) -> None:
    sizes = []
    for tags in (lambda _: [], lambda number: [f"course:{number % 50}"], lambda number: [f"student:{number}"]):
        store = opened(SimulatedDisk(0), f"lmdb-{len(sizes)}", settings=replace(SMALL, file_size_bytes=1 << 20))
        for number in range(4000):
            store.engine.append_batch([raw(f"a-{number % 7}", f"c-{number}", NewEvent("A", bytes(300), tags=tags(number)))])
        store.persist()
        store.sort(files=1)
        index = store.engine.files.index(1)
        added = [place.size for name, place in index.header.columns.items() if name.startswith("tag_")]
        sizes.append(sum(added) / index.header.rows)
    assert sizes[0] == 0
    assert sizes[1] <= 6
    assert sizes[2] <= 10


async def test_a_file_with_very_many_tags_is_completed_before_it_is_full(tmp_path: Path) -> None:
    settings = StoreSettings(tag_memory_bytes=MIB)
    async with es.open_store(tmp_path, settings) as store:
        for batch in range(8):
            names = [f"{batch}-{each}" for each in range(100)]
            writes = [[_tagged(f"a{{t}}-{name}", f"a{name}"), _tagged(f"b{{t}}-{name}", f"b{name}")] for name in names]
            async with trio.open_nursery() as nursery:
                for each in writes:
                    nursery.start_soon(store.commit, each)
        files = store.engine.files.headers
        assert len(files) > 1
        assert max(len(file.tags) for file in store.engine.tail.files) < 2 * MIB // 160
        events, _ = await store.query(es.Query(tags=["a3-50-7"]) | es.Query(tags=["b7-99-0"]))
        assert [event.aggregate_id for event in events] == ["a{t}-3-50", "b{t}-7-99"]
        log = [event async for event in store.read_all()]
    assert [event.commit_continues for event in log] == [True, False] * 800
    async with es.open_store(tmp_path, settings) as store:
        assert (await store.append("more", [es.NewEvent("E", {})], 0)).sequence == 1601


def _tagged(aggregate_id: str, tags: str) -> es.Write:
    return es.Write(aggregate_id, [NewEvent("E", b"", tags=[f"{tags}-{number}" for number in range(8)])], 0)
