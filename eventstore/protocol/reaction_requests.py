"""The requests about reactions, projections and alarms, each declared once with its code, values and checks."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from eventstore.command_metadata import METADATA_BYTES_MAX
from eventstore.errors import InvalidArgument
from eventstore.model import ID_BYTES_MAX, VERSION_MAX
from eventstore.protocol.across import nothing, rows_of_each
from eventstore.protocol.limits import INT64_MAX, INT64_MIN, SILENCE_S_MAX
from eventstore.protocol.reaction_info import (
    AppendedRecord,
    FollowedChain,
    ParkedEvent,
    ParkedHandled,
    ProjectionInfo,
    ReactionInfo,
    WantedPlace,
)
from eventstore.protocol.request_declaration import Answered, Count, Name, integer, optional, request, text
from eventstore.protocol.server_info import AlarmInfo
from eventstore.records.parking_record import TOPIC, ParkingRecord, parking_record
from eventstore.security.permissions import Needs, Permission, Wanted, on, on_some, on_told

PARKED_ROWS_MAX: Final = 1_000
ALARM_ROWS_MAX: Final = 1_000
PROJECTION_ROWS_MAX: Final = 1_000
NOTE_BYTES_MAX: Final = 1_000
PARKED_DATA_BYTES_MAX: Final = 8_192

_Note: TypeAlias = Annotated[str, text(1, NOTE_BYTES_MAX)]


def _said(request: RecordParking) -> ParkingRecord:
    """Raises InvalidArgument: it is not of the form of a record."""
    return parking_record(request.aggregate_id, request.type, request.data)


def _parked(request: RecordParking) -> Wanted:
    record = _said(request)
    yield Permission.PARK, record.aggregate_id
    if record.publication is not None:
        yield Permission.SEND, record.publication.removeprefix(TOPIC)


@request(
    61, needs=Needs(Permission.PARK, _parked, of="the aggregate whose event it is, and `send` on the topic of a publication")
)
class RecordParking(Answered[AppendedRecord]):
    """Appends a record of what a worker's reactions have parked, or what it publishes."""

    aggregate_id: Name
    type: str
    data: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes) or len(self.data) > PARKED_DATA_BYTES_MAX:
            raise InvalidArgument(
                f"data is not bytes, or has more than {PARKED_DATA_BYTES_MAX}", field="data", limit=PARKED_DATA_BYTES_MAX
            )
        _said(self)


@request(74, needs=on_some(Permission.PARK))
class CheckParking(Answered[None]):
    """Asks whether the client may record what its reactions have parked, of some aggregates at least."""


@request(62, needs=on(Permission.STATS), across=rows_of_each())
class ListReactions(Answered[list[ReactionInfo]]):
    """Asks how far each reaction is."""


@request(63, needs=on_told(Permission.REACTIONS, "reaction"))
class ListParked(Answered[list[ParkedEvent]]):
    """Asks for what a reaction has parked, after the first `skip` of them."""

    reaction: Name
    skip: Annotated[int, integer(0, VERSION_MAX)] = 0


@request(64, needs=on(Permission.REACTIONS, "reaction"), resend=False)
class RetryParked(Answered[ParkedHandled]):
    """Has the parked events of an aggregate (None: of all) handled again, in order."""

    reaction: Name
    aggregate_id: Annotated[str | None, optional(text(1, ID_BYTES_MAX))]
    who: _Note
    why: _Note


@request(65, needs=on(Permission.REACTIONS, "reaction"), resend=False)
class SkipParked(Answered[ParkedHandled]):
    """Takes the first parked event of an aggregate off, and has those after it handled."""

    reaction: Name
    aggregate_id: Name
    who: _Note
    why: _Note


@request(66, needs=on(Permission.REACTIONS, "reaction"), resend=False)
class ReplayReaction(Answered[int]):
    """Lets a reaction continue with the event of this sequence."""

    reaction: Name
    sequence: Annotated[int, integer(1, VERSION_MAX)]
    who: _Note
    why: _Note


@request(72, needs=on(Permission.STATS))
class NoteProjection(Answered[None]):
    """Says how far a projection is that the client runs: up to `position`. `oldest_us`: the time of the oldest of its events
    after that, None if there is none. It is listed until a new connection says so of it, or it is forgotten.
    """

    projection: Name
    position: Count
    oldest_us: Annotated[int | None, optional(integer(INT64_MIN, INT64_MAX))]
    parked: Count


@request(75, needs=on(Permission.STATS), across=rows_of_each())
class ListProjections(Answered[list[ProjectionInfo]]):
    """Asks how far the projections are that clients have told of, after the first `skip` of them."""

    skip: Count = 0


@request(76, needs=on(Permission.REACTIONS, "projection"), across=nothing())
class ForgetProjection(Answered[None]):
    """Says that a projection ends for good: it is not listed any more, for those who have left and for this client."""

    projection: Name


@request(81, needs=on(Permission.STATS), across=nothing())
class EndProjection(Answered[None]):
    """Says that a projection that this client runs was to end here: it is not listed any more, for this client."""

    projection: Name


@request(84, needs=on(Permission.STATS), waits=True)
class WaitProjection(Answered[None]):
    """Waits until the tables of a projection have the events up to `sequence`; None: up to the last one that there is now.
    `aggregate_id`: of these events; None: it is the shard's log that is meant. Ended by UNSUBSCRIBE.
    """

    projection: Name
    aggregate_id: Annotated[str | None, optional(text(1, ID_BYTES_MAX))] = None
    sequence: Annotated[int | None, optional(integer(0, VERSION_MAX))] = None


@request(85, needs=on(Permission.STATS), waits=True)
class AskWaits(Answered[WantedPlace]):
    """A projector asks for the newest wait for its projection, as soon as that is another one than this number, which it knows.
    `projector`: a number of its own for each that runs on this connection. Ended by UNSUBSCRIBE.
    """

    projection: Name
    projector: Count
    number: Count


@request(86, needs=on(Permission.STATS))
class TellPlace(Answered[None]):
    """A projector says that its table has all of its events up to `position`. It has looked at the table after it had learned
    of the wait of this number.
    """

    projection: Name
    projector: Count
    number: Count
    position: Count


@request(87, needs=on(Permission.STATS), waits=True)
class FollowReactions(Answered[FollowedChain]):
    """Waits until the reactions of this process have handled all events up to `sequence` (None: up to the last one that there
    is now), and asks what they made of those with this correlation id. None: that of the event there. Ended by UNSUBSCRIBE.
    """

    aggregate_id: Annotated[str | None, optional(text(1, ID_BYTES_MAX))] = None
    sequence: Annotated[int | None, optional(integer(1, VERSION_MAX))] = None
    correlation_id: Annotated[str | None, optional(text(1, METADATA_BYTES_MAX))] = None


@request(67, needs=on(Permission.STATS))
class ListAlarms(Answered[list[AlarmInfo]]):
    """Asks for the alarms, after the first `skip` of them."""

    skip: Annotated[int, integer(0, VERSION_MAX)] = 0


@request(68, needs=on(Permission.ALARMS, "alarm"), resend=False)
class SilenceAlarm(Answered[None]):
    """Sends nothing about an alarm for this number of seconds; 0: again at once."""

    alarm: Name
    seconds: Annotated[int, integer(0, SILENCE_S_MAX)]
    who: _Note
    why: _Note


@request(69, needs=on(Permission.ALARMS), resend=False)
class TestAlarms(Answered[list[str]]):
    """Has a test sent every way in which alarms are."""

    __test__ = False  # it is none of pytest's

    who: _Note
