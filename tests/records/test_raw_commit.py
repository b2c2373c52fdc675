"""Commits are checked before they are sent: each refusal names field, limit and value."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from eventstore import flat
from eventstore.errors import InvalidArgument
from eventstore.model import ANY, COMMIT_EVENTS_MAX, EVENT_BYTES_MAX, EXISTS, VERSION_MAX, Commit, ExpectedVersion, NewEvent
from eventstore.records.commit import NO_FINGERPRINT
from eventstore.records.raw_commit import (
    AfterCommand,
    AppendCondition,
    condition_text,
    encode_commit,
    encode_commits,
    split_fingerprint,
    with_fingerprint,
)

EVENT = NewEvent("T", b"data")


def refusal(
    aggregate_id: Any = "a",
    events: Any = (EVENT,),
    expected: Any = ANY,
    command_id: Any = "c",
    timestamp: Any = None,
) -> dict[str, Any]:
    with pytest.raises(InvalidArgument) as caught:
        encode_commit(aggregate_id, events, expected, command_id, timestamp)
    return caught.value.fields


def test_a_commit_becomes_the_five_values_of_the_wire() -> None:
    events = [NewEvent("A", b"raw"), NewEvent("B", {"x": 1}, {"who": "me"})]
    expected = flat.encode([0, "A", b"raw", None, 3, "B", b'{"x":1}', b'{"who":"me"}'])
    assert encode_commit("a", events, 5, "c", 17) == ("a", 5, "c", 17, expected)


@pytest.mark.parametrize("given", [ANY, EXISTS, 0, VERSION_MAX])
def test_an_expected_version_is_the_condition_of_the_commit(given: ExpectedVersion) -> None:
    assert encode_commit("a", [EVENT], given, "c", None)[1] == given


@pytest.mark.parametrize(("condition", "text"), [(ANY, "any"), (EXISTS, "exists"), (7, 7), (AfterCommand(7, "c-41"), "7/c-41")])
def test_a_conflict_reports_each_condition(condition: AppendCondition, text: int | str) -> None:
    assert condition_text(condition) == text


def test_a_missing_command_id_is_generated() -> None:
    first, second = (encode_commit("a", [EVENT], ANY, None, None)[2] for _ in range(2))
    assert first != second
    assert len(first) == 32


def test_a_datetime_becomes_microseconds() -> None:
    assert encode_commit("a", [EVENT], ANY, "c", datetime(1970, 1, 1, 0, 0, 2, 5, tzinfo=UTC))[3] == 2_000_005


def test_ids_beyond_their_limits_are_refused() -> None:
    assert refusal(aggregate_id="") == {"field": "aggregate_id", "limit": 1, "value": 0}
    assert refusal(aggregate_id="x" * 256) == {"field": "aggregate_id", "limit": 255, "value": 256}
    assert refusal(aggregate_id="é" * 128) == {"field": "aggregate_id", "limit": 255, "value": 256}
    assert refusal(aggregate_id="\ud800")["field"] == "aggregate_id"
    assert refusal(aggregate_id=b"a")["field"] == "aggregate_id"
    assert refusal(command_id="") == {"field": "command_id", "limit": 1, "value": 0}
    assert refusal(command_id="x" * 256) == {"field": "command_id", "limit": 255, "value": 256}


def test_a_bad_expected_version_is_refused() -> None:
    assert refusal(expected=-1) == {"field": "expected_version", "limit": 0, "value": -1}
    assert refusal(expected=2**63)["limit"] == VERSION_MAX
    for wrong in (None, True, "any", 1.0):
        assert refusal(expected=wrong)["field"] == "expected_version"


def test_a_bad_timestamp_is_refused() -> None:
    assert refusal(timestamp=datetime(2026, 1, 1))["field"] == "timestamp"
    assert refusal(timestamp=2**63)["field"] == "timestamp"
    assert refusal(timestamp="now")["field"] == "timestamp"


def test_zero_events_or_too_many_are_refused() -> None:
    assert refusal(events=[]) == {"field": "events", "limit": 1, "value": 0}
    many = [EVENT] * (COMMIT_EVENTS_MAX + 1)
    assert refusal(events=many) == {"field": "events", "limit": COMMIT_EVENTS_MAX, "value": COMMIT_EVENTS_MAX + 1}


def test_an_object_that_is_not_an_event_is_refused() -> None:
    for wrong in ([("T", b"")], EVENT, ["T"], [None], "T"):
        assert refusal(events=wrong)["field"] == "events"


def test_a_bad_event_type_is_refused() -> None:
    assert refusal(events=[NewEvent("")]) == {"field": "type", "limit": 1, "value": 0}
    assert refusal(events=[EVENT, NewEvent("é" * 128)]) == {"field": "type", "limit": 255, "value": 256}
    assert refusal(events=[NewEvent(cast(str, 7))])["field"] == "type"


def test_an_event_or_a_commit_that_is_too_large_is_refused() -> None:
    over = NewEvent("T", bytes(EVENT_BYTES_MAX - 9), bytes(10))
    assert refusal(events=[over]) == {"field": "event", "limit": EVENT_BYTES_MAX, "value": EVENT_BYTES_MAX + 1}
    largest = NewEvent("T", bytes(EVENT_BYTES_MAX))
    assert encode_commit("a", [largest], ANY, "c", None)
    assert refusal(events=[largest] * 4)["field"] == "commit"


def test_an_event_instead_of_a_list_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidArgument, match=r"events is one NewEvent; put it into a list: \[NewEvent\('T', …\)\]"):
        encode_commit("a", cast(Any, EVENT), ANY, None, None)


def test_an_object_that_is_not_a_commit_is_refused_in_its_place() -> None:
    fine, wrong = encode_commits([Commit("a", [EVENT], ANY), cast(Any, ("a", [EVENT]))])
    assert isinstance(fine, tuple)
    assert isinstance(wrong, InvalidArgument)
    assert "not a Commit; make each with Commit(aggregate_id, events, expected_version)" in wrong.message


def test_a_fingerprint_travels_before_the_events() -> None:
    events = encode_commit("a", [NewEvent("T", b"x")], 0, "c", None)[4]
    assert split_fingerprint(events) == (NO_FINGERPRINT, events)
    assert split_fingerprint(with_fingerprint(events, b"123456")) == (b"123456", events)
    assert split_fingerprint(b"\xc4\x06123") == (b"123\0\0\0", b"")
