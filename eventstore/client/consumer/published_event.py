"""Makes the event again from a message that publishing made from it; docs/BROKER.md, "Events as messages"."""

from __future__ import annotations

import base64
import json

from eventstore.errors import InvalidArgument, PayloadInvalid
from eventstore.fields import check_int, check_text
from eventstore.model import (
    DATA_IS_JSON,
    ID_BYTES_MAX,
    METADATA_IS_JSON,
    TIME_MAX,
    TIME_MIN,
    TYPE_BYTES_MAX,
    VERSION_MAX,
    Event,
)
from eventstore.records import event_message as names
from eventstore.records.message import Message
from eventstore.tags import TAGGED, checked_tags, enveloped


def _place(message: Message) -> str:
    return f"message of topic {message.topic!r}, queue {message.queue}, offset {message.queue_offset}"


def published_event(message: Message) -> Event:
    """Returns the event that a message was made from.

    Raises:
        PayloadInvalid: it was made from none, or its metadata are too large for a message.
    """
    properties = message.properties
    if names.STORE not in properties or names.SEQUENCE not in properties:
        raise _invalid(message, names.STORE, "is not a published event: it lacks the properties of one")
    if names.METADATA_BYTES in properties:
        raise _invalid(
            message,
            "metadata",
            f"has not the event's metadata: {properties[names.METADATA_BYTES]:.20} bytes are too many for properties; read "
            f"version {properties.get(names.VERSION, ''):.20} of aggregate {message.key!r} from the store",
        )
    try:
        format_, metadata = DATA_IS_JSON if properties[names.FORMAT] == "json" else 0, None
        if names.METADATA in properties:
            metadata, format_ = properties[names.METADATA].encode(), format_ | METADATA_IS_JSON
        elif names.METADATA_BASE64 in properties:
            metadata = base64.b64decode(properties[names.METADATA_BASE64], validate=True)
        if names.TAGS in properties:
            tags = checked_tags(json.loads(properties[names.TAGS]))
            metadata, format_ = enveloped(tags, metadata), format_ | TAGGED
        values = (
            check_text("key", message.key, 1, ID_BYTES_MAX),
            check_int(names.VERSION, int(properties[names.VERSION]), 1, VERSION_MAX),
            check_text(names.TYPE, properties[names.TYPE], 1, TYPE_BYTES_MAX),
            message.body,
            metadata,
            check_text(names.COMMAND_ID, properties[names.COMMAND_ID], 1, ID_BYTES_MAX),
            check_int(names.TIMESTAMP, int(properties[names.TIMESTAMP]), TIME_MIN, TIME_MAX),
            check_int(names.SEQUENCE, int(properties[names.SEQUENCE]), 1, VERSION_MAX),
            format_,
        )
    except KeyError as error:
        raise _invalid(message, str(error.args[0]), f"is not a published event: it has no property {error}") from None
    except (ValueError, InvalidArgument) as error:
        raise _invalid(message, "properties", f"is not a published event: {error!s:.200}") from None
    return tuple.__new__(Event, values)


def _invalid(message: Message, field: str, what: str) -> PayloadInvalid:
    return PayloadInvalid(
        f"{_place(message)} {what}",
        field=field,
        topic=message.topic,
        queue=message.queue,
        offset=message.queue_offset,
    )


def not_json(message: Message, error: Exception) -> PayloadInvalid:
    """Returns the error for a body that is not JSON."""
    found = f"{message.body!r:.80} and not JSON ({error!s:.200})" if message.body else "empty"
    return _invalid(message, "body", f"has a body that is {found}; `body` has the raw bytes")
