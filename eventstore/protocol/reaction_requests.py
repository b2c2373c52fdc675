"""The requests about reactions, each declared once with its code, values and checks."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from eventstore.errors import InvalidArgument
from eventstore.fields import shown
from eventstore.model import ID_BYTES_MAX, VERSION_MAX
from eventstore.protocol.request_declaration import Name, Request, integer, optional, request, text

PARKED_ROWS_MAX: Final = 1_000
NOTE_BYTES_MAX: Final = 1_000
PARKED_DATA_BYTES_MAX: Final = 8_192
PARKING_TYPES: Final = ("$Parked", "$Unparked")

_Note: TypeAlias = Annotated[str, text(1, NOTE_BYTES_MAX)]


def _parking_type(field: str, value: object) -> None:
    if value not in PARKING_TYPES:
        raise InvalidArgument(f"{field} is {shown(value)}, expected {' or '.join(PARKING_TYPES)}", field=field)


def _parking_id(field: str, value: object) -> None:
    text(1, ID_BYTES_MAX)(field, value)
    if not (str(value).startswith("$parked{") and str(value).endswith("}")):
        raise InvalidArgument(f"{field} is {shown(value)}, expected $parked{{AGGREGATE_ID}}", field=field)


@request(61)
class RecordParking(Request):
    """Appends a record of what a worker's reactions have parked."""

    aggregate_id: Annotated[str, _parking_id]
    type: Annotated[str, _parking_type]
    data: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes) or len(self.data) > PARKED_DATA_BYTES_MAX:
            raise InvalidArgument(
                f"data is not bytes, or has more than {PARKED_DATA_BYTES_MAX}", field="data", limit=PARKED_DATA_BYTES_MAX
            )


@request(62)
class ListReactions(Request):
    """Asks how far each reaction is."""


@request(63)
class ListParked(Request):
    """Asks for what a reaction has parked, after the first `skip` of them."""

    reaction: Name
    skip: Annotated[int, integer(0, VERSION_MAX)] = 0


@request(64)
class RetryParked(Request):
    """Has the parked events of an aggregate (None: of all) handled again, in order."""

    reaction: Name
    aggregate_id: Annotated[str | None, optional(text(1, ID_BYTES_MAX))]
    who: _Note
    why: _Note


@request(65)
class SkipParked(Request):
    """Takes the first parked event of an aggregate off, and has those after it handled."""

    reaction: Name
    aggregate_id: Name
    who: _Note
    why: _Note


@request(66)
class ReplayReaction(Request):
    """Lets a reaction continue with the event of this sequence."""

    reaction: Name
    sequence: Annotated[int, integer(1, VERSION_MAX)]
    who: _Note
    why: _Note
