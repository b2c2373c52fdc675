"""The records of what reactions and publications have parked: their ids, their types, and the form of their data.

They are events on a reserved id that carries the aggregate's: `$parked{acc-1}`. An id too long to be carried is named by the
data. A record is checked where it is taken and where it is read, because a store may hold records that an earlier program took
without a check. A record that is not of this form, or names another aggregate than its id, is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, check_text, shown
from eventstore.json_values import parsed
from eventstore.model import TYPE_BYTES_MAX, VERSION_MAX
from eventstore.records import companion_ids

PARKED: Final = "$Parked"
UNPARKED: Final = "$Unparked"
PREFIX: Final = "$parked{"
"""What the ids of all records begin with."""
TOPIC: Final = "topic:"
"""What the name of a publication begins with, and no name of a reaction."""
_HOW: Final = ("done", "skipped")


@dataclass(frozen=True, slots=True)
class ParkingRecord:
    """What a record says.

    Attributes:
        reaction: a reaction, or `topic:NAME`.
        aggregate_id: of the event that it is about.
        version: of the event that it is about.
        fields: all of its data.
    """

    reaction: str
    aggregate_id: str
    version: int
    fields: Mapping[str, Any]

    @property
    def publication(self) -> str | None:
        """The publication that parked the event; None if a reaction did."""
        return self.reaction if self.reaction.startswith(TOPIC) else None


def parking_record(record_id: str, type_: str, data: bytes) -> ParkingRecord:
    """Returns what a record on this id says.

    Raises:
        InvalidArgument: it is not of the form of these records.
    """
    if type_ not in (PARKED, UNPARKED):
        raise InvalidArgument(f"type is {shown(type_)}, expected {PARKED} or {UNPARKED}", field="type", value=shown(type_))
    if not (record_id.startswith(PREFIX) and record_id.endswith("}")):
        raise InvalidArgument(
            f"aggregate_id is {shown(record_id)}, expected {PREFIX}AGGREGATE_ID}}", field="aggregate_id", value=shown(record_id)
        )
    try:
        fields = parsed(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidArgument(f"data of a {type_} is {shown(data)}, expected a JSON object", field="data")
    reaction, version = check_text("reaction", fields.get("reaction")), _number(fields, "version", 1)
    if type_ == PARKED:
        _number(fields, "sequence", 1)
        _number(fields, "attempts", 0)
        check_text("type", fields.get("type"), 1, TYPE_BYTES_MAX)
        texts: tuple[str, ...] = ("why",)
    else:
        if fields.get("how") not in _HOW:
            raise InvalidArgument(f"how is {shown(fields.get('how'))}, expected {' or '.join(_HOW)}", field="how")
        texts = ("who", "why")
    for name in texts:
        if not isinstance(fields.get(name), str):
            raise InvalidArgument(f"{name} is {shown(fields.get(name))}, expected text", field=name)
    return ParkingRecord(reaction, _aggregate_of(record_id, fields.get("aggregate_id")), version, fields)


def _number(fields: Mapping[str, Any], name: str, low: int) -> int:
    return check_int(name, fields.get(name), low, VERSION_MAX)


def _aggregate_of(record_id: str, named: object) -> str:
    """Returns the aggregate that a record is about. Raises InvalidArgument."""
    return companion_ids.aggregate_of(PREFIX, record_id, named)


def reserved_id(aggregate_id: str) -> str:
    """Returns the id of the records about an aggregate (see `companion_ids`)."""
    return companion_ids.companion_id(PREFIX, aggregate_id)


def carried_by(record_id: str) -> str:
    """Returns the text that the id of a record carries."""
    return companion_ids.carried_by(PREFIX, record_id)
