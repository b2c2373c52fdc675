"""Consumer groups: JOIN, HEARTBEAT, LEAVE, commits, failed messages, and what operators ask about groups.

What is in memory is answered at once; what has to be on disk before it is answered, by a task.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from eventstore import flat
from eventstore.broker.broker import Broker
from eventstore.broker.group import Assignment
from eventstore.broker.group_offsets import Committed
from eventstore.broker.group_views import all_groups, members_of, queues_of
from eventstore.errors import InvalidArgument
from eventstore.flat import Scalar
from eventstore.protocol import encode_ok
from eventstore.protocol.broker_requests import (
    CommitOffsets,
    DeleteGroup,
    FailMessages,
    ForgetTopic,
    Heartbeat,
    Join,
    Leave,
    ListGroups,
    ListMembers,
    ReplayDead,
    ResetGroup,
    ShowGroup,
)
from eventstore.protocol.limits import ROWS_PER_ANSWER_MAX, SHARES_MAX
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate
from eventstore.server.replies import LIST_BYTES, Replies


class GroupRequests:
    """The operations on consumer groups."""

    def __init__(self, broker: Broker, replies: Replies) -> None:
        self._broker = broker
        self._replies = replies
        self._gate: Gate | None = None

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    # -- members ------------------------------------------------------------------------------------------------------

    def join(self, connection: Connection, request_id: int, request: Join) -> None:
        async def answer() -> Sequence[bytes]:
            consumers = self._broker.consumers
            joined = await consumers.join(request.group, request.member, dict(request.topics), from_end=request.from_end)
            try:
                return (encode_ok(request_id, *_assignment(joined)),)
            except InvalidArgument:
                consumers.leave(request.group, request.member)
                raise

        self._replies.later(connection, request_id, answer)

    def heartbeat(self, connection: Connection, request_id: int, request: Heartbeat) -> None:
        """Raises UnknownGroup, Rebalanced."""
        news = self._broker.consumers.heartbeat(request.group, request.member, request.generation)
        self._say(connection, request_id, () if news is None else _assignment(news))

    def leave(self, connection: Connection, request_id: int, request: Leave) -> None:
        """Raises UnknownGroup."""
        self._broker.consumers.leave(request.group, request.member)
        self._say(connection, request_id, ())

    def commit(self, connection: Connection, request_id: int, request: CommitOffsets) -> None:
        """Raises UnknownGroup, Rebalanced."""
        done = self._broker.consumers.commit(request.group, request.member, request.generation, request.offsets)
        self._say(connection, request_id, flat.chain((each.offset, each.clamped) for each in done))

    def _say(self, connection: Connection, request_id: int, values: Sequence[Scalar]) -> None:
        assert self._gate is not None
        self._gate.send(connection, encode_ok(request_id, *values))

    # -- messages that failed -----------------------------------------------------------------------------------------

    def fail(self, connection: Connection, request_id: int, request: FailMessages) -> None:
        async def answer() -> Sequence[bytes]:
            dead = await self._broker.failures.fail(
                request.group, request.member, request.generation, request.places, request.reason
            )
            return (encode_ok(request_id, *dead),)

        self._replies.later(connection, request_id, answer)

    def replay(self, connection: Connection, request_id: int, request: ReplayDead) -> None:
        async def answer() -> Sequence[bytes]:
            return (encode_ok(request_id, await self._broker.failures.replay(request.group, request.offsets)),)

        self._replies.later(connection, request_id, answer)

    # -- operators ----------------------------------------------------------------------------------------------------

    def reset(self, connection: Connection, request_id: int, request: ResetGroup) -> None:
        async def answer() -> Sequence[bytes]:
            done = await self._reset(request)
            return (encode_ok(request_id, *flat.chain((each.queue, each.offset, each.clamped) for each in done)),)

        self._replies.later(connection, request_id, answer)

    async def _reset(self, request: ResetGroup) -> list[Committed]:
        consumers = self._broker.consumers
        if request.to == "time":
            assert request.value is not None
            return await consumers.reset_to_time(request.group, request.topic, request.value, queue=request.queue)
        to = request.to if request.value is None else request.value
        return await consumers.reset(request.group, request.topic, to, queue=request.queue)

    def delete(self, connection: Connection, request_id: int, request: DeleteGroup) -> None:
        async def answer() -> Sequence[bytes]:
            await self._broker.consumers.delete_group(request.group)
            return (encode_ok(request_id),)

        self._replies.later(connection, request_id, answer)

    def forget_topic(self, connection: Connection, request_id: int, request: ForgetTopic) -> None:
        async def answer() -> Sequence[bytes]:
            await self._broker.consumers.forget_topic(request.group, request.topic)
            return (encode_ok(request_id),)

        self._replies.later(connection, request_id, answer)

    def list(self, connection: Connection, request_id: int, _: ListGroups) -> None:
        async def answer() -> Sequence[bytes]:
            found = all_groups(self._broker.groups)
            return (encode_ok(request_id, *flat.chain((each.name, each.generation, each.members) for each in found)),)

        self._replies.later(connection, request_id, answer, LIST_BYTES)

    def show(self, connection: Connection, request_id: int, request: ShowGroup) -> None:
        async def answer() -> Sequence[bytes]:
            groups = self._broker.groups
            count, found = queues_of(groups, request.group, self._broker.bounds, request.skip, ROWS_PER_ANSWER_MAX)
            rows = ((each.topic, each.queue, each.offset, each.begin, each.end, each.member) for each in found)
            return (encode_ok(request_id, groups.get(request.group).generation, count, *flat.chain(rows)),)

        self._replies.later(connection, request_id, answer, LIST_BYTES)

    def members(self, connection: Connection, request_id: int, request: ListMembers) -> None:
        async def answer() -> Sequence[bytes]:
            found = members_of(self._broker.groups, request.group, time.monotonic())
            rows = [(each.id, round(each.silent_s * 1000), each.queues) for each in found]
            return (encode_ok(request_id, *flat.chain(rows)),)

        self._replies.later(connection, request_id, answer, LIST_BYTES)


def _assignment(assignment: Assignment) -> list[Scalar]:
    """Raises InvalidArgument: more than an answer can say."""
    count = len(assignment.shares)
    if count > SHARES_MAX:
        raise InvalidArgument(
            f"the member would read {count} queues, allowed are {SHARES_MAX}; start more members, or subscribe to fewer topics",
            field="topics",
            limit=SHARES_MAX,
            value=count,
        )
    rows = ((share.topic, share.queue, share.offset, share.tags) for share in assignment.shares)
    return [assignment.generation, *flat.chain(rows)]
