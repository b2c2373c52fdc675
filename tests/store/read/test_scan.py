"""Scans yield each matching event exactly once, with any filters, limits, page sizes and windows."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from eventstore.model import NewEvent
from eventstore.query import Query
from eventstore.records.event_filter import EventFilter
from eventstore.records.event_page import decode_page
from eventstore.store.read import scan as scanning
from eventstore.store.sorted.event_index import EventIndex
from tests.meeting_pairs import meeting_pairs
from tests.store.conftest import Maker
from tests.store.stepped import SMALL, Stepped, raw

FILTERS = [
    EventFilter(),
    EventFilter(types=frozenset(["A"])),
    EventFilter(types=frozenset(["B", "C"])),
    EventFilter(types=frozenset(["Nothing"])),
    EventFilter(types=frozenset()),
    EventFilter(aggregate_prefix="order-1"),
    EventFilter(aggregate_prefix="order-"),
    EventFilter(aggregate_prefix="zzz"),
    EventFilter(aggregate_prefix="Ö"),
    EventFilter(from_time=1_030, to_time=1_060),
    EventFilter(from_time=9_999),
    EventFilter(types=frozenset(["A"]), aggregate_prefix="order-1", from_time=1_020),
    EventFilter(aggregate_id="order-1"),
    EventFilter(aggregate_id="Ö-order"),
    EventFilter(aggregate_id="order"),
    EventFilter(aggregate_id="order-1", aggregate_prefix="order-12"),
    EventFilter(types=frozenset(["A"]), aggregate_id="order-1", from_time=1_020),
    EventFilter(query=Query(tags=["t:1"])),
    EventFilter(query=Query(tags=["t:1", "u:0"]) | Query(["C"], ["t:2"]), from_time=1_020),
]


LAYOUTS = ["sorted", "unsorted", "mixed"]


def some_event(number: int, place: int) -> NewEvent:
    tags = [f"t:{(number + place) % 4}", f"u:{place % 2}"] if number % 3 else []
    return NewEvent("ABC"[(number * place) % 3], bytes([place]) * (number % 40), tags=tags)


@pytest.fixture(params=LAYOUTS)
def mixed(request: pytest.FixtureRequest, opened: Maker) -> Stepped:
    """Commits of one to seven events of three types; all files sorted, none, or the first ones."""
    store = opened()
    for number in range(90):
        events = [some_event(number, place) for place in range(1 + number % 7)]
        name = "Ö-order" if number % 11 == 0 else f"order-{number % 13}"
        store.append(raw(name, f"command-{number}", *events, when=1_000 + number))
        if request.param == "mixed" and number == 50:
            store.sort()
    if request.param == "sorted":
        store.append(raw("last", "last", NewEvent("A", bytes(5_000)), when=2_000))
        store.sort()
    return store


@pytest.mark.parametrize(
    ("mixed", "wanted", "window"), meeting_pairs(LAYOUTS, FILTERS, [1, 2, 3, 5, 4096], every=3), indirect=["mixed"]
)
def test_every_matching_event_comes_exactly_once(
    mixed: Stepped, wanted: EventFilter, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = mixed.state()
    monkeypatch.setattr(scanning, "_WINDOW_EVENTS", window)
    monkeypatch.setattr(scanning, "_SPAN_COMMITS", 3 * window)
    due = [event for event in everything if wanted.matches(event)]
    for page_bytes, events_max in itertools.product((1, 500, 1 << 20), (None, 1, 3)):
        assert mixed.read_all(0, wanted, page_bytes=page_bytes, events_max=events_max) == due
    for after in (1, 2, 3, 100, len(everything) - 1, len(everything), len(everything) + 7):
        assert mixed.read_all(after, wanted, page_bytes=500) == [event for event in due if event.sequence > after]


@pytest.mark.parametrize(
    ("mixed", "wanted", "window"), meeting_pairs(LAYOUTS, FILTERS, [1, 2, 3, 5, 4096], every=3), indirect=["mixed"]
)
def test_backwards_the_same_events_come_newest_first(
    mixed: Stepped, wanted: EventFilter, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_WINDOW_EVENTS", window)
    monkeypatch.setattr(scanning, "_SPAN_COMMITS", 3 * window)
    everything = mixed.state()
    due = [event for event in reversed(everything) if wanted.matches(event)]
    for page_bytes, events_max in itertools.product((1, 500, 1 << 20), (None, 1, 3)):
        assert mixed.read_back(wanted=wanted, page_bytes=page_bytes, events_max=events_max) == due
    for before in (0, 1, 2, 3, 100, len(everything), len(everything) + 1, len(everything) + 7):
        assert mixed.read_back(before, wanted, page_bytes=500) == [event for event in due if event.sequence < before]


def test_a_page_ends_where_a_commit_does(mixed: Stepped, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that ignores `next` when it takes the events of a page must not get one twice."""
    monkeypatch.setattr(scanning, "_WINDOW_EVENTS", 3)
    ends = {view[-1].sequence for _, group in itertools.groupby(mixed.state(), lambda e: e.command_id) if (view := list(group))}
    for page_bytes in (1, 100, 1 << 20):
        after, at_end = 0, False
        while not at_end:
            page = mixed.engine.scan(after, EventFilter(), page_bytes, None)
            assert page.next in ends
            assert decode_page(page.records)[-1].sequence == page.next
            after, at_end = page.next, page.at_end


def test_a_page_holds_only_commits_with_a_matching_event(mixed: Stepped) -> None:
    wanted = EventFilter(types=frozenset(["C"]))
    after, at_end = 0, False
    while not at_end:
        page = mixed.engine.scan(after, wanted, 400, None)
        for _, group in itertools.groupby(decode_page(page.records), lambda event: event.command_id):
            assert any(wanted.matches(event) for event in group)
        after, at_end = page.next, page.at_end


def test_a_page_examines_a_bounded_number_of_events(mixed: Stepped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_WINDOW_EVENTS", 4)
    monkeypatch.setattr(scanning, "EXAMINED_EVENTS_MAX", 10)
    page = mixed.engine.scan(0, EventFilter(from_time=9_999), 1 << 20, None)
    assert page.records == b""
    assert not page.at_end
    assert 10 <= page.next < 30
    assert mixed.read_all(0, EventFilter(types=frozenset(["C"]))) == [event for event in mixed.state() if event.type == "C"]


def test_events_of_one_aggregate_are_read_without_those_of_others(opened: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    for number in range(40):
        store.append(raw(f"order-{number % 20}", f"c-{number}", NewEvent("A")))
        if number == 19:
            store.sort()
    read: list[int] = []
    check, walk = scanning.check_records, scanning.read_commits
    monkeypatch.setattr(scanning, "check_records", lambda *given: read.append(len(given[3])) or check(*given))
    monkeypatch.setattr(scanning, "read_commits", lambda *given: read.append(len(given[2])) or walk(*given))
    page = store.engine.scan(0, EventFilter(aggregate_id="order-1"), 1 << 20, None)
    assert [(event.aggregate_id, event.version) for event in decode_page(page.records)] == [("order-1", 1), ("order-1", 2)]
    assert page.at_end
    assert read == [1, 1]


def test_a_limit_on_events_bounds_the_page(mixed: Stepped) -> None:
    for events_max in (1, 2, 5):
        page = mixed.engine.scan(0, EventFilter(types=frozenset(["A"])), 1 << 20, events_max)
        matching = [event for event in decode_page(page.records) if event.type == "A"]
        assert events_max <= len(matching) < events_max + 7


def test_a_scan_of_an_empty_store_is_at_its_end(opened: Maker) -> None:
    page = opened().engine.scan(0, EventFilter(), 1 << 20, None)
    assert (page.records, page.next, page.at_end) == (b"", 0, True)


def test_a_scan_does_not_see_unwritten_commits(mixed: Stepped) -> None:
    before = mixed.state()
    mixed.engine.append_batch([raw("order-1", "pending")])
    assert mixed.state() == before
    mixed.persist()
    assert len(mixed.state()) == len(before) + 1


def test_the_rows_of_tags_are_found_once_for_all_pages_of_a_reader(opened: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    store, query = opened(settings=replace(SMALL, file_size_bytes=1 << 20)), Query(tags=["t:1"])
    for number in range(0, 8_000, 100):
        store.append(*(raw(f"a-{each % 9}", f"c-{each}", NewEvent("A", tags=["t:1"])) for each in range(number, number + 100)))
    store.sort()
    found: list[int] = []
    look_up = EventIndex.rows_with_tags
    monkeypatch.setattr(EventIndex, "rows_with_tags", lambda self, tags: found.append(1) or look_up(self, tags))
    assert len(store.read_all(wanted=EventFilter(query=query), page_bytes=4_000)) == 8_000
    assert len(store.read_back(wanted=EventFilter(query=query), page_bytes=4_000)) == 8_000
    assert len(found) == sum(header.sorted for header in store.engine.files.headers)
