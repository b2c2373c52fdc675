"""The run queue: connections that wait for their slice, because others have more to do than a turn allows.

A connection is *busy* whose last slice ended before its requests did, or that took longer than a turn twice. Those that are not
are served as soon as they are ready, also if each of their requests takes long: they wait for one before they send the next.
Busy ones, and all that are ready after the others took `QUICK_S_MAX`, wait here, and get one slice each until those took
`TURN_S`. So a turn is short however many connections flood, and a client that asks for little waits for one turn at most. Peers
are served in rotation, and so are the connections of a peer: a client with a hundred connections gets no more than one with a
single connection. A peer is an identity, or an address where there are no identities.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from eventstore.server.net.connection import ServerConnection

SLICE_S: Final = 0.0005
TURN_S: Final = 0.001
QUICK_S_MAX: Final = 0.005
_SEVERAL: Final = 3
ACTIVE_S: Final = 0.05
"""A client that was served within this time is likely to ask again."""


class RunQueue:
    """Connections that wait.

    Attributes:
        peers: by peer.
        spent_s: what this turn took so far, and what its requests will still take.
        quick_at: when one was served that did not wait here.
        quick: how many of them in this turn.
        rests_until: no connection that waits is served before.
    """

    def __init__(self) -> None:
        self.peers: dict[str, deque[ServerConnection]] = {}
        self.spent_s = 0.0
        self.rests_until = self.quick_at = self._several_at = 0.0
        self.quick = 0

    def begin_turn(self) -> None:
        """Notes how many were quick in the turn before."""
        if self.quick >= _SEVERAL:
            self._several_at = self.quick_at
        self.quick = 0

    def serves_others(self, now: float) -> bool:
        """Whether clients are served as well that do not wait here."""
        return now - self.quick_at < ACTIVE_S

    def serves_several(self, now: float) -> bool:
        """Whether several of them asked in one turn lately: they would have half of their rate if those who take more had half
        of the time.
        """
        return now - self._several_at < ACTIVE_S

    def add(self, connection: ServerConnection) -> None:
        """Has a connection wait, until `served` yields it. It is not read meanwhile."""
        connection.queued = True
        self.peers.setdefault(connection.peer, deque()).append(connection)

    def check_invariants(self, connections: Iterable[ServerConnection]) -> None:
        """For tests. Raises AssertionError unless those of these connections wait here, once, that are `queued`."""
        waiting = [each for peer in self.peers.values() for each in peer]
        assert all(self.peers.values()), f"peers are waited for without a connection: {list(self.peers)}"
        assert len(waiting) == len(set(waiting)), f"one waits twice: {[each.title for each in waiting]}"
        for each in connections:
            assert each.queued == (each in waiting), f"{each.title}: queued is {each.queued}, it waits: {each in waiting}"

    def served(self) -> Iterator[ServerConnection]:
        """Yields the connections whose turn it is. Add to `spent_s` what each took before the next is requested."""
        end = self.spent_s + TURN_S
        while self.peers and self.spent_s < end:
            yield self._next_of(next(iter(self.peers)))

    def _next_of(self, peer: str) -> ServerConnection:
        waiting = self.peers.pop(peer)
        connection = waiting.popleft()
        connection.queued = False
        if waiting:
            self.peers[peer] = waiting
        return connection
