"""Encodes an event of the store as a message of the broker; docs/BROKER.md, "Events as messages", is normative.

Every event must be a valid message, or it would have to be left out. So anything that does not fit (a tag, large metadata) is
encoded in another way. The message names its event: consumers drop duplicates by that, and a publisher finds in the topic how
far it got.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from eventstore import flat
from eventstore.model import EVENT_BYTES_MAX, ID_BYTES_MAX, METADATA_IS_JSON, TYPE_BYTES_MAX, Event
from eventstore.records.message import BODY_BYTES_MAX, PROPERTIES_BYTES_MAX, TEXT_BYTES_MAX, Message, RawMessage
from eventstore.tags import SEALED

STORE: Final = "store"
SEQUENCE: Final = "sequence"
VERSION: Final = "version"
TYPE: Final = "type"
COMMAND_ID: Final = "command_id"
TIMESTAMP: Final = "timestamp"
FORMAT: Final = "format"
CONTENT_TYPE: Final = "content_type"
CORRELATION_ID: Final = "correlation_id"
CAUSATION_ID: Final = "causation_id"
METADATA: Final = "metadata"
TAGS: Final = "tags"
METADATA_BASE64: Final = "metadata_base64"
METADATA_BYTES: Final = "metadata_bytes"
PARKED: Final = "parked"
METADATA_TEXT_BYTES_MAX: Final = 60 * 1024
"""The bytes that properties leave for metadata as text."""

assert EVENT_BYTES_MAX <= BODY_BYTES_MAX
assert ID_BYTES_MAX <= TEXT_BYTES_MAX
assert TYPE_BYTES_MAX <= TEXT_BYTES_MAX
assert METADATA_TEXT_BYTES_MAX + 4 * ID_BYTES_MAX + 2 * TYPE_BYTES_MAX + 512 <= PROPERTIES_BYTES_MAX


@dataclass(frozen=True, slots=True)
class EventOrigin:
    """Identifies the event of a message. Two histories of a store that both contain it are equal up to it."""

    sequence: int
    aggregate_id: str
    version: int
    command_id: str


def origin_of_event(event: Event) -> EventOrigin:
    return EventOrigin(event.sequence, event.aggregate_id, event.version, event.command_id)


def origin_of_message(message: Message, store: str) -> EventOrigin | None:
    """Returns the event of the store with this uuid that the message was made from; None if it was not made from one."""
    properties = message.properties
    if properties.get(STORE) != store or message.key is None:
        return None
    try:
        return EventOrigin(int(properties[SEQUENCE]), message.key, int(properties[VERSION]), properties[COMMAND_ID])
    except (KeyError, ValueError):  # another sender's message that looks like ours
        return None


def was_parked(message: Message) -> bool:
    """Whether the message was sent late because its event was parked: later events of other aggregates were sent before it."""
    return PARKED in message.properties


def marked_parked(message: RawMessage, record: int) -> RawMessage:
    """Returns the message marked as the message of an event that the record of this sequence parked."""
    body, key, tag, properties, queue = message
    return body, key, tag, (properties or b"") + flat.encode((PARKED, str(record))), queue


class EventMessages:
    """Makes messages from the events of one store."""

    def __init__(self, store: str) -> None:
        self._prefix = flat.encode((STORE, store))

    def made_from(self, event: Event, body: bytes, content_type: str | None = None) -> RawMessage:
        """Returns a message with another body than the event's data. It names its event, and what that is about, and is not the
        event itself: it has neither type, format nor metadata. `content_type`: of the body, None: the domain's own.
        """
        named = (SEQUENCE, str(event.sequence), VERSION, str(event.version), COMMAND_ID, event.command_id)
        properties = self._prefix + flat.encode((*named, TIMESTAMP, str(event.timestamp), *_tags(event), *_ids(event)))
        if content_type is not None:
            properties += flat.encode((CONTENT_TYPE, content_type))
        return body, event.aggregate_id, event.type if may_be_tag(event.type) else None, properties, None

    def of(self, events: Sequence[Event]) -> list[RawMessage]:
        """Returns the messages, in order. Properties that all share are encoded once."""
        prefix, encode = self._prefix, flat.encode
        messages: list[RawMessage] = []
        for event in events:
            aggregate_id, version, type_, data, _, command_id, timestamp, sequence, _ = event
            metadata, tags = event.metadata, _tags(event)
            properties = prefix + encode(
                (
                    SEQUENCE,
                    str(sequence),
                    VERSION,
                    str(version),
                    TYPE,
                    type_,
                    COMMAND_ID,
                    command_id,
                    TIMESTAMP,
                    str(timestamp),
                    FORMAT,
                    "json" if event.is_json and not event[8] & SEALED else "bytes",
                )
            )
            if tags:
                properties += encode(tags)
            if metadata is not None:
                left = METADATA_TEXT_BYTES_MAX - (len(tags[1].encode()) if tags else 0)
                properties += encode(_metadata(event, metadata, left))
                if b"ation_id" in metadata or b"\\" in metadata:  # a backslash may hide a name; most metadata need no parsing
                    properties += encode(_ids(event))
            messages.append((data, aggregate_id, type_ if may_be_tag(type_) else None, properties, None))
        return messages


def may_be_tag(type_: str) -> bool:
    """Whether an event type is usable in a tag filter."""
    return "|" not in type_ and type_ != "*" and type_ == type_.strip()


def _ids(event: Event) -> tuple[str, ...]:
    """Returns the correlation and causation ids as properties, where they differ from the command's id."""
    ids = (CORRELATION_ID, event.correlation_id), (CAUSATION_ID, event.causation_id)
    return tuple(text for name, value in ids if value != event.command_id for text in (name, value))


def _tags(event: Event) -> tuple[str, ...]:
    """Returns a property: the tags, if there are any."""
    tags = event.tags
    return (TAGS, json.dumps(tags, ensure_ascii=False, separators=(",", ":"))) if tags else ()


def _metadata(event: Event, metadata: bytes, text_bytes_max: int) -> tuple[str, str]:
    """Returns a property: the metadata as text if it fits, else its size."""
    if len(metadata) <= text_bytes_max:
        if event[8] & METADATA_IS_JSON:
            try:
                return METADATA, metadata.decode()
            except UnicodeDecodeError:  # the client flagged it as JSON, and this is not checked
                pass
        if 4 * len(metadata) <= 3 * text_bytes_max:
            return METADATA_BASE64, base64.b64encode(metadata).decode()
    return METADATA_BYTES, str(len(metadata))
