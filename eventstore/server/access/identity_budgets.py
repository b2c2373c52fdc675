"""Limits of an identity over all its connections: over them, these are not read for a while, as one over its own limit is.

Every frame counts, also one that any client may send, or that makes no sense. Nothing is refused: TCP holds back the
sender. Each connection may exceed a limit by one request and the answers it waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import trio

from eventstore.security.access_list import Identity
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate

HELD_BY_IDENTITY: Final = 16
_BURST_S: Final = 1.0  # of bytes: what an identity may take at once after a pause
_LOOK_S: Final = 0.005


@dataclass(slots=True)
class _Bytes:
    """Bytes of requests and answers up to `at`, less what the rate allows since."""

    taken: float = 0.0
    at: float = 0.0

    def drained(self, rate: int, now: float) -> float:
        self.taken = max(0.0, self.taken - (now - self.at) * rate)
        self.at = now
        return self.taken


class _CountedFrames(deque[bytes | memoryview]):
    """Answers of a connection that are not sent. So those of others, which have no such limit, cost nothing to count."""

    def __init__(self, used: _Bytes, frames: Iterable[bytes | memoryview]) -> None:
        super().__init__(frames)
        self._used = used

    def append(self, frame: bytes | memoryview, /) -> None:
        super().append(frame)
        self._used.taken += len(frame)


class IdentityBudgets:
    """`held` counts how often a connection had to wait."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._bytes: dict[str, _Bytes] = {}
        self._waiting: dict[ServerConnection, tuple[Identity, Iterable[ServerConnection]]] = {}
        self._news = trio.Event()
        self.held = 0

    def count_answers(self, connection: ServerConnection, identity: Identity) -> None:
        """Counts the answers to a connection, if its identity has a limit of bytes."""
        if identity.limits.bytes_a_second is not None and not isinstance(connection.unsent, _CountedFrames):
            connection.unsent = _CountedFrames(self._used(identity), connection.unsent)

    def _used(self, identity: Identity) -> _Bytes:
        return self._bytes.setdefault(identity.name, _Bytes(at=perf_counter()))

    def charge(self, connection: ServerConnection, identity: Identity, others: Iterable[ServerConnection]) -> None:
        """Counts the request that a connection has just brought. `others`: all connections of the identity, at any time."""
        rate = identity.limits.bytes_a_second
        if rate is not None:
            used = self._used(identity)
            used.drained(rate, perf_counter())
            used.taken += connection.request_bytes
        if connection not in self._waiting and self._is_over(identity, others, one_more=1):
            self.held += 1
            self._waiting[connection] = identity, others
            self._gate.hold(connection, HELD_BY_IDENTITY)
            self._news.set()

    def _is_over(self, identity: Identity, others: Iterable[ServerConnection], one_more: int = 0) -> bool:
        """`one_more`: the request that is being taken, and is not counted by its connection yet."""
        limits = identity.limits
        if limits.bytes_a_second is not None:
            used = self._bytes.get(identity.name)
            if used is not None and used.drained(limits.bytes_a_second, perf_counter()) > limits.bytes_a_second * _BURST_S:
                return True
        return limits.requests is not None and sum(each.owed for each in others) + one_more >= limits.requests

    async def run(self) -> None:
        """Has connections read again that are within the limits, until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._waiting:
                await trio.sleep(_LOOK_S)
                for connection, (identity, others) in list(self._waiting.items()):
                    if connection.closed or not self._is_over(identity, others):
                        del self._waiting[connection]
                        if not connection.closed:
                            self._gate.hold(connection, HELD_BY_IDENTITY, False)
                self._gate.flush()
