"""The events by which timers are set, moved, cancelled and ended: their types, their ids, and the form of their data.

A timer belongs to an aggregate, its owner. The handler of a command sets it by an event in the owner's own history, in the same
commit as its other events. A client, a reaction or an operator does so on a reserved id that carries the owner's,
`$timers{order-1}`; what came of a timer is recorded there, too. All of these are in the slot of the owner, so a timer is
replicated, backed up and split off with it.

A setting is known by its *id*, `AGGREGATE/VERSION` of the event that made it. The owner may have given it a *name*; then a
setting of the same name replaces it. An event that is not of this form is passed over: it cannot be removed, and must stop no
reader.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias, cast

from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, check_text, shown
from eventstore.flat import Decoder, Malformed, encode
from eventstore.json_values import parsed
from eventstore.model import (
    COMMIT_BYTES_MAX,
    COMMIT_EVENTS_MAX,
    DATA_IS_JSON,
    ID_BYTES_MAX,
    METADATA_IS_JSON,
    TIME_MAX,
    TYPE_BYTES_MAX,
    VERSION_MAX,
    Event,
    micros,
)
from eventstore.records import companion_ids
from eventstore.records.slots import slot_of

SET: Final = "$TimerSet"
MOVED: Final = "$TimerMoved"
CANCELLED: Final = "$TimerCancelled"
ENDED: Final = "$TimerEnded"
TIMER_EVENTS: Final = (SET, MOVED, CANCELLED, ENDED)
OF_OWNERS: Final = frozenset({SET, MOVED, CANCELLED})
"""Those that are in the history of an aggregate; they do not change its state."""
PREFIX: Final = "$timers{"
NAME_BYTES_MAX: Final = 100
AFTER_US_MAX: Final = 100 * 366 * 86_400 * 1_000_000
WHY_CHARACTERS_MAX: Final = 300
HOW: Final = ("accepted", "unchanged", "rejected", "parked")
"""What came of a firing: its command has changed something, or nothing; its handler has rejected it; it failed otherwise."""
Delay: TypeAlias = str | timedelta
"""How long after its setting a command is due: a duration such as 30m, or a timedelta."""
_KEY_BITS: Final = 96
_decode: Final = Decoder(COMMIT_BYTES_MAX, 4 * (COMMIT_EVENTS_MAX + 1)).decode
_DURATION: Final = re.compile(r"(?:[0-9]{1,18}(?:\.[0-9]{1,18})?(?:ms|s|m|h|d))+")
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_UNIT_US: Final = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


class TimerRecord(NamedTuple):
    """What one of these events says.

    Attributes:
        event: the event.
        owner: the aggregate whose timer it is.
        key: of the timer, as `key_of` returns it.
        due_us: when the command is due, microseconds since 1970; of SET and MOVED. Else 0.
        of: the sequence of the setting that has ended; of ENDED. Else 0.
        fields: all of its data.
    """

    event: Event
    owner: str
    key: int
    due_us: int
    of: int
    fields: Mapping[str, Any]

    @property
    def name(self) -> str | None:
        """The name that the timer was given; None if it has none."""
        named: str | None = self.fields.get("timer")
        return named

    @property
    def reference(self) -> dict[str, str]:
        """How events name the timer: by its name, or by the id of the setting that it began with."""
        return {"timer": self.name} if self.name is not None else {"id": self.fields.get("id") or id_of(self.event)}


def timer_record(event: Event) -> TimerRecord:
    """Returns what an event of these types says.

    Raises:
        InvalidArgument: it is not of the form of these events.
    """
    aggregate_id, type_ = event[0], event[2]
    try:
        fields = parsed(event[3])
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidArgument(f"data of a {type_} is {shown(event[3])}, expected a JSON object", field="data")
    owner = aggregate_id
    if aggregate_id[0] == "$":
        if not (aggregate_id.startswith(PREFIX) and aggregate_id.endswith("}")):
            raise InvalidArgument(f"a {type_} on {shown(aggregate_id)}, expected {PREFIX}ID}}", field="aggregate_id")
        owner = companion_ids.aggregate_of(PREFIX, aggregate_id, fields.get("owner"))
    name, id_ = fields.get("timer"), fields.get("id")
    if name is not None:
        check_text("timer", name, 1, NAME_BYTES_MAX)
    due_us = of = 0
    if type_ in (SET, MOVED):
        due_us = _due_us(event, fields)
    if type_ == SET:
        check_text("type", fields.get("type"), 1, TYPE_BYTES_MAX)
        check_text("aggregate_id", fields.get("aggregate_id"))
        if not isinstance(fields.get("payload"), dict):
            raise InvalidArgument(f"payload of a {type_} is no JSON object", field="payload")
        id_ = id_ or id_of(event)  # one that was parked keeps its own
    elif type_ == ENDED:
        of = check_int("of", fields.get("of"), 1, VERSION_MAX)
        check_int("command", fields.get("command"), 1, VERSION_MAX)
        check_int("due_us", fields.get("due_us"), 0, TIME_MAX)
        if fields.get("how") not in HOW:
            raise InvalidArgument(f"how is {shown(fields.get('how'))}, expected {', '.join(HOW)}", field="how")
    if name is None:
        check_text("id", id_, 1, 2 * ID_BYTES_MAX)
    return TimerRecord(event, owner, key_of(owner, name, str(id_)), due_us, of, fields)


def _due_us(event: Event, fields: Mapping[str, Any]) -> int:
    at_us = fields.get("at_us")
    if at_us is not None:
        return check_int("at_us", at_us, 0, TIME_MAX)
    after_us = check_int("after_us", fields.get("after_us"), 0, AFTER_US_MAX)
    return min(max(0, event[6] + after_us), TIME_MAX)


def id_of(event: Event) -> str:
    """Returns the id of the setting that an event has made. It is that of its command, too, with `timer/` before it."""
    return f"{event[0]}/{event[1]}"


def command_id_of(setting: str) -> str:
    """Returns the id of the command that a setting sends, whoever sends it and however often."""
    return _short("timer", setting)


def ended_command_id(setting: str) -> str:
    """Returns the id of the commit that says what came of a setting: there is one such commit, whoever makes it."""
    return _short("ended", setting)


def _short(what: str, setting: str) -> str:
    text = f"{what}/{setting}"
    if len(text.encode()) <= ID_BYTES_MAX:
        return text
    aggregate_id, _, version = setting.rpartition("/")
    return f"{what}/{hashlib.blake2b(aggregate_id.encode(), digest_size=16).hexdigest()}/{version}"


def key_of(owner: str, name: str | None, setting: str) -> int:
    """Returns the key of a timer: its slot, and a hash of its owner with its name, or with the id of its setting if it has
    none.
    """
    named = f"{owner}\0/{setting}" if name is None else f"{owner}\0:{name}"
    digest = hashlib.blake2b(named.encode(), digest_size=_KEY_BITS // 8).digest()
    return max(slot_of(owner), 0) << _KEY_BITS | int.from_bytes(digest)


def slot_of_key(key: int) -> int:
    return key >> _KEY_BITS


def timers_id(owner: str) -> str:
    """Returns the reserved id of the timers of an aggregate."""
    return companion_ids.companion_id(PREFIX, owner)


def beside(owner: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the data of an event on the reserved id of an owner, which name it if the id cannot carry it."""
    return fields if companion_ids.carried_by(PREFIX, timers_id(owner)) == owner else {**fields, "owner": owner}


def check_name(name: object) -> str | None:
    """Returns the name of a timer. Raises InvalidArgument."""
    return None if name is None else check_text("name", name, 1, NAME_BYTES_MAX)


def due(after: Delay | None, at: datetime | None) -> dict[str, int]:
    """Returns when a timer is due, as its event says it. Raises InvalidArgument."""
    return when_fields(None if after is None else microseconds_of(after), None if at is None else _at_us(at))


def microseconds_of(after: Delay) -> int:
    """Returns a duration such as "1h30m" in microseconds. Raises InvalidArgument."""
    if isinstance(after, timedelta):
        return after // timedelta(microseconds=1)
    if not isinstance(after, str) or not _DURATION.fullmatch(after):
        raise InvalidArgument(
            f"after is {shown(after)}, expected a timedelta, or numbers with ms, s, m, h or d, such as 1h30m",
            field="after",
            value=shown(after),
        )
    return sum(int(float(number) * _UNIT_US[unit]) for number, unit in _PART.findall(after))


def _at_us(at: datetime) -> int:
    if not isinstance(at, datetime):
        raise InvalidArgument(f"at is {shown(at)}, expected a datetime with a time zone", field="at", value=shown(at))
    return micros(at, "at") or 0


def when_fields(after_us: int | None, at_us: int | None) -> dict[str, int]:
    """Returns when a timer is due, as its event says it: after the time of the event, or at one. Raises InvalidArgument."""
    if (after_us is None) == (at_us is None):
        raise InvalidArgument("give either after or at", field="after")
    if after_us is not None:
        return {"after_us": check_int("after", after_us, 0, AFTER_US_MAX)}
    return {"at_us": check_int("at", at_us, 0, TIME_MAX)}


def set_data(type_: str, aggregate_id: str, payload: bytes, name: str | None, when: Mapping[str, int]) -> dict[str, Any]:
    """Returns the data of a SET: the command, and when it is due. Raises InvalidArgument."""
    try:
        command = parsed(payload)
    except (ValueError, RecursionError):
        command = None
    if not isinstance(command, dict):
        raise InvalidArgument("the payload of a command with a due time must be a JSON object", field="payload")
    named = {} if name is None else {"timer": name}
    return {**named, **when, "type": type_, "aggregate_id": aggregate_id, "payload": command}


def commands_in(events: bytes) -> set[str]:
    """Returns the types of the commands that events of a commit set timers for: who appends them must be permitted to send
    these. An empty type stands for what cannot be read.
    """
    if SET.encode() not in events:
        return set()
    try:
        values = _decode(events)
        found = [parsed(cast("bytes", values[at + 2])) for at in range(0, len(values), 4) if values[at + 1] == SET]
        return {str(each.get("type", "")) for each in found}
    except (ValueError, RecursionError, AttributeError, TypeError, IndexError, Malformed):
        return {""}


def json_bytes(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def packed(type_: str, fields: Mapping[str, Any], metadata: bytes | None) -> bytes:
    """Returns one of these events in the form of a commit record."""
    format_ = DATA_IS_JSON if metadata is None else DATA_IS_JSON | METADATA_IS_JSON
    return encode((format_, type_, json_bytes(fields), metadata))
