"""Broker calls whose request or answer takes more than a line: resets, pulls, dead letters, a group's progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from eventstore.client.session.broker_info import GroupQueue, PulledQueue
from eventstore.client.session.calls import Call
from eventstore.client.session.results import field_types, read_messages, rows
from eventstore.errors import InvalidArgument, ProtocolError, UnknownTopic
from eventstore.fields import check_int, check_number, check_text, shown
from eventstore.model import micros
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


def read_progress(call: Call[Any]) -> tuple[int, int, list[GroupQueue]]:
    """Returns a group's generation, its number of queues in all, and the queues of this answer."""
    values = call.ok().values
    ((generation, total),) = rows(lambda *both: both, ((int,), (int,)), values[:2], "ShowGroup") or [(0, 0)]
    return generation, total, rows(GroupQueue, field_types(GroupQueue), values[2:], "ShowGroup")


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


def read_retries(call: Call[Any]) -> Retries:
    """Reads a group's retry policy."""
    attempts, dead_letters, *delays_ms = cast("Sequence[Any]", call.ok().values)
    return Retries(tuple(each / 1000 for each in delays_ms), attempts, dead_letters)


def dead_letters_request(group: str, offset: int, limit: int) -> Pull:
    """Returns the pull that reads a group's dead letters."""
    _check_limit(limit)
    return Pull(limit, PAGE_BYTES_MAX, wants=((dead_topic(check_text("group", group)), DEAD_QUEUE, offset, None),))


def read_dead_letters(call: Call[Any]) -> list[Message]:
    """Reads dead letters; the topic is created with the first one, so none are there before it is."""
    try:
        return read_messages(call)
    except UnknownTopic:
        return []


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


def read_pulled(call: Call[Any]) -> Pulled:
    """Reads the answer to a pull."""
    wants, answer = cast(Pull, call.request).wants, call.messages()
    if len(answer.pages) != len(wants):
        raise ProtocolError(f"a pull of {len(wants)} queues was answered by {len(answer.pages)} pages")
    queues = (
        PulledQueue(topic, queue, page.messages, page.next_offset, page.begin, page.end, page.clamped)
        for (topic, queue, *_), page in zip(wants, answer.pages, strict=True)
    )
    return Pulled(answer.records, answer.count, tuple(queues))
