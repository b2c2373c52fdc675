"""Hostile clients that repeat one kind of request as fast as one connection takes it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final, NamedTuple

import eventstore as es
from eventstore.protocol.broker_requests import CreateTopic, ListChunks
from eventstore.protocol.group_requests import CommitOffsets, Join, ResetGroup, SetRetries
from eventstore.protocol.reaction_requests import ListAlarms
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import FindCommand, ListAggregates, Map, Subscribe, Unsubscribe, Version

TOPICS: Final = 60
QUEUES: Final = 256
_GROUP: Final = "flooded"
_MEMBER: Final = "member"
_names = tuple(f"flooded-{number}" for number in range(TOPICS))


class Flood(NamedTuple):
    """`frames`: the requests with the numbers from this one on, which are sent again and again or made again each time (`new`).
    `group`: needs a group that reads all queues of `TOPICS` topics.
    """

    frames: Callable[[int], bytes]
    new: bool = False
    group: bool = False


def _each(make: Callable[[int], Request], many: int = 512) -> Callable[[int], bytes]:
    return lambda first: b"".join(encode_request(number, make(number)) for number in range(first, first + many))


def _come_and_go(number: int) -> Request:
    return Unsubscribe(number - 1) if number % 2 else Subscribe(types=("nobody",))


def _commit(_: int) -> Request:
    return CommitOffsets(_GROUP, _MEMBER, 1, offsets=tuple((name, queue, 0) for name in _names for queue in range(QUEUES)))


def _reset(number: int) -> Request:
    return ResetGroup(_GROUP, _names[number % TOPICS], None, "start" if number % 2 else "end")


FLOODS: Final[dict[str, Flood]] = {
    "subscriptions that come and go": Flood(_each(_come_and_go)),
    "look-ups of commands": Flood(_each(lambda number: FindCommand(f"filled-{number}", "c"))),
    "versions": Flood(_each(lambda number: Version(f"filled-{number}"))),
    "lists of aggregates": Flood(_each(lambda _: ListAggregates("filled-"))),
    "lists of chunks and alarms": Flood(_each(lambda number: ListChunks() if number % 2 else ListAlarms())),
    "maps that are waited for": Flood(_each(lambda number: Unsubscribe(number - 1) if number % 2 else Map(after=1 << 40))),
    "retry policies": Flood(_each(lambda number: SetRetries(f"group-{number}", 3, None, (number,)))),
    "offsets that are committed": Flood(_each(_commit, 4), group=True),
    "groups that are reset": Flood(_each(_reset), group=True),
    "topics of many queues": Flood(_each(lambda number: CreateTopic(f"many-{number}", QUEUES)), new=True),
}


def prepare(flood: Flood, address: str) -> bytes:
    """Makes what a flood needs; returns what its connection sends first."""
    if not flood.group:
        return b""
    with es.blocking.connect(address) as store:
        for name in _names:
            store.broker.create_topic(name, QUEUES, if_missing=True)
    return encode_request(2, Join(_GROUP, _MEMBER, topics=tuple((name, None) for name in _names)))


def send(flood: Flood, sendall: Callable[[bytes], None]) -> None:
    """Sends until the connection is closed."""
    frames = flood.frames(4)
    for turn in count():
        sendall(flood.frames(4 + 512 * turn) if flood.new else frames)
