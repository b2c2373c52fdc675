"""Failed messages on their way to where they are retried or dead, and dead ones on their way back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from eventstore.broker.administration import Administration
from eventstore.broker.groups import Groups
from eventstore.broker.look_ups import LookUps
from eventstore.broker.message import RawMessage, decode_messages
from eventstore.broker.names import dead_topic, retry_topic
from eventstore.broker.retrying import DEAD_QUEUES, failed, replayed
from eventstore.broker.sending import Outcome
from eventstore.errors import InvalidArgument, Overloaded, again

_SENT_TOGETHER_BYTES: Final = 8 * 1024 * 1024  # held in memory at once, however many messages fail
SendOwn: TypeAlias = Callable[[str, Sequence[RawMessage]], Awaitable[list[Outcome]]]


class Failures:
    """What consumers could not handle."""

    def __init__(
        self, groups: Groups, look_ups: LookUps, administration: Administration, send: SendOwn, delays_s: Sequence[float]
    ) -> None:
        self._groups = groups
        self._look_ups = look_ups
        self._administration = administration
        self._send = send
        self._delays_s = delays_s

    async def fail(
        self, group: str, member: str, generation: int, places: Sequence[tuple[str, int, int]], reason: str = ""
    ) -> list[bool]:
        """The member could not handle these messages (topic, queue, offset): each is delivered again after a while, or
        dead. Whether each is dead. Durable on return: commit the offsets behind them afterwards.

        Raises:
            UnknownGroup, UnknownTopic, UnknownQueue
            InvalidArgument: `field` is "offset": the queue holds no such message, it may be gone with its chunk.
            Overloaded: there are too many topics or queues to make the one where it would wait; nothing is lost.
            Rebalanced: the member is not, or not in this generation, one of the group.
        """
        self._groups.check_reads(group, member, generation, [place[:2] for place in places])
        retry: list[RawMessage] = []
        dead: list[RawMessage] = []
        verdicts: list[bool] = []
        size = 0
        for topic, queue, offset in places:
            record = await self._look_ups.message(topic, queue, offset)
            if record is None:
                raise InvalidArgument(f"queue {queue} of {topic!r} holds no message {offset}", field="offset", value=offset)
            is_dead, again_ = failed(decode_messages(record, 1)[0], reason, self._delays_s)
            (dead if is_dead else retry).append(again_)
            verdicts.append(is_dead)
            size += len(record)
            if size >= _SENT_TOGETHER_BYTES or len(verdicts) == len(places):
                await self._send_again(retry_topic(group), len(self._delays_s), retry)
                await self._send_again(dead_topic(group), DEAD_QUEUES, dead)
                retry, dead, size = [], [], 0
        return verdicts

    async def replay(self, group: str, offsets: Sequence[int]) -> int:
        """Delivers dead letters of the group (offsets in `dead:GROUP`) to it again, as if they had never failed. How many.

        Raises:
            UnknownGroup, UnknownTopic: it has none; InvalidArgument, Overloaded
        """
        self._groups.get(group)
        found: list[RawMessage] = []
        size = 0
        for place, offset in enumerate(offsets, 1):
            record = await self._look_ups.message(dead_topic(group), 0, offset)
            if record is None:
                raise InvalidArgument(f"group {group!r} has no dead letter {offset}", field="offset", value=offset)
            found.append(replayed(decode_messages(record, 1)[0]))
            size += len(record)
            if size >= _SENT_TOGETHER_BYTES or place == len(offsets):
                await self._send_again(retry_topic(group), len(self._delays_s), found)
                found, size = [], 0
        return len(offsets)

    async def _send_again(self, topic: str, queues: int, messages: list[RawMessage]) -> None:
        if not messages:
            return
        try:
            await self._administration.ensure_topic(topic, queues)
        except InvalidArgument as error:  # would be taken for a fault of what was asked, which will never be done
            raise Overloaded(
                f"{topic} with its {queues} queues cannot be made: {error.message}; delete topics that nobody needs",
                topic=topic, queues=queues,
            ) from error  # fmt: skip
        for outcome in await self._send(topic, messages):
            if isinstance(outcome, Exception):
                raise again(outcome)
