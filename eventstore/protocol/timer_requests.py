"""The requests about timers, each declared once with its code, values and checks."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, cast

from eventstore.command_metadata import check_metadata
from eventstore.errors import InvalidArgument
from eventstore.fields import check_text, shown
from eventstore.model import DATA_IS_JSON, ID_BYTES_MAX, TIME_MAX, TYPE_BYTES_MAX, Event
from eventstore.protocol.across import nothing, rows_of_each
from eventstore.protocol.limits import PAYLOAD_BYTES_MAX
from eventstore.protocol.reaction_requests import NOTE_BYTES_MAX
from eventstore.protocol.request_declaration import Answered, Count, Name, Rows, integer, optional, request, text
from eventstore.protocol.timer_info import TimerEvent, TimerInfo
from eventstore.records.timer_record import (
    AFTER_US_MAX,
    NAME_BYTES_MAX,
    PREFIX,
    SET,
    TIMER_EVENTS,
    TimerRecord,
    timer_record,
)
from eventstore.security.permissions import Needs, Permission, Wanted, on

TIMER_ROWS_MAX: Final = 1_000
"""Of each timer the events are looked up in the log."""
RECORDED_ROWS_MAX: Final = 512
HOW: Final = ("run", "move", "cancel")
_Note: TypeAlias = Annotated[str, text(1, NOTE_BYTES_MAX)]


@request(101, needs=on(Permission.COMMAND, "type"))
class SetTimer(Answered[TimerEvent]):
    """Has a command sent to this aggregate when it is due: `after_us` microseconds from now, or at `at_us`. With the same
    command id again nothing is changed, and the answer is the first one.
    """

    aggregate_id: Name
    command_id: Name
    type: Annotated[str, text(1, TYPE_BYTES_MAX)]
    payload: bytes
    after_us: Annotated[int | None, optional(integer(0, AFTER_US_MAX))] = None
    at_us: Annotated[int | None, optional(integer(0, TIME_MAX))] = None
    timer: Annotated[str | None, optional(text(1, NAME_BYTES_MAX))] = None
    metadata: bytes | None = None

    def __post_init__(self) -> None:
        _check_bytes("payload", self.payload)
        if len(self.payload) > PAYLOAD_BYTES_MAX:
            raise InvalidArgument(
                f"the payload has {len(self.payload)} bytes, the limit is {PAYLOAD_BYTES_MAX}",
                field="payload",
                limit=PAYLOAD_BYTES_MAX,
            )
        if (self.after_us is None) == (self.at_us is None):
            raise InvalidArgument("give either after_us or at_us", field="after_us")
        _check_metadata(self.metadata)


def _check_bytes(field: str, value: object) -> None:
    if not isinstance(value, bytes):
        raise InvalidArgument(f"{field} must be bytes, not {shown(value)}", field=field, value=shown(value))


def _check_metadata(metadata: object) -> None:
    if metadata is not None:
        _check_bytes("metadata", metadata)
        check_metadata(cast("bytes", metadata))


def _record(aggregate_id: str, command_id: str, type: str, data: bytes, metadata: bytes | None) -> TimerRecord:
    """Returns what a row of RECORD_TIMERS says. Raises InvalidArgument."""
    event = (aggregate_id, 1, type, data, metadata, command_id, 0, 0, DATA_IS_JSON)
    return timer_record(tuple.__new__(Event, event))


def _check_record(aggregate_id: str, command_id: str, type: str, data: bytes, metadata: bytes | None) -> None:
    check_text("command_id", command_id)
    if not check_text("aggregate_id", aggregate_id).startswith(PREFIX) or type not in TIMER_EVENTS:
        raise InvalidArgument(f"not an event of a timer beside its aggregate: {shown(type)}", field="type", value=shown(type))
    _check_bytes("data", data)
    _check_metadata(metadata)
    _record(aggregate_id, command_id, type, data, metadata)


def _recorded(request: RecordTimers) -> Wanted:
    for row in request.rows:
        record = _record(*row)
        yield Permission.PARK, record.owner
        if record.event.type == SET:
            yield Permission.COMMAND, record.fields["type"]


@request(102, needs=Needs(Permission.PARK, _recorded, of="each aggregate, `command` on the type of what is to be sent"))
class RecordTimers(Answered[list[int]]):
    """Records what came of timers whose commands a worker has sent, and what its operators have changed: events on the reserved
    ids of their aggregates. Answered by the sequence of each; 0 for one that somebody else has recorded before.
    """

    rows: Annotated[tuple[tuple[str, str, str, bytes, bytes | None], ...], Rows(_check_record, RECORDED_ROWS_MAX)]


@request(103, needs=on(Permission.STATS), across=rows_of_each())
class ListTimers(Answered[list[TimerInfo]]):
    """Asks for timers, after the first `skip` of them: those that are parked, then those that are pending, the earliest due
    first. `owner`: only of this aggregate.
    """

    skip: Count = 0
    owner: Annotated[str | None, optional(text(1, ID_BYTES_MAX))] = None


@request(104, needs=on(Permission.TIMERS, "aggregate_id"), resend=False)
class ChangeTimer(Answered[TimerEvent]):
    """Has a timer of this aggregate run now, be due at another time, or be cancelled. `timer`: its name, or the id of its
    setting.
    """

    aggregate_id: Name
    timer: Annotated[str, text(1, 2 * ID_BYTES_MAX)]
    how: str
    at_us: Annotated[int | None, optional(integer(0, TIME_MAX))]
    who: _Note
    why: _Note

    def __post_init__(self) -> None:
        if self.how not in HOW or (self.at_us is None) == (self.how == "move"):
            raise InvalidArgument("how is run, cancel, or move with at_us", field="how")


@request(105, needs=on(Permission.TIMERS), across=nothing())
class ConfirmClock(Answered[None]):
    """Says that the clock of the machine is right, after it has jumped: timers are sent again."""

    who: _Note
    why: _Note
