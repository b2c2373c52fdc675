"""Members of consumer groups for clients of HTTP, who pull messages and finish them later, by receipts.

All clients with one token that pull the same topics for a group share a member, which stays in the group until nobody has
pulled for a while and nothing is in their hands. A receipt is known to the server or node that gave it, while it runs: a
message that is finished elsewhere, later, or not at all, is delivered again.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import trio

from eventstore.client.aio.consumer import Consumer
from eventstore.client.aio.store import NetworkStore
from eventstore.client.consumer.delivery import Delivery
from eventstore.client.consumer.member_options import Order
from eventstore.console.visitors import Visitor, Visitors, first_error
from eventstore.errors import EventStoreError, Overloaded, TimedOut

MEMBERS_MAX: Final = 60
"""Of all clients together."""
MEMBERS_EACH_MAX: Final = 20
"""Of one identity."""
IDLE_S: Final = 60.0
"""A member without messages in hand leaves its group when nobody has pulled for so long."""
HELD_MESSAGES: Final = 1_000
"""That a member has pulled from its queues, and nobody has finished."""
_HELD_BYTES: Final = 1024 * 1024
_PAGE_BYTES: Final = 256 * 1024
_RECEIPT_BYTES: Final = 9
_AT_ONCE_S: Final = 0.05  # what has arrived is handed out to a pull that does not want to wait


@dataclass(frozen=True)
class WantedMessages:
    """What is pulled: the messages of these topics, by their tags, for a group.

    Attributes:
        order: "key": one unfinished message of a key at a time.
    """

    group: str
    topics: tuple[tuple[str, str | None], ...]
    order: Order | None


@dataclass(frozen=True)
class PulledMessage:
    """A message that a client has. `until`: when it fails, on trio's clock."""

    message: Delivery
    until: float
    seconds: float


_Key: TypeAlias = tuple[Visitor, WantedMessages]


class HttpMembers:
    """All members. `nursery`: in which they run; None: the API does not run."""

    def __init__(self, visitors: Visitors) -> None:
        self._visitors = visitors
        self._members: dict[_Key, HttpMember] = {}
        self._joining: dict[_Key, trio.Event] = {}
        self.nursery: trio.Nursery | None = None

    async def member(self, visitor: Visitor, wanted: WantedMessages) -> HttpMember:
        """Returns the client's member for this, which joins the group if it is new.

        Raises:
            UnknownTopic, InvalidArgument, PermissionDenied, TimedOut: it cannot join.
            Overloaded: there are too many members.
        """
        key = visitor, wanted
        while (found := self._members.get(key)) is None or found.is_leaving:
            if found is not None:
                await found.ended.wait()
            elif (joining := self._joining.get(key)) is not None:
                await joining.wait()
            else:
                found = await self._join(key)
                break
        found.used = trio.current_time()
        return found

    async def _join(self, key: _Key) -> HttpMember:
        """Joins as a new member. Others wait only for the same one: a topic may be out of reach."""
        visitor, wanted = key
        self._admit(visitor)
        assert self.nursery is not None, "the API runs"
        joining = self._joining[key] = trio.Event()
        try:
            found = HttpMember(wanted)
            await self.nursery.start(self._keep, key, found)
            return found
        finally:
            del self._joining[key]
            joining.set()

    def of_group(self, visitor: Visitor, group: str) -> list[HttpMember]:
        """Returns the client's members in a group."""
        return [each for (who, wanted), each in self._members.items() if who is visitor and wanted.group == group]

    def _admit(self, visitor: Visitor) -> None:
        most = MEMBERS_MAX if visitor.name is None else MEMBERS_EACH_MAX
        keys = self._members.keys() | self._joining.keys()
        own = sum(who.name == visitor.name for who, _ in keys)
        if own >= most or len(keys) >= MEMBERS_MAX:
            raise Overloaded(
                f"{own} members of groups are open for clients of HTTP, {len(keys)} with those of all; allowed are "
                f"{most} and {MEMBERS_MAX}: one leaves after {IDLE_S:.0f} s without a pull",
                limit=most,
            )

    async def _keep(self, key: _Key, member: HttpMember, *, task_status: trio.TaskStatus[None]) -> None:
        """Keeps a member in its group. An error before it has joined is raised to the caller that wants it."""
        visitor, _ = key

        def joined() -> None:
            self._members[key] = member
            task_status.started()

        try:
            await self._visitors.ask(visitor, partial(member.run, joined))
        except* EventStoreError as failed:
            if key not in self._members:
                raise first_error(failed) from None
            member.error = first_error(failed)
        finally:
            self._members.pop(key, None)
            member.ended.set()


class HttpMember:
    """A member, and the messages that its clients have.

    Attributes:
        used: when it was pulled from or a message was finished, on trio's clock.
        error: what ended it.
        is_leaving: nobody has pulled for a while, or its consumer failed; who wants it again waits until it has ended.
        ended: set once it is not in the group any more.
    """

    def __init__(self, wanted: WantedMessages) -> None:
        self.wanted = wanted
        self.used = trio.current_time()
        self.error: EventStoreError | None = None
        self.is_leaving = False
        self.ended = trio.Event()
        self._consumer: Consumer | None = None
        self._ready: deque[Delivery] = deque()
        self._in_hand: dict[str, PulledMessage] = {}
        self._pulling = trio.Lock()
        self._changed = trio.Event()
        self._prefix = secrets.token_urlsafe(_RECEIPT_BYTES)
        self._given = 0

    async def run(self, joined: Callable[[], None], store: NetworkStore) -> None:
        """Joins the group, and stays in it until nobody pulls any more."""
        wanted = self.wanted
        async with store.consumer(
            wanted.group,
            dict(wanted.topics),
            order=wanted.order,
            hold_messages=HELD_MESSAGES,
            hold_bytes=_HELD_BYTES,
            pull_bytes=_PAGE_BYTES,
        ) as self._consumer:
            joined()
            await self._until_idle()
            self.is_leaving = True

    async def pull(self, limit: int, wait_s: float, finish_within_s: float) -> list[tuple[str, Delivery]]:
        """Returns messages with their receipts, at least one unless none comes in this time.

        Raises:
            EventStoreError: what ended the member.
        """
        given: list[tuple[str, Delivery]] = []
        until = trio.current_time() + max(wait_s, _AT_ONCE_S)
        with trio.move_on_at(until):
            async with self._pulling:
                await self._fill(until)
                while self._ready and len(given) < limit:
                    message = self._ready.popleft()
                    if message.is_mine:
                        in_hand = PulledMessage(message, trio.current_time() + finish_within_s, finish_within_s)
                        given.append((self._hand_out(in_hand), message))
        self.used = trio.current_time()
        return given

    def _hand_out(self, given: PulledMessage) -> str:
        self._given += 1
        receipt = f"{self._prefix}-{self._given}"
        self._in_hand[receipt] = given
        self._changed.set()
        return receipt

    async def _fill(self, until: float) -> None:
        if self.error is not None:
            raise self.error
        assert self._consumer is not None
        while not self._ready and (left := until - trio.current_time()) > 0:
            try:
                self._ready.extend(await self._consumer.some(timeout=left))
            except TimedOut:
                continue
            except EventStoreError:  # it would only raise this again: another member is made
                self.is_leaving = True
                self._changed.set()
                raise

    def finish(self, receipt: str, reason: str | None) -> bool:
        """Marks a message as done, or as failed for a reason. Returns False if no client has it any more."""
        self.used = trio.current_time()
        given = self._in_hand.get(receipt)
        if given is None:
            return False
        if reason is None:
            given.message.done()
        else:
            given.message.retry(reason)
        del self._in_hand[receipt]
        return given.message.is_mine

    async def _until_idle(self) -> None:
        """Returns when nobody has pulled for a while and nothing is in hand, or the consumer has failed. What is in hand for
        too long fails.
        """
        while not self.is_leaving:
            now = trio.current_time()
            for receipt, given in [each for each in self._in_hand.items() if each[1].until <= now]:
                given.message.retry(f"not finished within {given.seconds:g} s")
                del self._in_hand[receipt]
            busy = self._pulling.locked() or bool(self._in_hand)
            idle_at = (now if busy else self.used) + IDLE_S
            if idle_at <= now:
                return
            self._changed = trio.Event()
            with trio.move_on_at(min([idle_at, *(each.until for each in self._in_hand.values())])):
                await self._changed.wait()


def topics_of(topics: Mapping[str, str | None]) -> tuple[tuple[str, str | None], ...]:
    """Returns topics as they are in `WantedMessages`."""
    return tuple(sorted(topics.items(), key=lambda each: each[0]))


def finish_all(members: Sequence[HttpMember], receipts: Sequence[tuple[str, str | None]]) -> list[str]:
    """Marks messages as done, or as failed for a reason. Returns the receipts that no member knows any more: these messages are
    delivered again, or were.
    """
    return [receipt for receipt, reason in receipts if not any(each.finish(receipt, reason) for each in members)]
