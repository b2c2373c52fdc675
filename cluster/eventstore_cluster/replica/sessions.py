"""A leader's sessions with its followers: what each has made durable, and which Fetch waits for more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eventstore_cluster.replica.frames import Fetch
from eventstore_cluster.replica.places import LogEnds, reaches
from eventstore_cluster.replica.registry_state import Seat


@dataclass(slots=True)
class FollowerSession:
    """One follower since its latest join. `acked`: durable there; None before its first Fetch.

    `held`: the Fetch that is not answered yet, since `held_since`. `told`: the committed mark that was sent last. `heard_at`:
    when the last Fetch, or the join, came; `answered_at`: when the last one was answered. A follower sends a Fetch when it has
    its answer: it ran at some time since `follows`. `sorted_through`: the last event file that it has sorted.
    """

    number: int
    member: Seat
    connection: int
    heard_at: float
    acked: LogEnds | None = None
    held: Fetch | None = None
    held_since: float = 0.0
    told: LogEnds | None = None
    answered_at: float = 0.0
    follows: float = 0.0
    sorted_through: int = 0

    def heard(self, fetch: Fetch, now: float) -> None:
        self.held, self.held_since, self.heard_at = fetch, now, now
        self.follows, self.sorted_through = self.answered_at, fetch.sorted_through

    def answered(self, told: LogEnds | None, now: float) -> None:
        self.held, self.answered_at = None, now
        self.told = told or self.told


@dataclass(slots=True)
class MemberProgress:
    """When a member was last level with the leader; kept over its sessions.

    `level_at`: it had by then everything that the leader had then. `goal`: what the leader had at `goal_at`, to
    be reached next.
    """

    level_at: float
    goal: LogEnds | None = None
    goal_at: float = 0.0

    def acked(self, ends: LogEnds, written: LogEnds, now: float) -> None:
        if self.goal is not None and reaches(ends, self.goal):
            self.level_at, self.goal = self.goal_at, None
        if reaches(ends, written):
            self.level_at, self.goal = now, None
        elif self.goal is None:
            self.goal, self.goal_at = written, now


class Sessions:
    """A session per node, the latest one: what came on an earlier one counts no more (R4)."""

    def __init__(self) -> None:
        self._by_node: dict[str, FollowerSession] = {}
        self._numbers = 0

    def begin(self, member: Seat, connection: int, now: float) -> FollowerSession:
        self._numbers += 1
        session = self._by_node[member.node] = FollowerSession(self._numbers, member, connection, now, answered_at=now)
        return session

    def find(self, number: int, connection: int) -> FollowerSession | None:
        """Returns the session if it is the latest of its node, and the frame came on its connection."""
        for session in self._by_node.values():
            if session.number == number and session.connection == connection:
                return session
        return None

    def of(self, member: Seat) -> FollowerSession | None:
        session = self._by_node.get(member.node)
        return session if session is not None and session.member == member else None

    def end(self, session: FollowerSession) -> None:
        if self._by_node.get(session.member.node) is session:
            del self._by_node[session.member.node]

    def on(self, connection: int) -> list[FollowerSession]:
        return [session for session in self._by_node.values() if session.connection == connection]

    def __iter__(self) -> Iterator[FollowerSession]:
        return iter(list(self._by_node.values()))
