"""How long members of groups have had the same message in hand: a handler that hangs stops its queue, and sends heartbeats.

Costs pulls and commits nothing: once a second the broker looks at the queues of which a member was handed a page that its group
has not passed. Where the group's offset stands as at the last look, the time continues. While a message may wait for its next
attempt, which its member counts for itself, it is not in hand. Only the owner's thread looks; `oldest` is replaced as a whole,
and safe on any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from eventstore.broker.groups.group import ConsumerGroup, GroupMember
from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.retry_policy import delay_s

_QUEUES_A_STEP = 256
_Place: TypeAlias = "tuple[str, str, str, int, int]"
"""Group, member, topic, queue, and the group's offset."""
_Attempt: TypeAlias = "tuple[_Place, int]"
"""A place, and how many attempts have failed."""


class InHand(NamedTuple):
    """A message that a member has in hand.

    Attributes:
        seconds: since the group's offset stands at the message, or its member was first seen to have it, or its next attempt
            was due.
        alone: other queues of the member wait for it, because consumers have died of this message or of a later one.
    """

    group: str
    member: str
    topic: str
    queue: int
    offset: int
    seconds: float
    alone: bool = False


class OldestInHand:
    """The oldest messages in hand.

    Attributes:
        oldest: by group, if one of its members has a message in hand.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._since: dict[_Attempt, float] = {}
        self.oldest: Mapping[str, InHand] = {}

    def looking(self, now: float) -> Iterator[None]:
        """Looks at all groups, in steps, between which other tasks can run. `now` is in seconds, on a monotonic clock."""
        since: dict[_Attempt, float] = {}
        oldest: dict[str, InHand] = {}
        looked_at = 0
        for group in list(self._groups.by_name.values()):
            for member in list(group.members.values()):
                for attempt in self._attempts(group, member):
                    since[attempt] = began = self._since.get(attempt, now)
                    seconds = now - began - self._delay_s(group, attempt)
                    known = oldest.get(group.name)
                    if seconds >= 0 and (known is None or known.seconds < seconds):
                        oldest[group.name] = InHand(*attempt[0], seconds)
                looked_at += 1 + len(member.held)
                if looked_at >= _QUEUES_A_STEP:
                    looked_at = 0
                    yield
        self._since, self.oldest = since, {name: held._replace(alone=self._is_alone(held)) for name, held in oldest.items()}

    def _is_alone(self, held: InHand) -> bool:
        group = self._groups.by_name.get(held.group)
        member = None if group is None else group.members.get(held.member)
        if member is None:  # gone meanwhile
            return False
        offsets, attempts = self._groups.offsets.of(held.group), self._groups.policy(held.group).attempts_max
        return self._groups.offsets.attempts.has_suspects(held.group, member.queues, offsets, attempts)

    def _delay_s(self, group: ConsumerGroup, attempt: _Attempt) -> float:
        failures = attempt[1]
        return delay_s(failures - 1, self._groups.policy(group.name).delays_s) if failures else 0.0

    def _attempts(self, group: ConsumerGroup, member: GroupMember) -> list[_Attempt]:
        offsets, attempts = self._groups.offsets.of(group.name), self._groups.offsets.attempts
        own = {(topic, queue) for topic, queues in member.queues.items() for queue in queues} if member.held else ()
        return [
            ((group.name, member.id, topic, queue, offset), attempts.of(group.name, topic, queue, offset))
            for (topic, queue), page in member.held.items()
            if (topic, queue) in own and (offset := offsets.get(topic, {}).get(queue, page.next_offset)) < page.next_offset
        ]
