"""The outbox: sends every event of a store to a topic, in order, at least once. The event log itself is the outbox.

One batch at a time is on its way. That is what makes the topic say how far it got: the next batch is not sent before the one
in front of it is in the broker's log, so what the log holds is always a beginning of what was to be sent. Whatever goes wrong,
the answer is the same as after a crash: look up in the topic where to go on (see `outbox_place`), and go on there. Nothing
is left out, however long it takes; what may have been sent is sent again.

`Source` and `Target` are the two ends: in this process, or clients of servers elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import trio

from eventstore.broker.message import RawMessage
from eventstore.chunks.documents import read_tree, write_document
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import Corrupt, EventStoreError, InvalidArgument, UnknownOperation, UnsupportedVersion
from eventstore.model import Event
from eventstore.server.event_message import EventMessages, origin_of_event
from eventstore.server.outbox_place import Checkpoint, Published, Stored, TopicState, checkpoint_of, place_to_go_on

BATCH_EVENTS_MAX: Final = 1_024
_EVENTS_PER_TURN: Final = 256  # encoding them takes about half a millisecond; then others have their turn
_SAVE_S: Final = 1.0
_WATCH_S: Final = 1.0
_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 5.0
_LASTING: Final = (InvalidArgument, UnsupportedVersion, UnknownOperation)
_log = logging.getLogger(__name__)

Place: TypeAlias = tuple[int, int, int]
"""(queue, queue offset, position) of a message."""


class Source(Stored, Protocol):
    """The store whose events are published. `store`: its uuid."""

    @property
    def store(self) -> str: ...

    async def events(self, after: int) -> list[Event]:
        """The next events behind this sequence, at most `BATCH_EVENTS_MAX` or so; waits until there are some."""
        ...


class Target(Published, Protocol):
    """The topic they go to."""

    @property
    def topic(self) -> str: ...

    async def open(self) -> TopicState:
        """The topic, which is created where it is missing."""
        ...

    async def is_same(self) -> bool:
        """Whether the topic is the one that was opened: neither deleted nor created again. `send` refuses any other."""
        ...

    async def send(self, messages: Sequence[RawMessage]) -> list[Place]:
        """Sends the messages, in order; where they lie. A failure leaves the first few of them in the topic, or none, or
        all: never one without those in front of it.

        Raises:
            EventStoreError
        """
        ...

    def is_durable(self, position: int) -> bool:
        """Whether the message at this position outlasts whatever happens to the broker."""
        ...


class CheckpointFile:
    """A checkpoint in a small JSON document; replaced atomically, with the copy before beside it. Its methods block."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._files = files or OsFiles()

    def load(self) -> Checkpoint | None:
        """The checkpoint, if there is one. One that cannot be read is passed over: the topic says nearly the same."""
        try:
            return checkpoint_of(read_tree(self._files, self._path))
        except FileNotFoundError:
            return None
        except (Corrupt, KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning("%s is no checkpoint (%s); the topic says where to go on", self._path, error)
            return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Durable on return."""
        write_document(self._files, self._path, checkpoint.tree())


class Outbox:
    """`place`: the sequence up to which everything is in the topic, as far as this process has got. `published`: how many
    events it has sent. `failure`: why it does not get on, as long as it does not. `failures`: how often it failed.
    """

    def __init__(self, source: Source, target: Target, file: CheckpointFile | None) -> None:
        self.place = 0
        self.published = 0
        self.failure: str | None = None
        self.failures = 0
        self._source = source
        self._target = target
        self._file = file
        self._encode = EventMessages(source.store)
        self._waiting = trio.CancelScope()
        self._identity = ""
        self._ends: dict[int, int] = {}
        self._latest: tuple[Checkpoint, int] | None = None  # and the position of its message
        self._maturing: tuple[Checkpoint, int] | None = None  # to be saved as soon as it is durable

    async def run(self, until: int | None = None) -> None:
        """Publishes until cancelled, or until the event with the sequence `until` is published.

        What fails is tried again, after a pause of 0.1 to 5 seconds. With `until` somebody waits for the end of it, and what
        no other attempt can mend is raised.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._save_regularly)
            nursery.start_soon(self._watch_topic)
            pause, resumed = _PAUSE_S_MIN, False
            while not (resumed and until is not None and self.place >= until):
                try:
                    if resumed:
                        resumed = await self.publish()
                        pause, self.failure = _PAUSE_S_MIN, None
                    else:
                        await self.resume()
                        resumed = True
                except Exception as error:  # the server goes on, and so does this
                    if until is not None and (isinstance(error, _LASTING) or not isinstance(error, EventStoreError | OSError)):
                        raise
                    resumed = False
                    self._tell(error)
                    await trio.sleep(pause)
                    pause = min(2 * pause, _PAUSE_S_MAX)
            nursery.cancel_scope.cancel()

    async def resume(self) -> None:
        """Finds out where to go on. To be called first, and after every failure. Raises EventStoreError."""
        self._latest = self._maturing = None
        state = await self._target.open()
        checkpoint = None if self._file is None else await trio.to_thread.run_sync(self._file.load)
        if checkpoint is not None and (checkpoint.store, checkpoint.topic) != (self._source.store, self._target.topic):
            checkpoint = None
        self.place = await place_to_go_on(self._source, self._target, self._source.store, state, checkpoint)
        self._identity, self._ends = state.identity, {number: end for number, (_, end) in state.queues.items()}
        _log.info("publishing to topic %s goes on behind sequence %d", self._target.topic, self.place)

    async def publish(self) -> bool:
        """Sends the next batch; waits where nothing is to be sent. False: `resume` is due, for the topic is another one.

        Raises:
            EventStoreError
        """
        with trio.CancelScope() as self._waiting:
            events = await self._source.events(self.place)
        if self._waiting.cancelled_caught:
            return False
        assert events[0].sequence == self.place + 1, "an event was left out"
        messages: list[RawMessage] = []
        for start in range(0, len(events), _EVENTS_PER_TURN):
            messages += self._encode.of(events[start : start + _EVENTS_PER_TURN])
            await trio.lowlevel.checkpoint()
        places = await self._target.send(messages)
        self.place = events[-1].sequence
        self.published += len(events)
        for queue, offset, _ in places:
            self._ends[queue] = offset + 1
        queue, offset, position = places[-1]
        checkpoint = Checkpoint(
            self._source.store, self._target.topic, self._identity, origin_of_event(events[-1]), queue, offset, dict(self._ends)
        )
        self._latest = checkpoint, position
        return True

    async def save(self) -> bool:
        """Moves the checkpoint on, to the last message that is durable. Whether everything sent is behind it.

        Raises OSError: the checkpoint is as before.
        """
        if self._file is None:
            return True
        if self._maturing is None:
            self._maturing, self._latest = self._latest, None
        if self._maturing is not None and self._target.is_durable(self._maturing[1]):
            await trio.to_thread.run_sync(self._file.save, self._maturing[0])
            self._maturing = None
        return self._maturing is None and self._latest is None

    async def _watch_topic(self) -> None:
        """One that was created again is to have everything soon, not only when the next event comes."""
        while True:
            await trio.sleep(_WATCH_S)
            try:
                same = await self._target.is_same()
            except Exception:  # sending meets it as well, and tells
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
        except OSError as error:  # it matters only once retention has deleted the last messages
            _log.warning("the checkpoint of topic %s cannot be written: %s", self._target.topic, error)

    def _tell(self, error: Exception) -> None:
        self.failures += 1
        failure = str(error) or type(error).__name__
        if failure != self.failure:
            trace = None if isinstance(error, EventStoreError | OSError) else error
            _log.error(
                "publishing to topic %s waits at sequence %d and is tried again: %s",
                self._target.topic, self.place, failure, exc_info=trace,
            )  # fmt: skip
        self.failure = failure
