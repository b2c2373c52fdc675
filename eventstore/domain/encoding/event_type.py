"""`EventType`: an event class and its stable name; encodes instances as events of the store and decodes them.

The store has the name, so the class may be renamed. The schema version is in the event's metadata, as `{"schema":2}`, but only
from version 2 on: most events are and stay at version 1, and need no metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any, Final, Generic, TypeVar, cast
from uuid import UUID

from eventstore import flat
from eventstore.command_metadata import SCHEMA
from eventstore.domain.encoding.codec import PayloadCodec, check_dataclass, class_path
from eventstore.domain.encoding.upcasting import Fields, check_steps, upcast_fields
from eventstore.errors import DomainRefused, EventStoreError, InvalidArgument, PayloadInvalid
from eventstore.fields import check_int, check_text, shown
from eventstore.model import DATA_IS_JSON, EVENT_BYTES_MAX, METADATA_IS_JSON, TYPE_BYTES_MAX, Event, NewEvent
from eventstore.tags import TAGGED, TaggedEvents, checked_tags, enveloped, with_tags

E = TypeVar("E")
SCHEMA_MAX: Final = 1_000_000
_ATTRIBUTE: Final = "__eventstore_event__"
_DATA_BYTES_MAX: Final = EVENT_BYTES_MAX - 64  # the rest is for metadata
_SHORT_MAX: Final = 255
_SHORT_MARKS: Final = [flat.encode((bytes(size),))[:2] for size in range(_SHORT_MAX + 1)]  # of msgpack: bin 8


class EventType(Generic[E]):
    """An event class. Its codec is built at first use, when all classes it refers to are defined."""

    def __init__(self, cls: type[E], name: str, version: int, tags: tuple[str, ...] = ()) -> None:
        """`tags`: the fields that its tags are made of."""
        self.cls = cls
        self.name = name
        self.version = version
        self._tags = tags
        self._metadata = None if version == 1 else json.dumps({SCHEMA: version}, separators=(",", ":")).encode()
        self._format = DATA_IS_JSON if version == 1 else DATA_IS_JSON | METADATA_IS_JSON
        self._packed_head = flat.encode((self._format, name))
        self._packed_metadata = flat.encode((self._metadata,))

    @cached_property
    def codec(self) -> PayloadCodec[E]:
        return PayloadCodec(self.cls, self.name, "event")

    def check(self) -> None:
        """Raises DomainRefused if a field cannot be stored, instances are read back as others, or an upcast is missing."""
        self.codec.check()
        check_steps(self.name, self.version)

    def encode(self, event: E) -> NewEvent:
        """Encodes an event to append it.

        Raises:
            PayloadInvalid: the value of a field does not match its type, or would be read back as another one, or not at all.
            InvalidArgument: it is larger than an event may be.
        """
        data = self.codec.proven(event)
        self._check_size(data)
        tags = self.tags_of(event)
        if tags:
            return tuple.__new__(NewEvent, (self._format | TAGGED, self.name, data, enveloped(tags, self._metadata)))
        return tuple.__new__(NewEvent, (self._format, self.name, data, self._metadata))

    def tags_of(self, event: E) -> tuple[str, ...]:
        """Returns the tags of an event: `field:value`, and of a list or tuple one for each item. None is no tag.

        Raises:
            InvalidArgument: a value is neither text, a whole number, a UUID, a date, a Decimal nor an enum of these; a tag is
                longer than 255 bytes, or holds a control character; there are more than 32.
        """
        found = []
        for field in self._tags:
            value = getattr(event, field)
            items = value if isinstance(value, list | tuple | set | frozenset) else (value,)
            found += [f"{field}:{self._tag_text(field, item)}" for item in items if item is not None]
        return checked_tags(found)

    def _tag_text(self, field: str, value: object) -> str:
        """Returns the value as the payload has it. Others have more than one spelling, or none that a query would be given."""
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, datetime | bool) or not isinstance(value, str | int | UUID | date | Decimal):
            raise InvalidArgument(
                f"event {self.name!r} has the tag {field!r}, whose value is {shown(value)}; a tag is made of text, a whole "
                "number, a UUID, a date, a Decimal, or an enum of these",
                field=field,
                value=shown(value),
            )
        return str.__str__(value) if isinstance(value, str) else str(value)

    def pack(self, event: E) -> tuple[bytes, E]:
        """As `encode`, in the form of a commit record. Also returns the event as it will be read back."""
        data, event = self.codec.written(event)
        if self._tags and (tags := self.tags_of(event)):
            self._check_size(data)
            return self._tagged(self._format, data, self._metadata, tags), event
        if len(data) <= _SHORT_MAX:
            return b"".join((self._packed_head, _SHORT_MARKS[len(data)], data, self._packed_metadata)), event
        self._check_size(data)
        return b"".join((self._packed_head, flat.encode((data,)), self._packed_metadata)), event

    def pack_with(self, event: E, metadata: bytes) -> tuple[bytes, E]:
        """As `pack`, with metadata: a JSON object without `schema`."""
        data, event = self.codec.written(event)
        self._check_size(data, len(metadata))
        if self._metadata is not None:
            metadata = json.dumps({**json.loads(metadata), SCHEMA: self.version}, separators=(",", ":")).encode()
        if self._tags and (tags := self.tags_of(event)):
            return self._tagged(DATA_IS_JSON | METADATA_IS_JSON, data, metadata, tags), event
        return flat.encode((DATA_IS_JSON | METADATA_IS_JSON, self.name, data, metadata)), event

    def _tagged(self, format_: int, data: bytes, metadata: bytes | None, tags: tuple[str, ...]) -> TaggedEvents:
        return with_tags(flat.encode((format_ | TAGGED, self.name, data, enveloped(tags, metadata))), tags)

    def _check_size(self, data: bytes, metadata_bytes: int = 0) -> None:
        limit = _DATA_BYTES_MAX - metadata_bytes
        if len(data) > limit:
            raise InvalidArgument(
                f"event {self.name!r} has {len(data)} bytes, but the limit is {limit}; make it smaller",
                field="event",
                limit=limit,
                value=len(data),
            )

    def decode(self, stored: Event) -> E:
        """Decodes a stored event of any version.

        Raises:
            PayloadInvalid, UnknownEvent
        """
        if stored[4] == self._metadata:
            return self.codec.decode(stored[3])
        codec = self.codec
        version = self._schema_of(stored)
        if version == self.version:
            return codec.decode(stored[3])
        return self.built(version, codec.parse(stored[3]))

    def built(self, version: int, fields: Fields) -> E:
        """Returns an event of the fields of any version. Raises PayloadInvalid, UnknownEvent."""
        return self.codec.build(upcast_fields(self.name, version, self.version, fields))

    def current(self, stored: Event) -> Event:
        """Returns the stored event with the payload that its class has today: upcast, with defaults for fields added since.

        Raises:
            PayloadInvalid, UnknownEvent
        """
        data, metadata, format_ = self.codec.encode(self.decode(stored)), stored[4], stored[8] | DATA_IS_JSON
        if self._schema_of(stored) != self.version:
            before = stored.metadata_json() if format_ & METADATA_IS_JSON else None
            others = before if isinstance(before, dict) else {}
            metadata = json.dumps({**others, SCHEMA: self.version}, separators=(",", ":")).encode()
            metadata = enveloped(stored.tags, metadata) if format_ & TAGGED else metadata
            format_ |= METADATA_IS_JSON
        return tuple.__new__(Event, (*stored[:3], data, metadata, *stored[5:8], format_))

    def _schema_of(self, stored: Event) -> int:
        if stored[4] is None or not stored[8] & METADATA_IS_JSON:
            return 1
        metadata = stored.metadata_json()
        try:
            version = metadata.get(SCHEMA, 1) if isinstance(metadata, dict) else 1
            return check_int(SCHEMA, version, 1, SCHEMA_MAX)
        except InvalidArgument as error:
            raise PayloadInvalid(
                f"event {self.name!r} has metadata {shown(stored[4])}: {error}", type=self.name, field="metadata"
            ) from None


def event(name: str | None = None, *, version: int = 1, tags: Iterable[str] = ()) -> Callable[[type[E]], type[E]]:
    """Marks a frozen dataclass as an event, stored under `name` (default: the name of the class), with its schema version.
    `tags`: fields; the event has a tag `field:value` for each, by which it is found across aggregates.

    Raises:
        DomainRefused: it is not a frozen dataclass, name or version are invalid, or a tag is not one of its fields.
    """
    named = tuple(tags)

    def register(cls: type[E]) -> type[E]:
        check_dataclass(cls)
        if _ATTRIBUTE in cls.__dict__:
            raise DomainRefused(f"{class_path(cls)} already has a name; put @event above it once", name=class_path(cls))
        if isinstance(tags, str):
            what = f"@event above {class_path(cls)} has tags={tags!r}; give a tuple of fields, as tags=({tags!r},)"
            raise DomainRefused(what, name=class_path(cls), field="tags")
        known = [field.name for field in fields(cast(Any, cls))]
        if unknown := [each for each in named if each not in known]:
            what = f"@event above {class_path(cls)} names the tag {unknown[0]!r}; its fields are {', '.join(known) or 'none'}"
            raise DomainRefused(what, name=class_path(cls), field=unknown[0])
        setattr(cls, _ATTRIBUTE, _new_type(cls, cls.__name__ if name is None else name, version, named))
        return cls

    if isinstance(name, type):
        raise DomainRefused(f"@event above {name.__name__} needs parentheses: @event()", name=name.__name__)
    return register


def event_type(cls: type[E]) -> EventType[E]:
    """Returns the event type of a class; without `@event` it is stored under the name of the class."""
    existing = cls.__dict__.get(_ATTRIBUTE) if isinstance(cls, type) else None
    if existing is None:
        check_dataclass(cls)
        existing = _new_type(cls, cls.__name__, 1)
        setattr(cls, _ATTRIBUTE, existing)
    return cast("EventType[E]", existing)


def _new_type(cls: type[E], name: str, version: int, tags: tuple[str, ...] = ()) -> EventType[E]:
    try:
        return EventType(cls, check_text("name", name, 1, TYPE_BYTES_MAX), check_int("version", version, 1, SCHEMA_MAX), tags)
    except EventStoreError as error:
        raise DomainRefused(f"@event above {class_path(cls)}: {error.message}", **error.fields) from None
