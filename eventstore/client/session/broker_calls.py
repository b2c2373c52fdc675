"""Broker calls whose request or answer takes more than a line: resets, pulls, dead letters, a group's progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, cast

from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.fields import check_int, check_number, check_text, shown
from eventstore.model import micros
from eventstore.protocol.broker_info import PulledQueue, ShownRetries
from eventstore.protocol.broker_requests import OffsetAt, Pull, WireWant
from eventstore.protocol.group_requests import ResetGroup, SetRetries, UnsetRetries
from eventstore.protocol.limits import (
    DELAY_MS_MAX,
    DELAYS_MAX,
    INT64_MAX,
    PAGE_BYTES_DEFAULT,
    PAGE_BYTES_MAX,
    PULL_MESSAGES_MAX,
    PULL_WAIT_MS_MAX,
)
from eventstore.protocol.message_answers import Messages
from eventstore.records.consumer_groups import Retries
from eventstore.records.message import Message, decode_messages
from eventstore.records.topic_names import dead_topic

DEAD_QUEUE: Final = 0
_WANT_VALUES: Final = 4


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to a pull: `count` whole message records of `queues`, in this order."""

    records: bytes | memoryview
    count: int
    queues: tuple[PulledQueue, ...]

    def messages(self) -> list[Message]:
        """Returns the messages, in order."""
        return decode_messages(bytes(self.records), self.count)


def reset_request(group: str, topic: str, to: str | int | datetime, queue: int | None) -> ResetGroup:
    """Returns the request that sets a group's offset. Raises InvalidArgument."""
    if isinstance(to, datetime):
        return ResetGroup(group, topic, queue, "time", micros(to, "to"))
    if isinstance(to, str) and to in ("start", "end"):
        return ResetGroup(group, topic, queue, to)
    if to.__class__ is int:
        return ResetGroup(group, topic, queue, "offset", check_int("to", to, 0, INT64_MAX))
    text = f'to is {shown(to)}; allowed are "start", "end", an offset (int) and a time (aware datetime)'
    raise InvalidArgument(text, field="to", value=shown(to))


def offset_request(topic: str, queue: int, time: int | datetime) -> OffsetAt:
    """Returns the request for the offset of a time."""
    return OffsetAt(topic, queue, cast(int, micros(time, "time")))


def set_retries_request(group: str, retries: Retries | None) -> SetRetries | UnsetRetries:
    """Returns the request that changes a group's retry policy. Raises InvalidArgument."""
    if retries is None:
        return UnsetRetries(group)
    return SetRetries(group, retries.attempts, retries.dead_letters, tuple(map(_delay_ms, _delays(retries))))


def _delays(retries: Retries) -> Sequence[float]:
    if len(retries.delays) > DELAYS_MAX:
        raise InvalidArgument(
            f"there are {len(retries.delays)} delays, allowed are 0 to {DELAYS_MAX}",
            field="delays",
            limit=DELAYS_MAX,
            value=len(retries.delays),
        )
    return retries.delays


def _delay_ms(seconds: float) -> int:
    return round(1000 * check_number("delays", seconds, 0, DELAY_MS_MAX / 1000))


def retries_of(shown: ShownRetries) -> Retries:
    """Returns a group's retry policy."""
    return Retries(tuple(each / 1000 for each in shown.delays_ms), shown.attempts, shown.dead_letters)


def dead_letters_request(group: str, offset: int, limit: int) -> Pull:
    """Returns the pull that reads a group's dead letters."""
    _check_limit(limit)
    return Pull(limit, PAGE_BYTES_MAX, wants=((dead_topic(check_text("group", group)), DEAD_QUEUE, offset, None),))


def messages_of(found: Messages) -> list[Message]:
    """Returns the messages of an answer."""
    return decode_messages(bytes(found.records), found.count)


def message_of(found: Messages) -> Message | None:
    """Returns the message of an answer of one at most."""
    return next(iter(messages_of(found)), None)


def pull_request(wants: Sequence[WireWant], limit: int, size_bytes: int | None, wait_s: float) -> Pull:
    """Returns the pull of these queues."""
    _check_limit(limit)
    if size_bytes is not None:
        check_int("size_bytes", size_bytes, 1, PAGE_BYTES_MAX)
    wait_ms = int(min(max(check_number("wait", wait_s), 0.0) * 1000, PULL_WAIT_MS_MAX))
    return Pull(limit, PAGE_BYTES_DEFAULT if size_bytes is None else size_bytes, wait_ms, wants=tuple(map(_want, wants)))


def _want(want: WireWant) -> WireWant:
    if len(want) != _WANT_VALUES:
        raise InvalidArgument(
            f"wants has {shown(want)}; each takes topic, queue, offset, and tags or None", field="wants", value=shown(want)
        )
    topic, queue, offset, tags = want
    return topic, queue, offset, tags


def _check_limit(limit: int) -> None:
    check_int("limit", limit, 1, PULL_MESSAGES_MAX)


def pulled_of(request: Pull, answer: Messages) -> Pulled:
    """Returns what a pull was answered by. Raises ProtocolError."""
    wants = request.wants
    if len(answer.pages) != len(wants):
        raise ProtocolError(f"a pull of {len(wants)} queues was answered by {len(answer.pages)} pages")
    queues = (
        PulledQueue(topic, queue, page.messages, page.next_offset, page.begin, page.end, page.clamped)
        for (topic, queue, *_), page in zip(wants, answer.pages, strict=True)
    )
    return Pulled(answer.records, answer.count, tuple(queues))
