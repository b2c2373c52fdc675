"""Answers FOLLOW_REACTIONS: waits until the reactions of this process have handled an event, and says what they made of it."""

from __future__ import annotations

from typing import ClassVar, Final, Protocol

import trio

from eventstore.errors import EventStoreError, Overloaded
from eventstore.protocol import encode_answer, encode_error
from eventstore.protocol.reaction_info import FollowedChain
from eventstore.protocol.reaction_requests import FollowReactions
from eventstore.server.feature import Feature
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.deferred_replies import explain_failed_read
from eventstore.server.net.gate import Gate
from eventstore.server.net.request_task import RequestTask

FOLLOWED_MAX: Final = 1_000
"""Of all connections together: each has a task."""


class FollowingReactions(Protocol):
    async def followed(self, sequence: int | None, correlation_id: str | None) -> FollowedChain: ...


class _Waiting:
    """A request that is not answered yet; ends with its connection."""

    use = None
    light: ClassVar[bool] = True

    def __init__(self, task: RequestTask) -> None:
        self.task = task
        self.moved: EventStoreError | None = None

    def cancel(self) -> None:
        self.task.cancel()


class FollowedChains:
    """The requests that wait."""

    def __init__(self, gate: Gate, nursery: trio.Nursery, reactions: FollowingReactions) -> None:
        self._gate, self._nursery, self._reactions = gate, nursery, reactions
        self._waiting: set[_Waiting] = set()
        self.feature = Feature(routes={FollowReactions: self._begin})

    def moved(self, error: EventStoreError) -> None:
        """Ends all: the shard was split, and some of what they wait for is another one's."""
        for each in self._waiting:
            each.moved = error
            each.task.cancel()

    def _begin(self, connection: ServerConnection, request_id: int, request: FollowReactions) -> None:
        if len(self._waiting) >= FOLLOWED_MAX:
            raise Overloaded(f"{FOLLOWED_MAX:,} wait for reactions, the limit; try again later", limit=FOLLOWED_MAX)
        waiting = _Waiting(RequestTask(self._gate, connection))
        connection.bind(request_id, waiting)
        self._waiting.add(waiting)
        self._nursery.start_soon(self._serve, connection, request_id, request, waiting)

    async def _serve(self, connection: ServerConnection, request_id: int, request: FollowReactions, waiting: _Waiting) -> None:
        answer = b""
        try:
            with waiting.task.begin():
                chain = await self._reactions.followed(request.sequence, request.correlation_id)
                answer = encode_answer(request_id, FollowReactions, chain)
            if waiting.moved is not None:
                answer = encode_error(request_id, waiting.moved)
        except Exception as error:
            answer = encode_error(request_id, explain_failed_read("wait", error))
        self._waiting.discard(waiting)
        if connection.unbind(request_id, waiting) and answer:
            self._gate.send(connection, answer)
            self._gate.flush()
