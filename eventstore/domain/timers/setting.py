"""Setting timers in a handler: `send_later`, `move_later` and `cancel_later`.

They add an event to the aggregate's next commit, as `apply` does, so a timer is set, moved or cancelled if the commit is
stored, and only then. The event takes a version of the aggregate and leaves its state as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Protocol
from weakref import WeakSet

from eventstore.command_metadata import merged_metadata
from eventstore.commands import raw_command
from eventstore.domain.aggregate import Aggregate
from eventstore.fields import check_text
from eventstore.records.timer_record import (
    CANCELLED,
    MOVED,
    NAME_BYTES_MAX,
    SET,
    Delay,
    check_name,
    due,
    packed,
    set_data,
)


class ToldOfSettings(Protocol):
    """What is told when a handler in this process may have set a timer."""

    def hint(self) -> None: ...


told_of_settings: Final[WeakSet[ToldOfSettings]] = WeakSet()


def send_later(
    aggregate: Aggregate,
    command: object,
    *,
    after: Delay | None = None,
    at: datetime | None = None,
    name: str | None = None,
) -> None:
    """Has a command sent when it is due: `after` the commit of this handler, such as "30m", "1h30m" or a timedelta, or `at` a
    time. The timer belongs to the aggregate, and is set in the same commit as its events, or not at all.

    `name`: by which it is moved and cancelled; one of the same name that is pending is replaced. The command may be for any
    aggregate. Its metadata have the correlation id of the commit, and the timer as its cause.

    Raises:
        InvalidArgument: neither or both of `after` and `at` are given, or one is out of range; the name has over 100 bytes.
        PayloadInvalid: a field of the command does not match its type.
    """
    raw = raw_command(command)
    fields = set_data(raw.type, raw.aggregate_id, raw.payload, check_name(name), due(after, at))
    _add(aggregate, SET, fields)


def move_later(aggregate: Aggregate, name: str, *, after: Delay | None = None, at: datetime | None = None) -> None:
    """Makes the command of a timer of this aggregate due at another time. Does nothing to one that has ended; one whose command
    is on its way is sent then as well. Raises InvalidArgument.
    """
    _add(aggregate, MOVED, {"timer": check_text("name", name, 1, NAME_BYTES_MAX), **due(after, at)})


def cancel_later(aggregate: Aggregate, name: str) -> None:
    """Cancels a timer of this aggregate. Does nothing to one that has ended, and does not stop a command that is on its way.
    Raises InvalidArgument.
    """
    _add(aggregate, CANCELLED, {"timer": check_text("name", name, 1, NAME_BYTES_MAX)})


def _add(aggregate: Aggregate, type_: str, fields: Mapping[str, Any]) -> None:
    if aggregate._aggregate_applying:
        raise RuntimeError(
            "a timer was set inside an @applies method, after one had raised, or in __init__; only a handler does"
        )
    inherited = aggregate._aggregate_metadata
    metadata = None if inherited is None else merged_metadata(inherited, None)
    aggregate._aggregate_events.append(packed(type_, fields, metadata))
    aggregate._aggregate_version += 1
    for told in told_of_settings:
        told.hint()
