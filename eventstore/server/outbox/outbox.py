"""The outbox: sends every event of a store to a topic, in order, at least once. The event log itself is the outbox.

Only one batch is in flight. The next batch is sent once the previous one is in the broker's log, so the log always holds a
prefix of what was to be sent, and the topic itself shows how far publishing got. After any failure, as after a crash,
publishing resumes at the place found in the topic (see `outbox_resume`). No event is left out; some may be sent twice.

What of a batch is parked is recorded, durably, before its messages are sent, so a message in the topic says that all earlier
events were sent or parked. When a parked event is sent after all, nothing else is until the record says so: if that is
interrupted, its message is at the end of the topic, where it is found.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeAlias

import trio

from eventstore.errors import Diverged, EventStoreError
from eventstore.event_identity import event_identity
from eventstore.following.follower import Follower
from eventstore.model import Event
from eventstore.protocol.reaction_info import ParkedEvent
from eventstore.records.event_message import origin_of_event
from eventstore.records.message import RawMessage
from eventstore.server.outbox.checkpoint_file import CheckpointFile
from eventstore.server.outbox.outbox_ends import MessagePosition, PublishedStore, PublishedTopic, is_lasting, wait_until_durable
from eventstore.server.outbox.outbox_messages import AllEvents, OutboxMessages
from eventstore.server.outbox.outbox_resume import OutboxCheckpoint, OutboxEnds, ResumePoint, place_to_resume

_EVENTS_PER_TURN: Final = 256  # encoding them takes about half a millisecond; then other tasks run
_SAVE_S: Final = 1.0
_WATCH_S: Final = 1.0
_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 5.0
_log = logging.getLogger(__name__)

_Sent: TypeAlias = tuple[Event, MessagePosition, dict[int, int]]
"""The last event of a batch, the place of its message, and the ends of the queues after it."""


class Outbox:
    """Sends events from `source` to `target`.

    `follower`: an event is done when this process knows it to be in the topic. `published` and `failures`: events sent, and
    failed attempts.
    """

    def __init__(
        self,
        source: PublishedStore,
        target: PublishedTopic,
        file: CheckpointFile | None,
        messages: OutboxMessages | None = None,
        *,
        past_lost: bool = False,
        of: str = "",
        begins: int = 0,
    ) -> None:
        """`messages`: makes them of the events; None: of all. `past_lost`: what the topic holds and the store does not is
        passed over, once. `of`: whose events they are, for the log. `begins`: those up to
        this sequence were published elsewhere."""
        self.topic = target.topic
        self._what = f"publishing {of} to topic {target.topic}".replace("  ", " ")
        self.follower = Follower(_PAUSE_S_MIN, _PAUSE_S_MAX)
        self.published = 0
        self._unmade: EventStoreError | None = None  # why no message can be made of an event
        self._told = ""
        self.failures = 0
        self._source = source
        self._target = target
        self._file = file
        self._past_lost, self.begins = past_lost, begins
        self._messages = messages or AllEvents(source.store)
        self._waiting = trio.CancelScope()
        self._turn = trio.Lock()
        self._resuming = False
        self._resumed = False  # False while it is not known what of a batch is in the topic
        self._identity = ""
        self._ends: dict[int, int] = {}
        self._stuck_at = -1  # the event after it could not be made a message; each attempt may begin far before it
        self._writing = trio.Lock()
        self._latest: _Sent | None = None
        self._maturing: _Sent | None = None  # saved once its message is durable

    async def run(self, until: int | None = None, *, end_refused: bool = False) -> None:
        """Publishes until cancelled, or until the event with the sequence `until` is published.

        Failures are retried after a pause of 0.1 to 5 seconds. With `until`, errors that no retry can fix are raised.

        Raises:
            Diverged: the store does not have what was published, and `end_refused` is set; in an exception group. Else nothing
                is published until an operator has created the topic again, or published past them.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._save_regularly)
            nursery.start_soon(self._watch_topic)
            await self.follower.run(partial(self._publish, until), partial(self._failed, until, end_refused))
            nursery.cancel_scope.cancel()

    async def _publish(self, until: int | None) -> None:
        while not (self._resumed and until is not None and self.place >= until):
            self._resuming = not self._resumed
            if self._resuming:
                await self.resume()
                continue
            self._resumed = await self.publish()
            if self.place > self._stuck_at:
                self.follower.reached(self.place)

    def _failed(self, until: int | None, end_refused: bool, error: Exception) -> None:
        """The server keeps serving, and this keeps trying."""
        refused = isinstance(error, Diverged) and self._resuming  # raised by the source, it calls for resuming
        if (refused and end_refused) or (until is not None and is_lasting(error)):
            raise error
        self._resumed = False
        self._report(error, refused=refused)

    @property
    def place(self) -> int:
        """The sequence up to which this process knows all events to be in the topic."""
        return self.follower.through

    @property
    def failure(self) -> str | None:
        """Why publishing is stuck, if it is."""
        return None if self.follower.state == "running" else self.follower.error

    @property
    def refused(self) -> bool:
        """Whether it is stuck because the store has not what was published."""
        return self.follower.state == "refused"

    async def resume(self) -> None:
        """Finds the place to resume at. Call it first, and after every failure.

        Raises:
            EventStoreError; Diverged: the store does not have what was published.
        """
        async with self._turn:
            await self._resume()

    def begin_again(self) -> None:
        """Resumes before anything else is sent."""
        self._resumed = False
        self._waiting.cancel()

    async def _resume(self) -> None:
        self._resumed = True  # unless it has to begin again meanwhile
        try:
            await self._find_place()
        except BaseException:
            self._resumed = False
            raise

    async def _find_place(self) -> None:
        self._latest = self._maturing = None
        state = await self._target.open()
        checkpoint = None if self._file is None else await trio.to_thread.run_sync(self._file.load)
        if checkpoint is not None and (checkpoint.store, checkpoint.topic) != (self._source.store, self._target.topic):
            checkpoint = None
        ends = OutboxEnds(self._source, self._target, self._source.store, self._target.topic, state)
        found = await place_to_resume(ends, checkpoint)
        place = found.place if found.error is None else await self._past(found.error, found)
        self.follower.through = max(self.begins, place)
        if self.refused:
            self.follower.state = "running"
        self._identity, self._ends = state.identity, {number: end for number, (_, end) in state.queues.items()}
        if (parked := self._messages.parked) is not None:
            await parked.begin(state.identity, self.place, found.parked_after, found.late)
        _log.info("%s %s", self._what, f"resumes after sequence {self.place}" if self.place else "begins with the first event")

    async def _past(self, error: Diverged, found: ResumePoint) -> int:
        """Returns where to resume after lost events, if that is wanted: before the last event that the store has, so that the
        topic shows it. Raises the error otherwise.
        """
        if self._past_lost:
            _log.warning("publishing continues past events that the store does not have: %s", error)
            return max(0, found.place - 1)
        if self._file is not None and found.lost is not None:
            with suppress(OSError):  # it is needed only once retention has deleted the messages
                await self._write(self._file, found.lost)
        raise error

    async def publish(self) -> bool:
        """Sends the next batch; waits if there is none. Returns False if the topic is another one, and `resume` must be called.

        Raises:
            EventStoreError
        """
        after = self.place
        with trio.CancelScope() as self._waiting:
            events, place = await self._source.events(after)
        if self._waiting.cancelled_caught:
            return False
        async with self._turn:
            if self._resumed and self.place == after:
                await self._send(events, place)
            return self._resumed  # not, if a retry failed, or slots were given away, meanwhile

    async def _send(self, events: list[Event], place: int) -> None:
        published: list[Event] = []
        messages: list[RawMessage] = []
        failed: EventStoreError | None = None
        for start in range(0, len(events), _EVENTS_PER_TURN):
            made = await self._messages.of(events[start : start + _EVENTS_PER_TURN])
            published += made.events
            messages += made.messages
            if made.failed is not None:  # what is before it is sent
                place, failed = made.failed
                self._stuck_at = place
                break
            await trio.lowlevel.checkpoint()
        if messages:
            places = await self._target.send(messages)
            self._past_lost = False
            for queue, offset, _ in places:
                self._ends[queue] = offset + 1
            self._latest = published[-1], places[-1], dict(self._ends)
        self.follower.through = max(self.place, place)
        self.published += len(published)
        if failed is not None:
            self._unmade = failed
            raise failed

    async def retry(self, aggregate_id: str | None, who: str, why: str, *, skip: bool = False) -> int:
        """Publishes what is parked, of one aggregate or of all (see `ParkedEvents.settle`); returns how many are done.

        Raises:
            EventStoreError: the topic or the store does not take it now.
        """
        if self._messages.parked is None:
            return 0
        return await self._messages.parked.events.settle(aggregate_id, self._sent_late, who, why, self._retrying, skip=skip)

    @asynccontextmanager
    async def _retrying(self) -> AsyncIterator[None]:
        """For as long as an event is retried nothing else is sent. If that fails, the topic is asked whether it has arrived."""
        async with self._turn:
            if not self._resumed:
                await self._resume()
            try:
                yield
                if self._messages.parked is not None:
                    await self._messages.parked.events.wait_until_durable()
            except BaseException:
                self.begin_again()
                raise

    async def _sent_late(self, parked: ParkedEvent) -> bool:
        made = await self._messages.late(parked)
        if made is not None and made.message is not None:
            ((_, _, position),) = await self._target.send([made.message])
            await wait_until_durable(self._target, position)
            self.published += 1
        return made is not None

    async def save(self) -> bool:
        """Advances the checkpoint to the last durable message. Returns whether that covers everything sent.

        Raises OSError: the checkpoint is unchanged.
        """
        if self._file is None:
            return True
        if self._maturing is None:
            self._maturing, self._latest = self._latest, None
        if self._maturing is not None:
            event, (queue, offset, position), ends = self._maturing
            parked = self._messages.parked
            if self._target.is_durable(position):
                checkpoint = OutboxCheckpoint(
                    self._source.store,
                    self._target.topic,
                    self._identity,
                    origin_of_event(event),
                    queue,
                    offset,
                    ends,
                    event_identity(event),
                    0 if parked is None else parked.recorded_after(event.sequence),
                )
                await self._write(self._file, checkpoint)
                self._maturing = None
        return self._maturing is None and self._latest is None

    async def _write(self, file: CheckpointFile, checkpoint: OutboxCheckpoint) -> None:
        async with self._writing:
            await trio.to_thread.run_sync(file.save, checkpoint)

    async def _watch_topic(self) -> None:
        """Resumes soon after the topic was created again, instead of at the next event."""
        while True:
            await trio.sleep(_WATCH_S)
            try:
                same = await self._target.is_same()
            except Exception:  # sending fails as well, and reports it
                continue
            if not same:
                self._waiting.cancel()

    async def _save_regularly(self) -> None:
        try:
            while True:
                await trio.sleep(_SAVE_S)
                await self._attempt_to_save()
        finally:
            with trio.CancelScope(shield=True):
                await self._attempt_to_save()

    async def _attempt_to_save(self) -> None:
        try:
            await self.save()
        except OSError as error:  # it is needed only once retention has deleted the last messages
            _log.warning("the checkpoint of topic %s cannot be written: %s", self._target.topic, error)

    @property
    def told(self) -> str | None:
        """`failure` for those who see figures and may not read events: without the error of a domain, which may quote these."""
        return None if self.failure is None else self._told

    def _report(self, error: Exception, *, refused: bool) -> None:
        self.failures += not refused
        before, failure = self.failure, self.follower.failed(error, refused=refused)
        if failure != before:
            trace = None if isinstance(error, EventStoreError | OSError) else error
            state = "is refused" if refused else f"stopped at sequence {self.place} and is retried"
            _log.error("%s %s: %s", self._what, state, failure, exc_info=trace)
        self._told = failure
        if error is self._unmade:
            what = f"no message of topic {self.topic!r} can be made of the event at sequence {error.fields.get('sequence')}"
            self._told = f"{what}; `eventstore reactions list` says why"
