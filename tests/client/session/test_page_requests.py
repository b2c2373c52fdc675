"""Cursors against a plain list: with pages of any form, exactly the requested events come out, in order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.client.session.page_requests import many_request, request_of
from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.event_identity import LogPosition
from eventstore.model import Event, NewEvent
from eventstore.protocol.answers import Page
from eventstore.protocol.requests import Read, ReadAll
from eventstore.records.cursors import AggregateCursor, LogCursor, ManyCursor
from eventstore.records.event_filter import event_filter
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
    """Returns a server's answer: whole records within the range, from the requested end."""
    request = request_of(cursor)
    assert isinstance(request, Read)
    high = 2**63 if request.to_version is None else request.to_version
    found = [
        (record, events)
        for record in records
        if (events := reference_events(record))[-1].version >= request.from_version and events[0].version <= high
    ]
    if request.backwards:
        chosen, rest = found[-records_a_page:], found[:-records_a_page]
        following = rest[-1][1][-1].version if rest else None
    else:
        chosen, rest = found[:records_a_page], found[records_a_page:]
        following = rest[0][1][0].version if rest else None
    return Page(following, following is None, b"".join(record for record, _ in chosen))


@given(sizes, st.integers(1, 40), st.one_of(st.none(), versions), st.booleans(), limits, st.integers(1, 4))
def test_a_walk_over_an_aggregate_returns_exactly_the_range(
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


def passes(event: Event, request: ReadAll) -> bool:
    return (
        event.sequence > request.after
        and (not request.types or event.type in request.types)
        and event.aggregate_id.startswith(request.aggregate_prefix or "")
        and (request.from_time is None or event.timestamp >= request.from_time)
        and (request.to_time is None or event.timestamp <= request.to_time)
    )


def log_request(cursor: LogCursor) -> ReadAll:
    request = request_of(cursor)
    assert isinstance(request, ReadAll)
    return request


def scan_page(records: list[bytes], request: ReadAll, records_a_page: int) -> Page:
    """Returns a server's answer: some of the records after `after`, without those that have no passing event."""
    later = [record for record in records if reference_events(record)[-1].sequence > request.after]
    chosen = later[:records_a_page]
    following = reference_events(chosen[-1])[-1].sequence if chosen else request.after
    sent = [record for record in chosen if any(passes(event, request) for event in reference_events(record))]
    return Page(following, len(chosen) == len(later), b"".join(sent))


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
def test_a_walk_over_the_log_returns_exactly_the_events_that_pass(
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
    cursor = LogCursor(after, limit, event_filter(types, prefix, from_time, to_time))
    request = log_request(cursor)
    found: list[Event] = []
    while not cursor.done:
        found += cursor.take(scan_page(records, log_request(cursor), records_a_page))
    expected = [event for event in reference_events(b"".join(records)) if passes(event, request)]
    assert found == expected[:limit]


def test_nothing_is_requested_for_an_empty_range() -> None:
    assert AggregateCursor("a", 1, None, False, 0).done
    assert AggregateCursor("a", 5, 4, False, None).done
    assert LogCursor(0, 0).done


@pytest.mark.parametrize(("backwards", "following"), [(False, 3), (False, 2), (True, 9), (True, 10)])
def test_an_aggregate_page_that_does_not_advance_is_a_protocol_error(backwards: bool, following: int) -> None:
    cursor = AggregateCursor("a", 3, 9, backwards, None)
    with pytest.raises(ProtocolError):
        cursor.take(Page(following, False, b""))


@given(sizes, st.integers(1, 40), st.booleans(), st.integers(1, 4), st.data())
def test_an_aggregate_page_that_lacks_a_commit_is_a_protocol_error(
    commit_sizes: list[int], low: int, backwards: bool, records_a_page: int, data: st.DataObject
) -> None:
    records = aggregate_of(commit_sizes)
    cursor = AggregateCursor("a", low, None, backwards, None)
    due = [record for record in records if reference_events(record)[-1].version >= low]
    removable = due[:-1]  # without the last one it is a shorter aggregate
    if not removable:
        return
    lost = data.draw(st.sampled_from(removable))
    left = [record for record in records if record != lost]

    def walk() -> None:
        while not cursor.done:
            cursor.take(read_page(left, cursor, records_a_page))

    with pytest.raises(ProtocolError, match="lacks events"):
        walk()


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("order", [[0, 1, 1, 3], [0, 2, 1, 3], [0, 3, 2, 3], [1, 0, 2, 3]])
def test_an_aggregate_page_with_as_many_events_but_not_each_version_once_is_a_protocol_error(
    order: list[int], backwards: bool
) -> None:
    records = aggregate_of([1, 1, 1, 1])
    cursor = AggregateCursor("a", 1, None, backwards, None)
    with pytest.raises(ProtocolError, match="lacks events"):
        cursor.take(Page(None, True, b"".join(records[place] for place in order)))


@pytest.mark.parametrize("backwards", [False, True])
def test_a_page_of_another_aggregate_is_a_protocol_error(backwards: bool) -> None:
    cursor = AggregateCursor("b", 1, None, backwards, None)
    with pytest.raises(ProtocolError, match="another aggregate"):
        cursor.take(Page(None, True, b"".join(aggregate_of([2, 1]))))


@pytest.mark.parametrize("backwards", [False, True])
def test_an_empty_page_in_the_middle_of_an_aggregate_is_a_protocol_error(backwards: bool) -> None:
    records = aggregate_of([1, 1, 1, 1])
    cursor = AggregateCursor("a", 1, None, backwards, None)
    cursor.take(read_page(records, cursor, 2))
    with pytest.raises(ProtocolError, match="lacks events"):
        cursor.take(Page(None, True, b""))


@pytest.mark.parametrize("following", [None, 4, 5])
def test_a_log_page_that_does_not_advance_is_a_protocol_error(following: int | None) -> None:
    cursor = LogCursor(5, None)
    with pytest.raises(ProtocolError):
        cursor.take(Page(following, False, b""))


def test_arguments_beyond_their_limits_are_refused_before_anything_is_sent() -> None:
    for arguments in (("", 1, None), ("a", 0, None), ("a", 1, -1), ("a", 2**63, None)):
        with pytest.raises(InvalidArgument):
            AggregateCursor(*arguments, False, None)
    with pytest.raises(InvalidArgument):
        AggregateCursor("a", 1, None, False, -1)
    with pytest.raises(InvalidArgument):
        LogCursor(-1, None)


def test_types_are_a_collection_neither_one_string_nor_empty() -> None:
    assert event_filter(None).types is None
    assert event_filter({"A"}).types == {"A"}
    assert event_filter(name for name in ("A", "B", "A")).types == {"A", "B"}
    for wrong in ("OrderPlaced", b"OrderPlaced", [], (), 7, [""], [b"A"], ["\ud800"]):
        with pytest.raises(InvalidArgument) as caught:
            event_filter(wrong)  # type: ignore[arg-type] # on purpose
        assert caught.value.fields["field"] == "types"


commits_of_some = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 3)), max_size=20)


@given(commits_of_some, st.permutations("abcde"), st.integers(0, 20), st.integers(1, 4))
def test_a_walk_over_several_aggregates_returns_each_up_to_the_place(
    commits: list[tuple[str, int]], ids: list[str], commits_read: int, records_a_page: int
) -> None:
    records, log, through, versions = list[bytes](), list[Event](), 0, Counter[str]()
    for number, (name, size) in enumerate(commits):
        events = [NewEvent("T", b"x")] * size
        made = make_record(name, f"c-{number}", events, sequence=len(log) + 1, first_version=versions[name] + 1)
        versions[name] += size
        log += reference_events(made)
        records.append(made)
        through = len(log) if number < commits_read else through
    cursor = ManyCursor(ids)
    while not cursor.done:
        rows = [
            record
            for name, low in many_request(cursor, None, 0).aggregates
            for record in records
            if (last := reference_events(record)[-1]).aggregate_id == name and last.version >= low and last.sequence <= through
        ]
        cursor.take(Page(through, len(rows) <= records_a_page, b"".join(rows[:records_a_page])))
    stored = log[:through]
    assert cursor.events == {name: [each for each in stored if each.aggregate_id == name] for name in ids}
    assert cursor.place == LogPosition(through)


def test_a_page_of_several_aggregates_that_lacks_events_or_is_of_another_place_is_refused() -> None:
    first = make_record("a", "c-1", [NewEvent("T", b"")], sequence=3, first_version=1)
    third = make_record("a", "c-3", [NewEvent("T", b"")], sequence=5, first_version=3)
    other = make_record("x", "c-1", [NewEvent("T", b"")], sequence=4, first_version=1)
    for page, match in (
        (Page(9, True, third), "lacks events"),
        (Page(9, True, first + third), "lacks events"),
        (Page(2, True, first), "lacks events"),
        (Page(9, True, first + other), "another aggregate"),
        (Page(9, False, b""), "leads back"),
    ):
        with pytest.raises(ProtocolError, match=match):
            ManyCursor(["a", "b"]).take(page)
    cursor = ManyCursor(["a", "b"])
    cursor.take(Page(9, False, first))
    assert cursor.rows == (("a", 2), ("b", 1))
    for page, match in ((Page(10, True, b""), "up to 9 goes up to 10"), (Page(9, False, first), "lacks events")):
        with pytest.raises(ProtocolError, match=match):
            cursor.take(page)
