"""A shard that was split hands out its own events of those before the split, and everything after it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventstore.aggregate_info import id_range
from eventstore.event_identity import LogPosition
from eventstore.model import ANY, Event, NewEvent
from eventstore.records.commit import NO_FINGERPRINT
from eventstore.records.event_filter import LOG_RECORDS, EventFilter
from eventstore.records.event_page import decode_page
from eventstore.records.slots import SLOTS, slot_of
from eventstore.records.splits import Split, slot_filter
from eventstore.store.read import scan as scanning
from eventstore.store.read.reader_place import check_place
from tests.meeting_pairs import meeting_pairs
from tests.store.conftest import Maker
from tests.store.stepped import Stepped, events_bytes, raw

NAMES = [*(f"order-{number}" for number in range(17)), "Ö-order", "out-{order-1}", "$parked{order-2}", "$local"]
LOG_RECORD = f"{LOG_RECORDS}7}}"
FILTERS = [
    EventFilter(),
    EventFilter(types=frozenset(["A"])),
    EventFilter(aggregate_prefix="order-1"),
    EventFilter(aggregate_id="order-1"),
    EventFilter(aggregate_id="order-2"),
    EventFilter(types=frozenset(["A"]), aggregate_prefix="order-", from_time=1_030),
]


LAYOUTS = ["sorted", "unsorted", "mixed"]


@pytest.fixture(params=LAYOUTS)
def split(request: pytest.FixtureRequest, opened: Maker) -> Stepped:
    store = opened()
    for number in range(90):
        events = [NewEvent("ABC"[(number * place) % 3], bytes([place]) * (number % 40)) for place in range(1 + number % 7)]
        store.append(raw(NAMES[number * 7 % len(NAMES)], f"command-{number}", *events, when=1_000 + number))
        if request.param == "mixed" and number == 50:
            store.sort()
    if request.param == "sorted":
        store.append(raw("last", "last", NewEvent("A", bytes(5_000)), when=2_000))
        store.sort()
    return store


def commit_end(store: Stepped, sequence: int) -> int:
    """Returns the last sequence of a commit that is not larger: a split is between two commits."""
    state = store.state()
    ends = [one.sequence for one, after in itertools.pairwise(state) if one.command_id != after.command_id]
    return max((end for end in [*ends, len(state)] if end <= sequence), default=0)


@pytest.mark.parametrize(
    ("split", "wanted", "through", "window"),
    meeting_pairs(LAYOUTS, FILTERS, [0, 1, 90, 10_000], [1, 5, 4096], every=3),
    indirect=["split"],
)
def test_both_sides_of_a_split_hand_out_each_event_before_it_once(
    split: Stepped, wanted: EventFilter, through: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_WINDOW_EVENTS", window)
    through = commit_end(split, through)
    everything = [event for event in split.state() if wanted.matches(event)]
    splits = (Split(2, 0, 1, through),)
    sides = [slot_filter(0, ((0, 2000),), splits), slot_filter(1, ((2001, SLOTS - 1),), splits)]
    for own in sides:
        assert own is not None
        due = [event for event in everything if event.sequence > through or slot_of(event[0]) in own.slots]
        for page_bytes, events_max in itertools.product((1, 500, 1 << 20), (None, 1, 3)):
            assert split.read_all(0, wanted, page_bytes=page_bytes, events_max=events_max, own=own) == due
            back = split.read_back(wanted=wanted, page_bytes=page_bytes, events_max=events_max, own=own)
            assert back == due[::-1]
        for after in (1, 17, through, len(everything) + 7):
            assert split.read_all(after, wanted, own=own) == [event for event in due if event.sequence > after]
    both = [event for own in sides for event in split.read_all(0, wanted, own=own) if event.sequence <= through]
    assert sorted(both, key=lambda event: event.sequence) == [event for event in everything if event.sequence <= through]


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("window", [1, 4096])
def test_readers_get_the_commits_of_the_log_itself_only_if_they_ask(
    opened: Maker, sort: bool, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_WINDOW_EVENTS", window)
    store = opened()
    for number in range(30):
        if number in (0, 11):  # its files begin with them
            store.engine.front.end_chunk()
        name = LOG_RECORD if number in (0, 11) else NAMES[number % 7]
        events = events_bytes([NewEvent("A", b"1"), NewEvent("B", b"2")]), 2, NO_FINGERPRINT  # as the server's own are given
        store.append((name, ANY, f"command-{number}", 1_000 + number, events))
    if sort:
        store.append(raw("last", "last", NewEvent("A", bytes(5_000)), when=2_000))
        store.sort()
    everything = decode_page(store.engine.scan(0, EventFilter(), 1 << 20, None, whole=True).records)
    others = [event for event in everything if event.aggregate_id != LOG_RECORD]
    assert len(everything) == len(others) + 4

    def read(wanted: EventFilter, page_bytes: int = 1 << 20) -> list[Event]:
        found, after, at_end = list[Event](), 0, False
        while not at_end:
            page = store.engine.scan(after, wanted, page_bytes, None)
            found += wanted.select(decode_page(page.records), after)
            after, at_end = page.next, page.at_end
        return found

    for wanted in (
        EventFilter(),
        EventFilter(types=frozenset(["B"])),
        EventFilter(aggregate_prefix="order-1"),
        EventFilter(to_time=1_015),
    ):
        for page_bytes in (1, 1 << 20):
            assert read(wanted, page_bytes) == [event for event in others if wanted.matches(event)]
    for wanted in (EventFilter(aggregate_id=LOG_RECORD), EventFilter(aggregate_prefix="$")):
        assert read(wanted) == [event for event in everything if wanted.matches(event)]
    assert LOG_RECORD not in [each for each, _ in store.engine.list_aggregates(id_range(None, None, 100), 100)]
    assert LOG_RECORD in [each for each, _ in store.engine.list_aggregates(id_range("$", None, 100), 100)]


def test_a_place_is_checked_also_at_an_event_that_was_given_away(split: Stepped) -> None:
    split.engine.slot_filter = slot_filter(0, ((0, 0),), (Split(2, 0, 1, 10_000),))
    for event in split.state():
        check_place(split.engine.scan, LogPosition.at(event))


def test_aggregates_that_were_given_away_are_not_listed(split: Stepped) -> None:
    everything = split.engine.list_aggregates(id_range(None, None, 1_000), 1_000)
    found = []
    for shard, slots in enumerate(([0, 2000], [2001, SLOTS - 1])):
        own = slot_filter(shard, [(slots[0], slots[1])], (Split(2, 0, 1, 10_000),))
        rows = split.engine.list_aggregates(id_range(None, None, 1_000), 1_000, own)
        paged, after = [], None
        while page := split.engine.list_aggregates(id_range(None, after, 2), 2, own):
            paged += page
            after = page[-1].aggregate_id
        assert paged == rows
        found += rows
    assert sorted(found) == sorted(everything)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_filter_that_is_replaced_is_not_answered_from_what_the_one_before_knew(split: Stepped, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, SLOTS - 1))
    through = commit_end(split, data.draw(st.integers(0, 400)))
    own = slot_filter(0, ((low, SLOTS - 1),), (Split(2, 0, 1, through),))
    assert own is not None
    assert split.read_all(own=own) == [event for event in split.state() if own.passes(event[0], event.sequence)]
    page = split.engine.scan(0, EventFilter(), 300, None, own=own)
    assert all(own.passes(event[0], event.sequence) for event in decode_page(page.records))
