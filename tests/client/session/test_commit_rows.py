"""Batches of commits: a lone append leaves at once, many travel together, and none waits unless others are in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.client.session.batches import (
    BATCH_BYTES,
    BATCH_ROWS,
    EAGER_WINDOW,
    FULL_ROWS,
    QUEUE_ROWS_MAX,
    WINDOW,
    BatchQueue,
    RowBatch,
)
from eventstore.client.session.calls import PolledSignal
from eventstore.client.session.commit_rows import COMMITS
from eventstore.errors import CommandIdReused, EventStoreError, Overloaded, ProtocolError, VersionConflict
from eventstore.model import ANY, COMMIT_BYTES_MAX, EVENT_BYTES_MAX, EXISTS, TIME_MAX, Committed, NewEvent
from eventstore.protocol.answers import Failure, Ok, Outcomes, outcome_values
from eventstore.protocol.frames import LENGTH_BYTES, FrameReader
from eventstore.protocol.limits import FRAME_BYTES_MAX
from eventstore.protocol.request_codec import RequestDecoder
from eventstore.protocol.requests import Append
from eventstore.records.raw_commit import RawCommit, encode_commit

AppendBatch = RowBatch[PolledSignal, RawCommit, Committed]
Queue = BatchQueue[PolledSignal, RawCommit, Committed]


def commit(name: str = "a", size: int = 10) -> RawCommit:
    return encode_commit(name, [NewEvent("T", bytes(size))], ANY, f"c-{name}", None)


def leave(queue: Queue) -> list[AppendBatch]:
    """Returns the batches that leave now."""
    batches = []
    while (batch := queue.next()) is not None:
        queue.left(batch)
        batches.append(batch)
    return batches


def answer(batch: AppendBatch) -> None:
    batch.receive(Outcomes((0, 1, 1) * len(batch.rows)), 100)


def test_a_lone_append_leaves_at_once() -> None:
    queue = BatchQueue(COMMITS, PolledSignal)
    queue.add(commit())
    (batch,) = leave(queue)
    assert len(batch.rows) == 1


def test_appends_that_wait_for_those_in_flight_travel_together_when_an_answer_comes() -> None:
    queue = BatchQueue(COMMITS, PolledSignal)
    first = []
    for _ in range(EAGER_WINDOW):
        queue.add(commit())
        first += leave(queue)
    assert len(first) == EAGER_WINDOW
    for _ in range(FULL_ROWS - 1):
        queue.add(commit())
        assert leave(queue) == []
    answer(first[0])
    (batch,) = leave(queue)
    assert len(batch.rows) == FULL_ROWS - 1


def test_a_full_batch_leaves_while_others_are_in_flight_until_the_window_is_full() -> None:
    queue = BatchQueue(COMMITS, PolledSignal)
    left = []
    for _ in range(10 * BATCH_ROWS):
        queue.add(commit())
        left += leave(queue)
    assert len(left) == WINDOW
    answer(left[0])
    assert len(leave(queue)) == 1


def test_a_batch_is_bounded_in_bytes_and_in_commits() -> None:
    queue = BatchQueue(COMMITS, PolledSignal)
    places = [queue.add(commit(size=100_000)) for _ in range(20)] + [queue.add(commit()) for _ in range(3 * BATCH_ROWS)]
    batches = list(dict.fromkeys(batch for batch, _ in places))
    assert all(batch.size_bytes <= BATCH_BYTES and len(batch.rows) <= BATCH_ROWS for batch in batches)
    assert sum(len(batch.rows) for batch in batches) == len(places)


def test_the_largest_commit_travels_alone_and_fits_in_a_frame() -> None:
    queue = BatchQueue(COMMITS, PolledSignal)
    events = [NewEvent("T", bytes(EVENT_BYTES_MAX - 20))] * 4
    largest = encode_commit("é" * 127, events, 2**63 - 1, "é" * 127, TIME_MAX)
    assert COMMIT_BYTES_MAX - 200 < len(largest[4]) <= COMMIT_BYTES_MAX
    queue.add(commit())
    queue.add(largest)
    queue.add(commit())
    batches = []
    while not queue.idle:
        batches += leave(queue)
        answer(batches[-1])
    assert [len(batch.rows) for batch in batches] == [1, 1, 1]
    assert len(batches[1].encode()) - LENGTH_BYTES <= FRAME_BYTES_MAX


def test_waiting_commits_are_bounded() -> None:
    queue = BatchQueue(COMMITS, PolledSignal)
    added = 0
    while queue.has_room:
        queue.add(commit())
        added += 1
    assert added == QUEUE_ROWS_MAX
    leave(queue)
    assert queue.has_room


@given(st.lists(st.integers(0, 3), max_size=300))
def test_commits_leave_in_the_order_they_came_and_none_is_forgotten(steps: list[int]) -> None:
    queue = BatchQueue(COMMITS, PolledSignal)
    in_flight: list[AppendBatch] = []
    seen: list[str] = []
    added = 0

    def flush() -> None:
        for batch in leave(queue):
            in_flight.append(batch)
            seen.extend(wire[0] for wire in batch.rows)

    for step in steps:
        if step < 3:
            for _ in range(step * 20 + 1):
                queue.add(commit(str(added)))
                added += 1
        elif in_flight:
            answer(in_flight.pop(0))
        flush()
        assert len(in_flight) <= WINDOW
        assert in_flight or len(seen) == added, "something waits although nothing is in flight"
    while in_flight:
        answer(in_flight.pop(0))
        flush()
    assert seen == [str(number) for number in range(added)]
    assert queue.idle


def test_each_commit_gets_its_own_outcome() -> None:
    queue = BatchQueue(COMMITS, PolledSignal)
    expectations = [0, 5, ANY, EXISTS, 7]
    places = [
        queue.add(encode_commit("a", [NewEvent("T")], expected, f"c-{i}", None)) for i, expected in enumerate(expectations)
    ]
    (batch,) = leave(queue)
    outcomes = [
        Committed("a", 1, 1),
        VersionConflict("a", 5, 1),
        Committed("a", 2, 9, duplicate=True),
        VersionConflict("a", "exists", 0),
        CommandIdReused("a", "c-4", 1, 1),
    ]
    batch.receive(Outcomes([value for outcome in outcomes for value in outcome_values(outcome)], 1), 100)
    assert batch.done.is_set()
    for (found_in, index), outcome in zip(places, outcomes, strict=True):
        found = found_in.outcome(index)
        if isinstance(outcome, EventStoreError):
            assert isinstance(found, EventStoreError)
            assert (type(found), found.message, found.fields) == (type(outcome), outcome.message, outcome.fields)
        else:
            assert found == outcome


def test_an_error_for_the_frame_is_the_outcome_of_each_commit() -> None:
    queue = BatchQueue(COMMITS, PolledSignal)
    places = [queue.add(commit()) for _ in range(3)]
    (batch,) = leave(queue)
    batch.receive(Failure(Overloaded("busy")), 100)
    found = [batch.outcome(index) for _, index in places]
    assert all(isinstance(outcome, Overloaded) for outcome in found)
    assert len({id(outcome) for outcome in found}) == 3
    assert queue.idle


@pytest.mark.parametrize("wrong", [Ok(), Outcomes((0, 1, 1)), Outcomes((9, 9, 9, 9, 9, 9))])
def test_a_wrong_answer_is_a_protocol_error_for_each_commit(wrong: Ok | Outcomes) -> None:
    queue = BatchQueue(COMMITS, PolledSignal)
    for _ in range(2):
        queue.add(commit())
    (batch,) = leave(queue)
    batch.receive(wrong, 100)
    assert all(isinstance(batch.outcome(index), ProtocolError) for index in range(2))


def test_a_batch_encodes_as_the_append_of_its_commits() -> None:
    queue = BatchQueue(COMMITS, PolledSignal)
    wires = [commit(str(number)) for number in range(30)]
    for wire in wires:
        queue.add(wire)
    (batch,) = leave(queue)
    batch.request_id = 17
    (payload,) = FrameReader().feed(batch.encode())
    assert RequestDecoder().decode(payload) == (17, Append(wires))
