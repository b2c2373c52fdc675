"""Formats messages as lines: for people, and as JSON, one message a line.

    {"message_id": …, "topic": …, "queue": …, "queue_offset": …, "key": …, "tag": …, "timestamp": …, "properties": {…},
     "body": …}

`timestamp` is ISO 8601. A body that is not text is written as `body_base64`. With several shards, `shard` comes first.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from eventstore.cli.terminal.output import print_line, print_note
from eventstore.fields import for_people

if TYPE_CHECKING:
    from eventstore.records.message import Message

_BODY_SHOWN: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def format_message(message: Message, shard: int | None = None, **more: object) -> str:
    """Formats a message as JSON, without the line break. `shard`: the one it is on, of several. `more`: other members."""
    members: dict[str, object] = {} if shard is None else {"shard": shard}
    members |= {
        "message_id": message.message_id,
        "topic": message.topic,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "key": message.key,
        "tag": message.tag,
        "timestamp": _time(message).isoformat(),
        "properties": message.properties,
        **more,
    }
    try:
        members["body"] = message.body.decode()
    except UnicodeDecodeError:
        members["body_base64"] = base64.b64encode(message.body).decode()
    return json.dumps(members, ensure_ascii=False)


def print_message(message: Message, shard: int | None = None) -> None:
    """Prints a message for people: place, time, key, tag, and the beginning of the body. `shard`: of several."""
    topic = message.topic if shard is None else f"{message.topic}@{shard}"
    position = f"{topic}/{message.queue}@{message.queue_offset}"
    time = _time(message).isoformat(timespec="milliseconds")
    parts = [position, time, for_people(message.key), for_people(message.tag), _body(message)]
    print_line("  ".join(parts))


def print_whole_message(message: Message) -> None:
    """Prints the body of a message to standard output, unchanged, and everything else to standard error."""
    import sys

    facts = {
        "message id": message.message_id,
        "topic": message.topic,
        "queue": str(message.queue),
        "queue offset": str(message.queue_offset),
        "time": _time(message).isoformat(),
        "key": message.key,
        "tag": message.tag,
        **message.properties,
    }
    for name, value in facts.items():
        if value is not None:
            print_note(f"{name}: {value}")
    sys.stdout.buffer.write(message.body + b"\n")


def _body(message: Message) -> str:
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = repr(message.body[:_BODY_SHOWN])
    return text if len(text) <= _BODY_SHOWN else f"{text[:_BODY_SHOWN]}… ({len(message.body):,} bytes)"


def _time(message: Message) -> datetime:
    return _EPOCH + timedelta(microseconds=message.timestamp)
