"""Hostile clients that ask for little, very often, or that only stay."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import count
from typing import Final

from benchmarks.hostile.connections import MANY, Client, Kinds, on_many, requests
from eventstore.protocol.frames import LENGTH, encode_frame
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import Map, Ping, Stats

_UNKNOWN_CODE: Final = 250
_FRAMES: Final = 512


def _pings(address: str) -> None:
    Client(address).repeat(requests(lambda number: encode_request(number, Ping())))


def _many_pings(address: str) -> None:
    """Pings on a hundred connections."""
    on_many(address, requests(lambda number: encode_request(number, Ping())))


def _unread(address: str) -> None:
    """Figures on a hundred connections, none of which reads its answers."""
    clients = [Client(address, reads=False).socket for _ in range(MANY)]
    for number in count(2):
        for client in clients:
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.send(encode_request(number, Stats()))
        time.sleep(0.001)


def _garbage(address: str) -> None:
    Client(address).repeat((LENGTH.pack(1) + b"\x00") * _FRAMES)


def _unknown(address: str) -> None:
    Client(address).repeat(requests(lambda number: encode_frame(number, _UNKNOWN_CODE, ())))


def _silent(address: str) -> None:
    """A thousand connections that say hello and nothing more."""
    kept = [Client(address, reads=False) for _ in range(1_000)]
    while kept:
        time.sleep(60)


def _maps(address: str) -> None:
    Client(address).repeat(requests(lambda number: encode_request(number, Map())))


def _visitors(address: str) -> None:
    """Connections that say hello, wait for the answer and go."""
    while True:
        visitor = Client(address, reads=False).socket
        visitor.recv(4096)
        visitor.close()


KINDS: Final[Kinds] = {
    "pings": _pings,
    "pings on many connections": _many_pings,
    "answers that nobody reads": _unread,
    "garbage": _garbage,
    "unknown requests": _unknown,
    "silent connections": _silent,
    "maps": _maps,
    "connections that come and go": _visitors,
}
