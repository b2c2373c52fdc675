"""Cursors against a plain list: whatever the pages look like, exactly what was asked for comes out, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.client.reading import request_of
from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.model import Event, NewEvent
from eventstore.protocol.answers import Page
from eventstore.protocol.requests import Read, ReadAll
from eventstore.store.cursors import AggregateCursor, LogCursor
from eventstore.store.event_filter import event_filter
from tests.protocol.records import make_record, reference_events

sizes = st.lists(st.integers(1, 4), max_size=12)
versions = st.integers(0, 40)
limits = st.one_of(st.none(), st.integers(0, 40))


def aggregate_of(commit_sizes: list[int]) -> list[bytes]:
    records, version = [], 1
    for number, size in enumerate(commit_sizes):
        events = [NewEvent("T", b"%d" % (version + place)) for place in range(size)]
        records.append(make_record("a", f"c-{number}", events, sequence=version + 100, first_version=version))
        version += size
    return records


def read_page(records: list[bytes], cursor: AggregateCursor, records_a_page: int) -> Page:
    """What a server answers: whole records within the range, from the end that was asked for."""
    asked = request_of(cursor)
    assert isinstance(asked, Read)
    high = 2**63 if asked.to_version is None else asked.to_version
    found = [
        (record, events)
        for record in records
        if (events := reference_events(record))[-1].version >= asked.from_version and events[0].version <= high
    ]
    if asked.backwards:
        chosen, rest = found[-records_a_page:], found[:-records_a_page]
        following = rest[-1][1][-1].version if rest else None
    else:
        chosen, rest = found[:records_a_page], found[records_a_page:]
        following = rest[0][1][0].version if rest else None
    return Page(following, following is None, b"".join(record for record, _ in chosen))


@given(sizes, st.integers(1, 40), st.one_of(st.none(), versions), st.booleans(), limits, st.integers(1, 4))
def test_a_walk_over_an_aggregate_brings_exactly_the_range(
    commit_sizes: list[int], low: int, high: int | None, backwards: bool, limit: int | None, records_a_page: int
) -> None:
    records = aggregate_of(commit_sizes)
    cursor = AggregateCursor("a", low, high, backwards, limit)
    found: list[Event] = []
    while not cursor.done:
        found += cursor.take(read_page(records, cursor, records_a_page))
    everything = reference_events(b"".join(records))
    expected = [event for event in everything if event.version >= low and (high is None or event.version <= high)]
    if backwards:
        expected.reverse()
    assert found == expected[:limit]


def log_of(commits: list[tuple[str, str, int, int]]) -> list[bytes]:
    records, sequence = [], 1
    for number, (aggregate, type_, size, time) in enumerate(commits):
        events = [NewEvent(type_ if place % 2 == 0 else "other", b"x") for place in range(size)]
        records.append(make_record(aggregate, f"c-{number}", events, sequence=sequence, first_version=1, time=time))
        sequence += size
    return records


def passes(event: Event, asked: ReadAll) -> bool:
    return (
        event.sequence > asked.after
        and (not asked.types or event.type in asked.types)
        and event.aggregate_id.startswith(asked.aggregate_prefix or "")
        and (asked.from_time is None or event.timestamp >= asked.from_time)
        and (asked.to_time is None or event.timestamp <= asked.to_time)
    )


def log_request(cursor: LogCursor) -> ReadAll:
    asked = request_of(cursor)
    assert isinstance(asked, ReadAll)
    return asked


def scan_page(records: list[bytes], asked: ReadAll, records_a_page: int) -> Page:
    """What a server answers: so many records behind `after`, those without a passing event left out."""
    behind = [record for record in records if reference_events(record)[-1].sequence > asked.after]
    chosen = behind[:records_a_page]
    following = reference_events(chosen[-1])[-1].sequence if chosen else asked.after
    sent = [record for record in chosen if any(passes(event, asked) for event in reference_events(record))]
    return Page(following, len(chosen) == len(behind), b"".join(sent))


names = st.sampled_from(["order-1", "order-2", "cart-1", "é"])
log_commits = st.tuples(names, st.sampled_from(["A", "B"]), st.integers(1, 4), st.integers(0, 5))


@given(
    st.lists(log_commits, max_size=12),
    st.integers(0, 30),
    limits,
    st.one_of(st.none(), st.sampled_from(["", "order-", "é"])),
    st.one_of(st.none(), st.integers(0, 5)),
    st.one_of(st.none(), st.integers(0, 5)),
    st.one_of(st.none(), st.sampled_from([["A"], ["A", "other"], ["nothing"]])),
    st.integers(1, 4),
)
def test_a_walk_over_the_log_brings_exactly_what_passes(
    commits: list[tuple[str, str, int, int]],
    after: int,
    limit: int | None,
    prefix: str | None,
    from_time: int | None,
    to_time: int | None,
    types: list[str] | None,
    records_a_page: int,
) -> None:
    records = log_of(commits)
    cursor = LogCursor(after, limit, types, prefix, from_time, to_time)
    asked = log_request(cursor)
    found: list[Event] = []
    while not cursor.done:
        found += cursor.take(scan_page(records, log_request(cursor), records_a_page))
    expected = [event for event in reference_events(b"".join(records)) if passes(event, asked)]
    assert found == expected[:limit]


def test_nothing_is_asked_for_where_nothing_can_come() -> None:
    assert AggregateCursor("a", 1, None, False, 0).done
    assert AggregateCursor("a", 5, 4, False, None).done
    assert LogCursor(0, 0, None, None, None, None).done


@pytest.mark.parametrize(("backwards", "following"), [(False, 3), (False, 2), (True, 9), (True, 10)])
def test_an_aggregate_page_that_does_not_move_on_is_a_protocol_error(backwards: bool, following: int) -> None:
    cursor = AggregateCursor("a", 3, 9, backwards, None)
    with pytest.raises(ProtocolError):
        cursor.take(Page(following, False, b""))


@pytest.mark.parametrize("following", [None, 4, 5])
def test_a_log_page_that_does_not_move_on_is_a_protocol_error(following: int | None) -> None:
    cursor = LogCursor(5, None, None, None, None, None)
    with pytest.raises(ProtocolError):
        cursor.take(Page(following, False, b""))


def test_arguments_beyond_their_limits_are_refused_before_anything_is_sent() -> None:
    for arguments in (("", 1, None), ("a", 0, None), ("a", 1, -1), ("a", 2**63, None)):
        with pytest.raises(InvalidArgument):
            AggregateCursor(*arguments, False, None)
    with pytest.raises(InvalidArgument):
        AggregateCursor("a", 1, None, False, -1)
    with pytest.raises(InvalidArgument):
        LogCursor(-1, None, None, None, None, None)


def test_types_are_a_collection_and_not_one_string_or_none_at_all() -> None:
    assert event_filter(None).types is None
    assert event_filter({"A"}).types == {"A"}
    assert event_filter(name for name in ("A", "B", "A")).types == {"A", "B"}
    for wrong in ("OrderPlaced", b"OrderPlaced", [], (), 7, [""], [b"A"], ["\ud800"]):
        with pytest.raises(InvalidArgument) as caught:
            event_filter(wrong)  # type: ignore[arg-type] # on purpose
        assert caught.value.fields["field"] == "types"
