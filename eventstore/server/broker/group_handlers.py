"""Handlers of consumer groups: members, committed offsets, failed messages, and what operators ask and change.

What memory can answer is answered at once; what must be durable first, by a task.
"""

from __future__ import annotations

import math
import time

from eventstore.broker.broker import Broker
from eventstore.broker.groups.views import all_groups, members_of, oldest_in_hand, queues_of
from eventstore.broker.retry_policy import RetryPolicy
from eventstore.protocol.broker_info import (
    CommittedPlace,
    DepartedMember,
    GroupInfo,
    GroupPage,
    GroupQueue,
    MemberInfo,
    MessageInHand,
    ReplayedRange,
    ResetQueue,
    ShownRetries,
)
from eventstore.protocol.group_requests import (
    CommitOffsets,
    DeleteGroup,
    FailInPlace,
    FailMessages,
    ForgetTopic,
    Heartbeat,
    Join,
    Leave,
    ListDepartures,
    ListGroups,
    ListInHand,
    ListMembers,
    ListReplayed,
    ReplayDead,
    ResetGroup,
    SetRetries,
    ShowGroup,
    ShowRetries,
    UnsetRetries,
)
from eventstore.protocol.limits import ROWS_PER_ANSWER_MAX
from eventstore.records.consumer_groups import Assignment
from eventstore.server.broker.handlers import answers
from eventstore.server.net.deferred_replies import LIST_BYTES


class GroupHandlers:
    """The operations on consumer groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._coordinator = broker.coordinator

    # -- members ------------------------------------------------------------------------------------------------------

    @answers(Join)
    async def join(self, request: Join) -> Assignment:
        return await self._coordinator.join(request.group, request.member, dict(request.topics), from_end=request.from_end)

    @answers(Heartbeat)
    def heartbeat(self, request: Heartbeat) -> Assignment | None:
        """Raises UnknownGroup, Rebalanced."""
        return self._coordinator.heartbeat(request.group, request.member, request.generation)

    @answers(Leave)
    async def leave(self, request: Leave) -> None:
        """Waits for nothing, but is a task, after the one of a join that was sent before it: a consumer may be cancelled while
        it joins. Raises UnknownGroup.
        """
        self._coordinator.leave(request.group, request.member)

    @answers(CommitOffsets)
    def commit(self, request: CommitOffsets) -> list[CommittedPlace]:
        """Raises UnknownGroup, Rebalanced."""
        committed = self._coordinator.commit(request.group, request.member, request.generation, request.offsets)
        return [CommittedPlace(each.offset, each.clamped) for each in committed]

    # -- failed messages ----------------------------------------------------------------------------------------------

    @answers(FailMessages)
    async def fail(self, request: FailMessages) -> list[bool]:
        return await self._broker.failed_messages.fail(
            request.group, request.member, request.generation, request.places, request.reason
        )

    @answers(FailInPlace)
    async def fail_in_place(self, request: FailInPlace) -> list[int | None]:
        delays_s = await self._broker.failed_messages.fail_in_place(
            request.group, request.member, request.generation, request.places, request.reason
        )
        return [None if each is None else math.ceil(each * 1000) for each in delays_s]

    @answers(SetRetries)
    async def set_retries(self, request: SetRetries) -> None:
        delays_s = tuple(each / 1000 for each in request.delays_ms)
        await self._coordinator.set_policy(request.group, RetryPolicy(delays_s, request.attempts, request.dead_letters))

    @answers(UnsetRetries)
    async def unset_retries(self, request: UnsetRetries) -> None:
        self._broker.groups.get(request.group)
        await self._coordinator.set_policy(request.group, None)

    @answers(ShowRetries)
    async def show_retries(self, request: ShowRetries) -> ShownRetries:
        self._broker.groups.get(request.group)
        policy = self._broker.groups.policy(request.group)
        delays_ms = tuple(math.ceil(each * 1000) for each in policy.delays_s)
        return ShownRetries(policy.attempts, policy.dead_letters, delays_ms)

    @answers(ReplayDead)
    async def replay(self, request: ReplayDead) -> int:
        return await self._broker.failed_messages.replay(request.group, request.offsets)

    @answers(ListReplayed, size=LIST_BYTES)
    async def list_replayed(self, request: ListReplayed) -> list[ReplayedRange]:
        return [ReplayedRange(*each) for each in self._broker.failed_messages.replayed(request.group)]

    # -- operators ----------------------------------------------------------------------------------------------------

    @answers(ResetGroup)
    async def reset(self, request: ResetGroup) -> list[ResetQueue]:
        if request.to == "time":
            assert request.value is not None
            committed = await self._coordinator.reset_to_time(request.group, request.topic, request.value, queue=request.queue)
        else:
            to = request.to if request.value is None else request.value
            committed = await self._coordinator.reset(request.group, request.topic, to, queue=request.queue)
        return [ResetQueue(each.queue, each.offset, each.clamped) for each in committed]

    @answers(DeleteGroup)
    async def delete(self, request: DeleteGroup) -> None:
        await self._coordinator.delete_group(request.group)

    @answers(ForgetTopic)
    async def forget_topic(self, request: ForgetTopic) -> None:
        await self._coordinator.forget_topic(request.group, request.topic)

    @answers(ListGroups, size=LIST_BYTES)
    async def list_groups(self, _: ListGroups) -> list[GroupInfo]:
        return [GroupInfo(each.name, each.generation, each.members) for each in all_groups(self._broker.groups)]

    @answers(ShowGroup, size=LIST_BYTES)
    async def show(self, request: ShowGroup) -> GroupPage:
        groups = self._broker.groups
        count, found = queues_of(groups, request.group, self._broker.bounds, request.skip, ROWS_PER_ANSWER_MAX)
        rows = (GroupQueue(each.topic, each.queue, each.offset, each.begin, each.end, each.member) for each in found)
        return GroupPage(groups.get(request.group).generation, count, tuple(rows))

    @answers(ListMembers, size=LIST_BYTES)
    async def members(self, request: ListMembers) -> list[MemberInfo]:
        found = members_of(self._broker.groups, request.group, time.monotonic())
        return [MemberInfo(each.id, round(each.silent_s * 1000), each.queues) for each in found]

    @answers(ListDepartures, size=LIST_BYTES)
    async def departures(self, request: ListDepartures) -> list[DepartedMember]:
        found = self._broker.groups.departures.of(self._broker.groups.get(request.group).name)
        return [DepartedMember(each.member, each.how, each.time_us) for each in found]

    @answers(ListInHand, size=LIST_BYTES)
    async def in_hand(self, request: ListInHand) -> list[MessageInHand]:
        oldest = self._broker.housekeeping.in_hand.oldest
        if request.group is not None:
            self._broker.groups.get(request.group)
            oldest = {name: held for name, held in oldest.items() if name == request.group}
        found = oldest_in_hand(oldest, ROWS_PER_ANSWER_MAX)
        return [MessageInHand(*each[:5], round(each.seconds * 1000)) for each in found]
