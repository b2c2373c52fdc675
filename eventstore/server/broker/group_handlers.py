"""Handlers of consumer groups: members, committed offsets, failed messages, and what operators ask and change.

What memory can answer is answered at once; what must be durable first, by a task.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from eventstore import flat
from eventstore.broker.broker import Broker
from eventstore.broker.groups.group import Assignment
from eventstore.broker.groups.views import all_groups, members_of, oldest_in_hand, queues_of
from eventstore.broker.retry_policy import RetryPolicy
from eventstore.flat import Scalar
from eventstore.protocol.group_requests import (
    CommitOffsets,
    DeleteGroup,
    FailInPlace,
    FailMessages,
    ForgetTopic,
    Heartbeat,
    Join,
    Leave,
    ListGroups,
    ListInHand,
    ListMembers,
    ReplayDead,
    ResetGroup,
    SetRetries,
    ShowGroup,
    ShowRetries,
    UnsetRetries,
)
from eventstore.protocol.limits import ROWS_PER_ANSWER_MAX
from eventstore.server.broker.handlers import answers
from eventstore.server.net.deferred_replies import LIST_BYTES


class GroupHandlers:
    """The operations on consumer groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._coordinator = broker.coordinator

    # -- members ------------------------------------------------------------------------------------------------------

    @answers(Join)
    async def join(self, request: Join) -> Sequence[Scalar]:
        return _assignment(
            await self._coordinator.join(request.group, request.member, dict(request.topics), from_end=request.from_end)
        )

    @answers(Heartbeat)
    def heartbeat(self, request: Heartbeat) -> Sequence[Scalar]:
        """Raises UnknownGroup, Rebalanced."""
        assignment = self._coordinator.heartbeat(request.group, request.member, request.generation)
        return () if assignment is None else _assignment(assignment)

    @answers(Leave)
    async def leave(self, request: Leave) -> Sequence[Scalar]:
        """Waits for nothing, but is a task, after the one of a join that was sent before it: a consumer may be cancelled while
        it joins. Raises UnknownGroup.
        """
        self._coordinator.leave(request.group, request.member)
        return ()

    @answers(CommitOffsets)
    def commit(self, request: CommitOffsets) -> Sequence[Scalar]:
        """Raises UnknownGroup, Rebalanced."""
        committed = self._coordinator.commit(request.group, request.member, request.generation, request.offsets)
        return flat.chain((each.offset, each.clamped) for each in committed)

    # -- failed messages ----------------------------------------------------------------------------------------------

    @answers(FailMessages)
    async def fail(self, request: FailMessages) -> Sequence[Scalar]:
        return await self._broker.failed_messages.fail(
            request.group, request.member, request.generation, request.places, request.reason
        )

    @answers(FailInPlace)
    async def fail_in_place(self, request: FailInPlace) -> Sequence[Scalar]:
        delays_s = await self._broker.failed_messages.fail_in_place(
            request.group, request.member, request.generation, request.places, request.reason
        )
        return [None if each is None else math.ceil(each * 1000) for each in delays_s]

    @answers(SetRetries)
    async def set_retries(self, request: SetRetries) -> Sequence[Scalar]:
        delays_s = tuple(each / 1000 for each in request.delays_ms)
        await self._coordinator.set_policy(request.group, RetryPolicy(delays_s, request.attempts, request.dead_letters))
        return ()

    @answers(UnsetRetries)
    async def unset_retries(self, request: UnsetRetries) -> Sequence[Scalar]:
        self._broker.groups.get(request.group)
        await self._coordinator.set_policy(request.group, None)
        return ()

    @answers(ShowRetries)
    async def show_retries(self, request: ShowRetries) -> Sequence[Scalar]:
        self._broker.groups.get(request.group)
        policy = self._broker.groups.policy(request.group)
        return policy.attempts, policy.dead_letters, *(math.ceil(each * 1000) for each in policy.delays_s)

    @answers(ReplayDead)
    async def replay(self, request: ReplayDead) -> Sequence[Scalar]:
        return (await self._broker.failed_messages.replay(request.group, request.offsets),)

    # -- operators ----------------------------------------------------------------------------------------------------

    @answers(ResetGroup)
    async def reset(self, request: ResetGroup) -> Sequence[Scalar]:
        if request.to == "time":
            assert request.value is not None
            committed = await self._coordinator.reset_to_time(request.group, request.topic, request.value, queue=request.queue)
        else:
            to = request.to if request.value is None else request.value
            committed = await self._coordinator.reset(request.group, request.topic, to, queue=request.queue)
        return flat.chain((each.queue, each.offset, each.clamped) for each in committed)

    @answers(DeleteGroup)
    async def delete(self, request: DeleteGroup) -> Sequence[Scalar]:
        await self._coordinator.delete_group(request.group)
        return ()

    @answers(ForgetTopic)
    async def forget_topic(self, request: ForgetTopic) -> Sequence[Scalar]:
        await self._coordinator.forget_topic(request.group, request.topic)
        return ()

    @answers(ListGroups, size=LIST_BYTES)
    async def list(self, _: ListGroups) -> Sequence[Scalar]:
        return flat.chain((each.name, each.generation, each.members) for each in all_groups(self._broker.groups))

    @answers(ShowGroup, size=LIST_BYTES)
    async def show(self, request: ShowGroup) -> Sequence[Scalar]:
        groups = self._broker.groups
        count, found = queues_of(groups, request.group, self._broker.bounds, request.skip, ROWS_PER_ANSWER_MAX)
        rows = ((each.topic, each.queue, each.offset, each.begin, each.end, each.member) for each in found)
        return groups.get(request.group).generation, count, *flat.chain(rows)

    @answers(ListMembers, size=LIST_BYTES)
    async def members(self, request: ListMembers) -> Sequence[Scalar]:
        found = members_of(self._broker.groups, request.group, time.monotonic())
        return flat.chain((each.id, round(each.silent_s * 1000), each.queues) for each in found)

    @answers(ListInHand, size=LIST_BYTES)
    async def in_hand(self, request: ListInHand) -> Sequence[Scalar]:
        oldest = self._broker.housekeeping.in_hand.oldest
        if request.group is not None:
            self._broker.groups.get(request.group)
            oldest = {name: held for name, held in oldest.items() if name == request.group}
        return flat.chain((*each[:5], round(each.seconds * 1000)) for each in oldest_in_hand(oldest, ROWS_PER_ANSWER_MAX))


def _assignment(assignment: Assignment) -> Sequence[Scalar]:
    return assignment.generation, *flat.chain(assignment.queues)
