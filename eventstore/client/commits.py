"""A commit on its way out: checked, and turned into the five values of the wire, before anything of it is sent.

The server checks the same again. Checking here as well means that a bad commit costs no round trip and cannot be stuck
behind a frame it would never fit in.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeAlias

from eventstore import flat
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.model import (
    ANY,
    COMMIT_BYTES_MAX,
    COMMIT_EVENTS_MAX,
    EVENT_BYTES_MAX,
    EXISTS,
    TYPE_BYTES_MAX,
    VERSION_MAX,
    Committed,
    ExpectedVersion,
    NewEvent,
    micros,
)
from eventstore.protocol.fields import check_int, check_text, shown
from eventstore.protocol.requests import INT64_MAX, INT64_MIN, WireCommit, WireExpected

_ENVELOPE_BYTES: Final = 40  # the marks and lengths of the five values, an expected version and a timestamp at most

# So many commits are encoded before they leave: the server works on them while the next are encoded.
COMMITS_PER_TURN: Final = 64

Outcome: TypeAlias = Committed | EventStoreError


def encode_commit(
    aggregate_id: str,
    events: Sequence[NewEvent],
    expected_version: ExpectedVersion,
    command_id: str | None,
    timestamp: int | datetime | None,
) -> WireCommit:
    """The commit's values on the wire. Without a command id it gets a fresh one.

    Raises:
        InvalidArgument: it breaks a limit; names field, limit and value.
    """
    check_text("aggregate_id", aggregate_id)
    if command_id is None:
        command_id = uuid.uuid4().hex
    else:
        check_text("command_id", command_id)
    if timestamp is not None:
        timestamp = check_int("timestamp", micros(timestamp), INT64_MIN, INT64_MAX)
    return aggregate_id, _wire_expected(expected_version), command_id, timestamp, _encode_events(events)


def commit_bytes(commit: WireCommit) -> int:
    """How much of a frame the commit takes, at most."""
    return len(commit[4]) + 4 * (len(commit[0]) + len(commit[2])) + _ENVELOPE_BYTES


def named_expected(expected: WireExpected) -> int | str:
    """The expected version as errors name it."""
    if expected is None:
        return str(ANY.value)
    return str(EXISTS.value) if expected is True else expected


def _wire_expected(expected: ExpectedVersion) -> WireExpected:
    if expected is ANY:
        return None
    if expected is EXISTS:
        return True
    if isinstance(expected, int):
        return check_int("expected_version", expected, 0, VERSION_MAX)
    raise InvalidArgument(
        f"expected_version is {shown(expected)}; it is an int (0: must not exist), ANY or EXISTS",
        field="expected_version",
        value=shown(expected),
    )


def _encode_events(events: Sequence[NewEvent]) -> bytes:
    count = len(events)
    if not 0 < count <= COMMIT_EVENTS_MAX:
        raise InvalidArgument(
            f"a commit of {count} events, allowed are 1 to {COMMIT_EVENTS_MAX}",
            field="events",
            limit=COMMIT_EVENTS_MAX if count else 1,
            value=count,
        )
    for event in events:
        _check_event(event)
    packed = flat.encode(events[0] if count == 1 else flat.chain(events))
    if len(packed) > COMMIT_BYTES_MAX:
        raise InvalidArgument(
            f"the events of the commit take {len(packed)} bytes, the limit is {COMMIT_BYTES_MAX}",
            field="commit",
            limit=COMMIT_BYTES_MAX,
            value=len(packed),
        )
    return packed


def _check_event(event: NewEvent) -> None:
    if event.__class__ is not NewEvent:
        raise InvalidArgument(f"events holds {shown(event)}, which is no NewEvent", field="events", value=shown(event))
    _, name, data, metadata = event
    if name.__class__ is not str or not name.isascii() or not 0 < len(name) <= TYPE_BYTES_MAX:
        check_text("type", name)
    size = len(data) if metadata is None else len(data) + len(metadata)
    if size > EVENT_BYTES_MAX:
        raise InvalidArgument(
            f"event {name!r} has {size} bytes of data and metadata, the limit is {EVENT_BYTES_MAX}",
            field="event",
            limit=EVENT_BYTES_MAX,
            value=size,
        )
