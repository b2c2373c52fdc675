"""Checks and counts the events that a client sent, and re-encodes them if they are not in the canonical encoding.

The index computes where payloads are from lengths alone, and repeated commands are compared byte by byte: both need exactly
one encoding for the same content. It is the shortest one, which every msgpack library writes by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from eventstore import flat
from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, check_text
from eventstore.model import COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX, EVENT_BYTES_MAX, STORED_FORMAT, TYPE_BYTES_MAX
from eventstore.tags import SEALED, TAGGED, check_envelope, with_tags

SEALED_BYTES_MIN: Final = 29  # of no data at all: kind, nonce, tag
_UNTAGGED: Final = frozenset(range(TAGGED))
_UNTAGGED_MAX: Final = max(_UNTAGGED)
_FIXSTR, _FIXSTR_END, _BIN8, _BIN16, _NIL = 0xA1, 0xC0, 0xC4, 0xC5, 0xC0


def is_plain_event(raw: bytes) -> bool:
    """Returns whether `raw` is exactly one well-formed event of the most frequent shape, by looking at five of its bytes.

    The shape: an ASCII type of 1 to 31 bytes, data of up to 65,535 bytes, no metadata. Decoding takes three times as long.
    False only means that the event has to be decoded to be checked.
    """
    size = len(raw)
    if size < 6 or raw[0] > _UNTAGGED_MAX:
        return False
    head = raw[1]
    if not _FIXSTR <= head < _FIXSTR_END:
        return False
    data = head - 0xA0 + 2
    if data + 3 > size or not raw[2:data].isascii():
        return False
    if raw[data] == _BIN8:
        end = data + 2 + raw[data + 1]
    elif raw[data] == _BIN16 and raw[data + 1]:  # a first byte of 0 is a length that fits into bin 8
        end = data + 3 + (raw[data + 1] << 8 | raw[data + 2])
    else:
        return False
    return end == size - 1 and raw[end] == _NIL


class EventsCheck:
    """Checks the events of a commit from a client: well-formed and within limits."""

    def __init__(self) -> None:
        self._decode = flat.Decoder(COMMIT_BYTES_MAX, 4 * (COMMIT_EVENTS_MAX + 1)).decode  # one more: to name the limit

    def __call__(self, raw: bytes) -> tuple[int, bytes]:
        """Returns the number of events, and their bytes in the canonical encoding: `TaggedEvents` if some have tags.

        Raises:
            InvalidArgument
        """
        if is_plain_event(raw):
            return 1, raw
        if len(raw) > COMMIT_BYTES_MAX:
            raise _over("commit", COMMIT_BYTES_MAX, len(raw))
        try:
            values = self._decode(raw)
        except flat.Malformed as error:
            raise InvalidArgument(f"events are malformed: {error}", field="events") from None
        tags = _check_event(*values) if len(values) == 4 else _check_events(values)
        canonical = flat.encode(values)
        if tags is not None:
            return len(values) // 4, with_tags(canonical, tags)
        return len(values) // 4, raw if canonical == raw else canonical


def _check_event(format_: Any, type_: Any, data: Any, metadata: Any) -> tuple[str, ...] | None:
    """Returns the tags of the event; None: it has no envelope. Without `isinstance`: each event with tags comes here."""
    if type_.__class__ is not str or data.__class__ is not bytes or format_.__class__ is not int:
        raise InvalidArgument("an event is format (int), type (str), data (bin), metadata (bin or nil)", field="events")
    if metadata is not None and metadata.__class__ is not bytes:
        raise InvalidArgument("metadata is bin or nil", field="metadata")
    if not 0 <= format_ <= STORED_FORMAT:
        check_int("format", format_, 0, STORED_FORMAT)  # says what is wrong
    check_text("type", type_, 1, TYPE_BYTES_MAX)
    size = len(data) + (0 if metadata is None else len(metadata))
    if size > EVENT_BYTES_MAX:
        raise _over("event", EVENT_BYTES_MAX, size)
    if not format_ & TAGGED:
        if format_ & SEALED:
            raise InvalidArgument("an event with encrypted data names no subject", field="subject")
        return None
    if format_ & SEALED and len(data) < SEALED_BYTES_MIN:
        what = f"encrypted data of {len(data)} bytes, the least are {SEALED_BYTES_MIN}"
        raise InvalidArgument(what, field="data", limit=SEALED_BYTES_MIN, value=len(data))
    return check_envelope(metadata or b"", sealed=bool(format_ & SEALED))


def _check_events(values: Sequence[flat.Scalar]) -> tuple[str, ...] | None:
    """Does the same as `_check_event` for each event, but in C loops. The slow path is for events with tags, and names the
    first bad event. Returns the tags of all, each once; None: none has an envelope.
    """
    count, odd = divmod(len(values), 4)
    if not values:
        raise InvalidArgument("a commit without events, the least is 1", field="events", limit=1, value=0)
    if odd:
        raise InvalidArgument(f"a commit needs events of 4 values each, this one has {len(values)}", field="events")
    if count > COMMIT_EVENTS_MAX:
        raise _over("events", COMMIT_EVENTS_MAX, count)
    formats, types, data, metadata = values[0::4], set(values[1::4]), values[2::4], values[3::4]
    fine = (
        set(map(type, formats)) == {int}
        and set(formats) <= _UNTAGGED
        and set(map(type, types)) == {str}
        and set(map(type, data)) == {bytes}
        and set(map(type, metadata)) <= {bytes, type(None)}
        and all(name.isascii() and 0 < len(name) <= TYPE_BYTES_MAX for name in types)  # type: ignore[union-attr, arg-type]
        and max(map(len, data)) + max(map(len, filter(None, metadata)), default=0) <= EVENT_BYTES_MAX  # type: ignore[arg-type]
    )
    if fine:
        return None
    found = [_check_event(*values[at : at + 4]) for at in range(0, 4 * count, 4)]
    tags = [each for each in found if each is not None]
    return tuple(dict.fromkeys(chain.from_iterable(tags))) if tags else None


def _over(name: str, limit: int, value: int) -> InvalidArgument:
    what = f"{value} events in a commit" if name == "events" else f"{value} bytes in the {name}"
    return InvalidArgument(f"{what}, the limit is {limit}", field=name, limit=limit, value=value)
