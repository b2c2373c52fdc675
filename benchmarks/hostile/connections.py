"""Connections of hostile clients: `Client` says hello, and a thread discards what it receives.

They have an address of their own, because the connections of one address share what that gets.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import Hello

SOURCE: Final = "HOSTILE_SOURCE"
HTTP: Final = "HOSTILE_HTTP"
MANY: Final = 100
_FROM: Final = os.environ.get(SOURCE, "127.0.0.2")
_BATCH: Final = 512

Kinds: TypeAlias = dict[str, Callable[[str], None]]
"""What each kind of client does with the address of a server, until it is killed."""

_ready: list[Callable[[], None]] = [lambda: print("ready", flush=True)]
"""What the first connection calls."""


def ready_calls(call: Callable[[], None]) -> None:
    """Has the first connection call that."""
    _ready[:] = [call]


def say_ready() -> None:
    if _ready:
        _ready.pop()()


class Client:
    """A connection that said hello; a thread discards what it receives. The first one says that what it needs is there."""

    def __init__(self, address: str, *, reads: bool = True, ready: bool = True) -> None:
        if ready:
            say_ready()
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), source_address=(_FROM, 0))
        self.socket.sendall(encode_request(1, Hello(1, "hostile")))
        if reads:
            threading.Thread(target=self._discard, daemon=True).start()

    def _discard(self) -> None:
        while self.socket.recv(1 << 20):
            pass

    def repeat(self, frames: bytes) -> None:
        while True:
            self.socket.sendall(frames)


def on_many(address: str, frames: bytes) -> None:
    """Repeats the frames on a hundred connections, each as fast as it takes them."""
    with selectors.DefaultSelector() as selector:
        for _ in range(MANY):
            each = Client(address, reads=False).socket
            each.setblocking(False)
            selector.register(each, selectors.EVENT_READ | selectors.EVENT_WRITE, memoryview(frames))
        while True:
            for key, ready in selector.select():
                with suppress(BlockingIOError):
                    if ready & selectors.EVENT_READ:
                        os.read(key.fd, 1 << 20)
                    if ready & selectors.EVENT_WRITE:
                        rest = key.data[os.write(key.fd, key.data) :]
                        selector.modify(key.fileobj, key.events, rest or memoryview(frames))


def requests(make: Callable[[int], bytes]) -> bytes:
    return b"".join(make(number) for number in range(2, 2 + _BATCH))


def over_http() -> socket.socket:
    host, _, port = os.environ[HTTP].rpartition(":")
    return socket.create_connection((host, int(port)), source_address=(_FROM, 0))


def wait() -> None:
    while True:
        time.sleep(60)
