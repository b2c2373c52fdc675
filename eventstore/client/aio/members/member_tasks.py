"""The two tasks of a consumer group member: one pulls, the other commits and sends heartbeats. For trio and asyncio.

The first keeps a pull in flight while there is room, so that pages travel while others are handled. The second commits
finished messages once per interval, or sends a heartbeat; it reports failed messages at once, and joins again if the group has
expired the member.

Transient errors (the server is away, or too busy) are retried forever, under the same name. Any other error ends the member.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio

from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.members.same_log import SameMemberLog
from eventstore.client.aio.members.suspended import SuspendedMessages
from eventstore.client.backoff import Backoff
from eventstore.client.consumer.commit_window import DeliveryTracker
from eventstore.client.consumer.long_handling import LongHandling
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.consumer.member_state import MemberState, PlannedPull
from eventstore.client.consumer.turns import Turns
from eventstore.client.own_loop import on_this_loop
from eventstore.client.session.broker_calls import set_retries_request
from eventstore.client.session.calls import Call
from eventstore.errors import Closed, EventStoreError, Rebalanced, UnknownGroup, UnknownQueue, UnknownTopic
from eventstore.failures import described
from eventstore.protocol.broker_requests import BrokerRequest
from eventstore.records.consumer_groups import Assignment

A = TypeVar("A")
LEAVE_SECONDS: Final = 5.0  # a consumer that ends waits so long for the server to take its last commit,
_LAST_COMMIT_SECONDS: Final = 1.0  # for which this is reserved while failures are still being reported
_OUTDATED: Final = (Rebalanced, UnknownGroup, UnknownTopic, UnknownQueue)  # the next heartbeat returns the new assignment
_log: Final = logging.getLogger(__name__)


class MemberTasks:
    """`changed`: set and replaced when there may be a message to hand out, or room to pull. `error`: what ended the member."""

    def __init__(self, connection: NetworkConnection, options: MemberOptions, turns: Turns) -> None:
        self.tracker = DeliveryTracker(group=options.group)
        self._turns = turns
        self.state = MemberState(options, self.tracker, turns)
        self.error: EventStoreError | None = None
        self.changed = anyio.Event()
        self._connection = connection
        self._interval_s = options.commit_interval_s
        self._pull: tuple[Call[anyio.Event], PlannedPull] | None = None  # in flight
        self._report_due = anyio.Event()  # there is a failure to report before the interval is over
        self._reported = anyio.Event()
        self.suspended = SuspendedMessages(self.state, self._wake)
        self._same_log = SameMemberLog(connection, self.state)
        self.trouble: Callable[[EventStoreError | None], None] = lambda error: None  # why it tries again; None: it worked
        self._long_handling = LongHandling(options, self.state.ready)
        self._leave_by = float("inf")
        self._reporting = anyio.CancelScope()

    async def join(self) -> None:
        """Joins the group. Raises the server's error, or ConnectionLost."""
        self.tracker.wake = on_this_loop(self._wake)
        options = self.state.options
        if options.retries is not None:
            await self._call(set_retries_request(options.group, options.retries))
        self._turns.join(self.state.suspects, self._look_again)
        assignment = await self._call(options.join())
        await self._look_for_messages()
        self._assigned(assignment)

    async def _look_for_messages(self) -> bool:
        """Looks, after a reconnect, whether the broker has what was handed out. Returns whether something is missing."""
        if self._same_log.is_sure:
            return False
        missing = await self._same_log.look()
        self._drop_pull()  # it may be of other offsets
        self._wake()
        return missing

    def close(self) -> None:
        """Stops pulling and handing out. A report in flight has a few seconds to be answered."""
        self.end(Closed("the consumer was closed"))
        self._leave_by = self._reporting.deadline = anyio.current_time() + LEAVE_SECONDS

    async def leave(self) -> None:
        """Commits the finished messages and leaves the group, as far as that takes no longer than those seconds.

        Call it after `close`, when neither task runs any more.
        """
        try:
            with anyio.CancelScope(deadline=self._leave_by, shield=True), contextlib.suppress(EventStoreError):
                if self.state.generation is not None and anyio.current_time() < self._leave_by:
                    await self._report_last()
        finally:  # asyncio may cancel it again, through the shield
            try:
                with anyio.CancelScope(deadline=self._leave_by, shield=True), contextlib.suppress(EventStoreError):
                    await self._call(self.state.options.leave())  # sent even if the time is too short for the answer
            finally:
                self.state.left()
                self._turns.leave(self.state.suspects)
                self.tracker.close()

    async def _report_last(self) -> None:
        try:
            await self._report_and_commit()
        except _OUTDATED:
            await self._heartbeat()  # the queues that stayed are committed in the current generation
            await self._report_and_commit()

    def end(self, error: EventStoreError) -> None:
        """Stops pulling and handing out; callers that ask for more get the error."""
        if self.error is None:
            self.error = error
        self._drop_pull()
        self._wake()

    def _wake(self) -> None:
        """Wakes the tasks that wait for a change. The tracker may be locked."""
        if self._pull is not None:
            call, pull = self._pull
            if pull.skipped and not call.done.is_set() and self.state.has_room_again(pull):
                self._drop_pull()
        if self.tracker.failures:
            self._report_due.set()
        self._notify()

    def _notify(self) -> None:
        self._look_again()
        self._turns.changed(self.state.suspects)

    def _look_again(self) -> None:
        """Has the tasks look again what to pull, to hand out and to commit."""
        if self.state.suspects.wait_for_others():
            self._drop_pull()
        changed, self.changed = self.changed, anyio.Event()
        changed.set()
        self.suspended.look_again()
        if self.state.suspects.commit_due():
            self._report_due.set()

    def _assigned(self, assignment: Assignment) -> None:
        if self.state.assigned(assignment.generation, assignment.queues):
            self._drop_pull()
        self._wake()

    def _drop_pull(self) -> None:
        """Ends a pull in flight that is out of date."""
        if self._pull is not None:
            (call, _), self._pull = self._pull, None
            self.state.suspects.pulls = False
            self._connection.drop(call)
            call.done.set()

    async def _call(self, request: BrokerRequest[A]) -> A:
        return await self._connection.call(request)

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeats a step forever; retries transient errors, and ends the member with any other."""
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
                self.trouble(error)
                await anyio.sleep(backoff.delay_s())
            except Exception as error:  # raised from here, it would reach the user in an exception group
                _log.exception("a bug ended the consumer %s", self.state.options.member)
                self.end(EventStoreError(f"the consumer failed: {described(error)}; make another one"))

    # ---- pulling

    async def fetch(self) -> None:
        """Pulls until it is cancelled, or an error ends the member."""
        await self._repeat(self._fetch_once)

    async def _fetch_once(self) -> None:
        changed, reported = self.changed, self._reported
        if self._pull is None and not self._send_pull():
            await changed.wait()
            return
        assert self._pull is not None
        call, pull = self._pull
        await call.done.wait()
        if self._pull is None or self._pull[0] is not call:
            return  # dropped
        self._pull, self.state.suspects.pulls = None, False
        if not self._same_log.is_sure:
            return
        try:
            answer = call.messages()
        except _OUTDATED:
            await reported.wait()  # pulling again at once would be refused again and again
            return
        self.state.received(pull, answer)
        try:
            self._send_pull()  # travels while this answer is decoded
        finally:
            self.state.decode()
            self._wake()

    def _send_pull(self) -> bool:
        """Returns whether there was something to pull, and room."""
        if not self._same_log.is_sure:  # looks once it is known whether the group still has this member
            self._report_due.set()
            return False
        self.suspended.hand_out_due()  # before the next suspect, which would hold them back
        self.tracker.room_awaited = True  # set before looking, so that messages finished meanwhile wake this task
        pull = self.state.next_pull()
        if pull is None:
            return False
        self.tracker.room_awaited = bool(pull.skipped)
        call = Call(pull.request, anyio.Event())
        self._connection.add(call)
        self._pull, self.state.suspects.pulls = (call, pull), True
        return True

    # ---- reporting

    async def report(self) -> None:
        """Commits, reports failures and sends heartbeats until it is cancelled, or an error ends it."""
        await self._repeat(self._report_once)

    async def _report_once(self) -> None:
        with anyio.move_on_after(self._interval_s):
            await self._report_due.wait()
        self._report_due = anyio.Event()
        self._long_handling.look(self.state.windows, anyio.current_time(), apart=self.state.suspects.next() is not None)
        try:
            if self.state.generation is None:  # its last attempt to join again failed
                await self.join()
            await self._report_to_the_end()
            if await self._look_for_messages():
                self.state.expelled()
                await self.join()
        except _OUTDATED:
            await self._renew_assignment()
            with contextlib.suppress(*_OUTDATED):  # the next time is soon enough
                await self._report_to_the_end()
        reported, self._reported = self._reported, anyio.Event()
        reported.set()
        self.trouble(None)

    async def _report_to_the_end(self) -> None:
        """As `_report_and_commit`, but finishes if this task is cancelled: `leave` would report again what was not answered."""
        with anyio.CancelScope(deadline=self._leave_by, shield=True) as self._reporting:
            await self._report_and_commit()

    async def _report_and_commit(self) -> None:
        """Reports failures, and commits even if a report was refused, since a failed message holds back only itself."""
        try:
            await self._report_failures()
        except _OUTDATED:
            raise
        except EventStoreError:
            await self._commit()
            raise
        await self._commit()

    async def _report_failures(self) -> None:
        """Reports failures; sends heartbeats between reports that take long."""
        sent = time.monotonic()
        for reason, places in self.state.failures():
            if anyio.current_time() > self._leave_by - _LAST_COMMIT_SECONDS:
                break
            await self.suspended.report(self._call, reason, places)
            if time.monotonic() >= sent + self._interval_s:  # each reason is a request: many would silence the member
                await self._commit()
                sent = time.monotonic()

    async def _commit(self) -> None:
        """Commits the finished messages, or sends a heartbeat if there are none."""
        commits = list(self.state.commits())
        for request, moved in commits:
            await self._call(request)
            self.state.committed(moved)
        if commits:
            self._notify()  # a message that must be handled alone may be pulled now
        else:
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        assignment = await self._call(self.state.heartbeat())
        if assignment is not None:
            self._assigned(assignment)

    async def _renew_assignment(self) -> None:
        """Asks for the current assignment; joins again if the group has expired the member."""
        if self.state.generation is not None:
            try:
                await self._heartbeat()
            except (Rebalanced, UnknownGroup):
                self.state.expelled()
        if self.state.generation is None:
            await self.join()
