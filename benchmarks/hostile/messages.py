"""Hostile clients of the broker."""

from __future__ import annotations

import os
import selectors
from itertools import count
from typing import Final

import eventstore as es
from benchmarks.harness.quiet_clients import QUIET, QUIET_QUEUES
from benchmarks.hostile.connections import Client, Kinds, on_many, requests
from eventstore.protocol.answers import AnswerDecoder
from eventstore.protocol.broker_requests import FindKey, Pull
from eventstore.protocol.frames import FrameReader
from eventstore.protocol.group_requests import Join, ShowGroup
from eventstore.protocol.message_answers import Messages
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import Unsubscribe
from eventstore.server.net.connection import BOUND_MAX
from tests.collisions import colliding

TOPIC: Final = "tagged"
_WAITING_CONNECTIONS: Final = 190


def _topics(address: str, count_: int, queues: int) -> list[tuple[str, None]]:
    names = [f"topic-{number}" for number in range(count_)]
    with es.blocking.connect(address) as store:
        for name in names:
            store.broker.create_topic(name, queues, if_missing=True)
    return [(name, None) for name in names]


def _ended_pulls(address: str) -> None:
    """Pulls that wait, each of which the next request ends."""
    pull = Pull(64, 4096, 60_000, wants=((TOPIC, 0, 0, "nobody"),))

    def pair(number: int) -> bytes:
        return encode_request(2 * number, pull) + encode_request(2 * number + 1, Unsubscribe(2 * number))

    Client(address).repeat(requests(pair))


def _waiting_pulls(address: str) -> None:
    """As many pulls as may wait, all for the queues that the quiet clients send to; those that are answered are asked again."""
    offsets, decode = [0] * QUIET_QUEUES, AnswerDecoder().decode

    def pull(number: int) -> bytes:
        wants = tuple((QUIET, queue, offset, None) for queue, offset in enumerate(offsets))
        return encode_request(number, Pull(1, 4096, 60_000, wants=wants))

    with selectors.DefaultSelector() as selector:
        for _ in range(_WAITING_CONNECTIONS):
            each = Client(address, reads=False).socket
            each.sendall(b"".join(map(pull, range(2, 2 + BOUND_MAX))))
            selector.register(each, selectors.EVENT_READ, FrameReader())
        while True:
            for key, _ready in selector.select():
                answers = map(decode, key.data.feed(os.read(key.fd, 1 << 20)))
                answered = [(number, answer) for number, answer in answers if isinstance(answer, Messages)]
                for _, answer in answered:
                    offsets = [max(offset, page.next_offset) for offset, page in zip(offsets, answer.pages, strict=True)]
                os.write(key.fd, b"".join(pull(number) for number, _ in answered))


def _pulls(address: str) -> None:
    """Messages with a tag that no message has."""
    pull = Pull(64, 4096, wants=((TOPIC, 0, 0, "nobody"),))
    Client(address).repeat(requests(lambda number: encode_request(number, pull)))


def _colliding_keys(address: str) -> None:
    """Look-ups by a key that shares its CRC with those of many messages."""
    *keys, wanted = colliding(5_001)
    with es.blocking.connect(address) as store:
        for first in range(0, len(keys), 1_000):
            store.topic(TOPIC).send_many([es.NewMessage(b"{}", key=each) for each in keys[first : first + 1_000]])
    Client(address).repeat(requests(lambda number: encode_request(number, FindKey(TOPIC, wanted))))


def _offsets(address: str) -> None:
    """Joins of ever new groups that read as many queues as a member may."""
    wanted, client = tuple(_topics(address, 64, 256)), Client(address)
    for turn in count(2):
        client.socket.sendall(encode_request(turn, Join(f"group-{turn}", "member", topics=wanted)))


def _members(address: str) -> None:
    """Joins of hundreds of members that read hundreds of topics."""
    wanted, client = tuple(_topics(address, 300, 1)), Client(address)
    for turn in count(2):
        client.socket.sendall(encode_request(turn, Join("group", f"member-{turn % 326}", topics=wanted)))


def _listed_groups(address: str) -> None:
    """The progress of a group that reads as many queues as a member may."""
    wanted, client = tuple(_topics(address, 64, 256)), Client(address)
    client.socket.sendall(encode_request(2, Join("group", "member", topics=wanted)))
    client.repeat(requests(lambda number: encode_request(number, ShowGroup("group"))))


def _listed_on_many(address: str) -> None:
    """The same, on a hundred connections."""
    wanted, client = tuple(_topics(address, 64, 256)), Client(address)
    client.socket.sendall(encode_request(2, Join("group", "member", topics=wanted)))
    on_many(address, requests(lambda number: encode_request(number, ShowGroup("group"))))


KINDS: Final[Kinds] = {
    "pulls that are ended at once": _ended_pulls,
    "pulls of one topic": _waiting_pulls,
    "pulls of a tag nobody has": _pulls,
    "keys with one CRC": _colliding_keys,
    "offsets of many groups": _offsets,
    "members of many topics": _members,
    "groups of many queues": _listed_groups,
    "groups on many connections": _listed_on_many,
}
