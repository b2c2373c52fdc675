"""The clients of the HTTP API: who they are, what they make the server hold, and the streams that they have open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio
from starlette.requests import Request

from eventstore.console.subject import Subject
from eventstore.console.visitors import Visitor, Visitors
from eventstore.errors import Overloaded
from eventstore.fields import size_text
from eventstore.http_api.group_members import HttpMembers

HELD_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bodies and pages of all requests together; beyond it requests are refused."""
STREAMS_MAX: Final = 60
"""Open streams of events: less than the 64 subscriptions of one connection, which all clients share if identities are off."""
STREAMS_EACH_MAX: Final = 20
"""Of them of one identity; one more is refused."""
_BEARER: Final = "bearer "


class HeldBytes:
    """What one request holds."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self._bytes = clients, 0

    def add(self, size: int) -> None:
        """Counts bytes that the request holds from now on. Raises Overloaded: all together hold too many."""
        if self._clients.held_bytes + size > HELD_BYTES_MAX:
            what = f"requests of HTTP hold {size_text(self._clients.held_bytes)}, the limit is {size_text(HELD_BYTES_MAX)}"
            raise Overloaded(f"{what}; send it again", limit=HELD_BYTES_MAX)
        self._bytes += size
        self._clients.held_bytes += size

    def release(self) -> None:
        """Forgets what the request held."""
        self._clients.held_bytes -= self._bytes
        self._bytes = 0


class Clients:
    """All clients. `run` has to run while they ask."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.visitors = Visitors(subject, "http")
        self.held_bytes = 0
        self.members = HttpMembers(self.visitors)
        self._streams: Counter[str | None] = Counter()

    def who(self, request: Request) -> Visitor:
        """Returns who asks, by the token in the header Authorization. Raises Unauthenticated, Overloaded."""
        given = request.headers.get("authorization", "")
        token = given[len(_BEARER) :].strip() if given.lower().startswith(_BEARER) else None
        return self.visitors.bearer(token, "" if request.client is None else request.client.host)

    @contextmanager
    def streaming(self, name: str | None) -> Iterator[None]:
        """Counts an open stream of this identity. Raises Overloaded: it has too many, or all together have."""
        most = STREAMS_MAX if name is None else STREAMS_EACH_MAX
        if self._streams[name] >= most or self._streams.total() >= STREAMS_MAX:
            raise Overloaded(
                f"{self._streams[name]} streams of events are open, {self._streams.total()} with those of all; allowed are "
                f"{most} and {STREAMS_MAX}: close one",
                limit=most,
            )
        self._streams[name] += 1
        try:
            yield
        finally:
            self._streams[name] -= 1

    async def run(self) -> None:
        """Keeps the connections of clients to the store, and their members of groups, until cancelled."""
        async with trio.open_nursery() as self.members.nursery:
            await self.visitors.run()
