"""The two tasks of a member of a consumer group: one pulls, one speaks for it. For trio and asyncio.

The first always has a pull on its way while there is room, so that pages travel while others are handled. The second commits
once per interval what has become finished, or says that the member lives; it reports failed messages at once, and joins again
where the group has lost the member.

Errors that pass (the server is away, or too busy) are waited for, for ever: a consumer that was started goes on when the server
is back, under the same name. Any other error ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from eventstore.client.backoff import Backoff
from eventstore.client.calls import Call
from eventstore.client.connection import Connection
from eventstore.client.consumption import Asked, Consumption
from eventstore.client.delivery import Mode
from eventstore.client.reader import Reader, shares_of
from eventstore.client.window import Ledger, Window
from eventstore.errors import (
    Closed,
    EventStoreError,
    InvalidArgument,
    Rebalanced,
    UnknownGroup,
    UnknownQueue,
    UnknownTopic,
)
from eventstore.flat import Scalar
from eventstore.protocol.broker_requests import BrokerRequest

# How long a consumer that ends waits for the server to take its last commit.
LEAVE_SECONDS: Final = 5.0
# Of these, what is left for the commit by failures that are still to be reported.
_LAST_COMMIT_SECONDS: Final = 1.0
# The queue, the topic or the membership went: the next heartbeat says what there is to read now.
_OUTDATED: Final = (Rebalanced, UnknownGroup, UnknownTopic, UnknownQueue)
_log: Final = logging.getLogger(__name__)


class Membership:
    """`changed`: set and replaced whenever there may be something to hand out, or room to pull. `error`: what ended it."""

    def __init__(self, connection: Connection, reader: Reader, mode: Mode, interval_s: float) -> None:
        self.ledger = Ledger()
        self.consumption = Consumption(reader, self.ledger, mode, interval_s)
        self.error: EventStoreError | None = None
        self.changed = anyio.Event()
        self._connection = connection
        self._interval_s = interval_s
        self._pull: tuple[Call[anyio.Event], Asked] | None = None  # on its way
        self._to_say = anyio.Event()  # there is something to say before the interval is over
        self._said = anyio.Event()
        self._leave_by = float("inf")
        self._saying = anyio.CancelScope()

    async def join(self) -> None:
        """Becomes a member. Raises what the server says, or ConnectionLost."""
        self.ledger.wake = _waking(self._wake)
        self._assigned(await self._tell(self.consumption.reader.join()))

    def close(self) -> None:
        """Nothing more is pulled or handed out. What is being said to the server has a few seconds to be answered."""
        self.end(Closed("the consumer was closed"))
        self._leave_by = self._saying.deadline = anyio.current_time() + LEAVE_SECONDS

    async def leave(self) -> None:
        """After `close`, and when nothing runs any more: commits what was finished, and gives the queues to the others, as far
        as that can be done within those seconds.
        """
        with anyio.CancelScope(deadline=self._leave_by, shield=True), contextlib.suppress(EventStoreError):
            if self.consumption.generation is not None and anyio.current_time() < self._leave_by:
                await self._say_last()
        with anyio.CancelScope(deadline=self._leave_by, shield=True), contextlib.suppress(EventStoreError):
            await self._tell(self.consumption.reader.leave())  # sent even where there is no time to wait for the answer
        self.consumption.left()
        self.ledger.close()

    async def _say_last(self) -> None:
        try:
            await self._say()
        except _OUTDATED:
            await self._beat()  # the queues that stayed are committed in the generation of now
            await self._say()

    def end(self, error: EventStoreError) -> None:
        """Nothing more is pulled or handed out; whoever asks for more gets the error."""
        if self.error is None:
            self.error = error
        self._drop_pull()
        self._wake()

    def _wake(self) -> None:
        """The ledger may be locked."""
        if self._pull is not None:
            pull, asked = self._pull
            if asked.left_out and not pull.done.is_set() and self.consumption.has_room_again(asked):
                self._drop_pull()
        changed, self.changed = self.changed, anyio.Event()
        changed.set()
        if self.ledger.failures:
            self._to_say.set()

    def _assigned(self, values: Sequence[Scalar]) -> None:
        if self.consumption.assigned(*shares_of(values)):
            self._drop_pull()
        self._wake()

    def _drop_pull(self) -> None:
        """It asks for what is not wanted any more."""
        if self._pull is not None:
            (pull, _), self._pull = self._pull, None
            self._connection.drop(pull)
            pull.done.set()

    async def _tell(self, request: BrokerRequest) -> Sequence[Scalar]:
        call = Call(request, anyio.Event())
        await self._connection.finish(call)
        return call.ok().values

    async def _persist(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeats a step for ever; what passes is waited for, and what does not ends the consumer."""
        backoff = Backoff(float("inf"))
        while self.error is None:
            try:
                await step()
                backoff.recovered()
            except EventStoreError as error:
                if not error.retriable or self._connection.session.fatal is not None:
                    self.end(error)
                    return
                backoff.lost(time.monotonic())
                await anyio.sleep(backoff.delay_s())
            except Exception as error:  # raised as it is it would end the block that consumes, as part of a group
                _log.exception("the consumer %s ended by an error of its own", self.consumption.reader.member)
                self.end(EventStoreError(f"the consumer failed: {type(error).__name__}: {error}; make another one"))

    # ---- pulling

    async def fetch(self) -> None:
        """Pulls until it is cancelled, or something ends it."""
        await self._persist(self._fetch)

    async def _fetch(self) -> None:
        changed, said = self.changed, self._said
        if self._pull is None and not self._ask_for_more():
            await changed.wait()
            return
        assert self._pull is not None
        pull, asked = self._pull
        await pull.done.wait()
        if self._pull is None or self._pull[0] is not pull:
            return  # dropped
        self._pull = None
        try:
            answer = pull.messages()
        except _OUTDATED:
            await said.wait()  # to ask again at once would be refused again and again
            return
        self.consumption.received(asked, answer)
        try:
            self._ask_for_more()  # travels while this one is decoded
        finally:
            self.consumption.open()
            self._wake()

    def _ask_for_more(self) -> bool:
        """Whether there is something to ask for, and room."""
        self.ledger.room_awaited = True  # before looking: what is finished meanwhile wakes
        asked = self.consumption.ask()
        if asked is None:
            return False
        self.ledger.room_awaited = bool(asked.left_out)
        pull = Call(asked.request, anyio.Event())
        self._connection.add(pull)
        self._pull = pull, asked
        return True

    # ---- speaking

    async def speak(self) -> None:
        """Commits and says that the member lives, until it is cancelled, or something ends it."""
        await self._persist(self._speak)

    async def _speak(self) -> None:
        with anyio.move_on_after(self._interval_s):
            await self._to_say.wait()
        self._to_say = anyio.Event()
        try:
            await self._say_to_the_end()
        except _OUTDATED:
            await self._catch_up()
            with contextlib.suppress(*_OUTDATED):  # the next time is soon enough
                await self._say_to_the_end()
        said, self._said = self._said, anyio.Event()
        said.set()

    async def _say_to_the_end(self) -> None:
        """As `_say`, also where this task is cancelled meanwhile: a failure whose answer nobody heard would be reported again
        by `leave`, which has only so much time.
        """
        with anyio.CancelScope(deadline=self._leave_by, shield=True) as self._saying:
            await self._say()

    async def _say(self) -> None:
        """Reports failures, and commits: also where a report was refused, since what failed holds only itself back."""
        try:
            await self._report_failures()
        except _OUTDATED:
            raise
        except EventStoreError:
            await self._commit()
            raise
        await self._commit()

    async def _report_failures(self) -> None:
        """Says between reports that the member lives, where they take long."""
        told = time.monotonic()
        for reason, places in self.consumption.failures():
            if anyio.current_time() > self._leave_by - _LAST_COMMIT_SECONDS:
                break
            await self._report(reason, places)
            if time.monotonic() >= told + self._interval_s:  # each reason is a request: many would silence the member
                await self._commit()
                told = time.monotonic()

    async def _commit(self) -> None:
        """Commits; where there is nothing to commit, says that the member lives."""
        consumption = self.consumption
        silent = True
        for request, moved in consumption.commits():
            await self._tell(request)
            consumption.committed(moved)
            silent = False
        if silent:
            await self._beat()

    async def _report(self, reason: str, places: list[tuple[Window, int]]) -> None:
        places = [place for place in places if not place[0].closed]  # a beat between reports may have said so
        if not places:
            return
        try:
            await self._tell(self.consumption.failure(reason, places))
        except InvalidArgument as error:
            if error.fields.get("field") != "offset":
                raise
            if len(places) > 1:  # one is gone with its chunk: it cannot come again, and must not stop the others
                for place in places:
                    await self._report(reason, [place])
                return
        self.consumption.reported(places)

    async def _beat(self) -> None:
        values = await self._tell(self.consumption.heartbeat())
        if values:
            self._assigned(values)

    async def _catch_up(self) -> None:
        """Learns what there is to read now; joins again, if it is no member any more."""
        if self.consumption.generation is not None:
            try:
                await self._beat()
            except (Rebalanced, UnknownGroup):
                self.consumption.expelled()
        if self.consumption.generation is None:
            await self.join()


def _waking(wake: Callable[[], None]) -> Callable[[], object]:
    """What calls `wake` in this thread and event loop, now or soon, from any thread."""
    home = threading.get_ident()
    trio = sys.modules.get("trio")
    post: Callable[[Callable[[], None]], object]  # anyio has none that does not wait for the call, with the ledger locked
    if trio is not None and trio.lowlevel.in_trio_run():
        post = trio.lowlevel.current_trio_token().run_sync_soon
    else:
        post = asyncio.get_running_loop().call_soon_threadsafe
    return lambda: wake() if threading.get_ident() == home else post(wake)
