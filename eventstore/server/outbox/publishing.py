"""What a server or worker publishes: an outbox for the setting `publish`, and one for each topic that a domain publishes to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

from eventstore.broker.broker import Broker
from eventstore.chunks.files import Files
from eventstore.domain.domain import Domain
from eventstore.domain.publication import Publication
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import shown
from eventstore.following.parking import parked_note
from eventstore.model import Event
from eventstore.protocol.reaction_info import ParkedEvent, ReactionInfo
from eventstore.records.event_filter import EventFilter
from eventstore.records.parking_record import TOPIC
from eventstore.records.topic_names import check_name
from eventstore.server.outbox.checkpoint_file import CheckpointFile, inherited_places
from eventstore.server.outbox.local_outbox import BrokerTopic, StoreEvents
from eventstore.server.outbox.outbox import Outbox
from eventstore.server.outbox.outbox_ends import PublishedStore
from eventstore.server.outbox.outbox_messages import PublishedEvents
from eventstore.server.outbox.parked_messages import ParkedMessages
from eventstore.store.embedded import EmbeddedStore

CHECKPOINT: Final = "published.json"
_CHECKPOINT_OF: Final = "published-{}.json"  # of a topic that the domain publishes to
_LOOK_S: Final = 1.0


def check_publish(topic: str | None, domain: Domain, *, with_broker: bool) -> None:
    """Raises InvalidArgument if a name is not valid for a topic, two outboxes have the same, or the server has no broker."""
    given = [] if topic is None else [("publish", topic)]
    for field, name in (*given, *(("topic of @publishes", name) for name in domain.publications)):
        check_name(field, name)
        if not with_broker:
            raise InvalidArgument(
                f"{field} is {name!r}, but broker is false; switch it on, or publish to another server with "
                "`eventstore publish`",
                field=field,
                value=name,
            )
    if topic in domain.publications:
        raise InvalidArgument(
            f"publish is {topic!r}, a topic that the domain publishes some events to; name another one",
            field="publish",
            value=topic,
        )


class WatchedOutbox:
    """One outbox, and its oldest event that was not published a moment ago."""

    def __init__(
        self,
        events: PublishedStore,
        outbox: Outbox,
        kinds: str,
        last: Callable[[], int],
        parked: ParkedMessages | None = None,
        suffix: str = "",
    ) -> None:
        """`kinds`: the types of its events, for operators. `last`: returns the last sequence of the store. `suffix`: of the
        name."""
        self.name = TOPIC + outbox.topic + suffix
        self.outbox = outbox
        self.kinds = kinds
        self.parked = parked
        self._last = last
        self._events = events
        self._oldest: Event | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_at_oldest)
            await self.outbox.run()

    async def _look_at_oldest(self) -> None:
        while True:
            await trio.sleep(_LOOK_S)
            with suppress(EventStoreError, OSError):  # publishing reads it as well, and reports that
                self._oldest = await self._events.event(self.outbox.place + 1) if self.backlog else None

    @property
    def lag_microseconds(self) -> int:
        oldest = self._oldest
        return max(0, time.time_ns() // 1_000 - oldest.timestamp) if oldest is not None and self.backlog else 0

    def progress(self) -> ReactionInfo:
        outbox, parked = self.outbox, self.parked
        error = outbox.failure or (None if parked is None else parked.events.error)
        count = 0 if parked is None else len(parked.events)
        state, lag = outbox.follower.state, self.lag_microseconds
        return ReactionInfo(self.name, self.kinds, state, outbox.place, self.backlog, lag, count, error)

    @property
    def backlog(self) -> int:
        return max(0, self._last() - self.outbox.place)


class Publishing:
    """The outboxes of a server or worker. They do not wait for each other."""

    def __init__(self, watched: Sequence[WatchedOutbox]) -> None:
        self._watched = watched

    @property
    def attention(self) -> str | None:
        """Returns why publishing is stuck, and what it has parked, if so."""
        said = [
            f"{'publishing is refused' if each.refused else 'events are not published; this is retried'}: {each.told}"
            for each in self.outboxes
            if each.failure is not None
        ] + [
            f"publishing to {each.events.name} {parked_note(each.events.name, len(each.events))}"
            for each in self._parking()
            if each.events
        ]
        return "; ".join(said) or None

    @property
    def outboxes(self) -> list[Outbox]:
        return [each.outbox for each in self._watched]

    def places(self) -> dict[str, int]:
        """Returns the sequence up to which all events are in each topic."""
        return {each.topic: each.place for each in self.outboxes}

    @property
    def lag_microseconds(self) -> int:
        """The age of the oldest event that was not published a second ago; 0 if there is none now."""
        return max((each.lag_microseconds for each in self._watched), default=0)

    @property
    def backlog(self) -> int:
        """The number of events that are not published yet, of the topic that is furthest behind."""
        return max((each.backlog for each in self._watched), default=0)

    @property
    def events_parked(self) -> int:
        return sum(len(each.events) for each in self._parking())

    @property
    def passed_over(self) -> int:
        """How many records of what is parked are not of their form; each publication reads the same ones."""
        return max((each.passed_over for each in self._parking()), default=0)

    def _parking(self) -> list[ParkedMessages]:
        return [each.parked for each in self._watched if each.parked is not None]

    def begin_again(self) -> None:
        """Finds again what is parked and where each topic resumes: aggregates may be another shard's by now."""
        for each in self.outboxes:
            each.begin_again()

    # ---- for operators, as of reactions

    def progress(self) -> list[ReactionInfo]:
        """Returns how far publishing to each topic is. An event is done when its message is sent or parked."""
        return [each.progress() for each in self._watched]

    def parked(self, name: str) -> list[ParkedEvent]:
        """Returns what a publication has parked. Raises InvalidArgument if it does not exist."""
        found = self._named(name).parked
        return [] if found is None else list(found.events)

    async def retry(self, name: str, aggregate_id: str | None, who: str, why: str) -> int:
        """Publishes what is parked, of one aggregate or of all, in order; returns how many are done.

        Raises:
            EventStoreError: there is no such publication, or its topic takes no messages now.
        """
        return await self._named(name).outbox.retry(aggregate_id, who, why)

    async def skip(self, name: str, aggregate_id: str, who: str, why: str) -> int:
        """Takes the first parked event of an aggregate off, then publishes those after it; returns how many are off. Raises as
        `retry`.
        """
        return await self._named(name).outbox.retry(aggregate_id, who, why, skip=True)

    async def replay(self, name: str, sequence: int, who: str, why: str) -> int:
        raise InvalidArgument(
            f"{name} is not set back: what a topic ends with says how far it is; delete the topic, and it gets all events",
            field="reaction",
        )

    def _named(self, name: str) -> WatchedOutbox:
        for each in self._watched:
            if each.name == name:
                return each
        names = ", ".join(each.name for each in self._watched[:20]) or "none"
        raise InvalidArgument(f"there is no publication {shown(name)}; there are: {names}", field="reaction", value=shown(name))

    async def run(self) -> None:
        """Publishes until cancelled."""
        async with trio.open_nursery() as nursery:
            for each in self._watched:
                nursery.start_soon(each.run)


def publishing_of(
    store: EmbeddedStore, broker: Broker | None, topic: str | None, domain: Domain, folder: Path, files: Files | None = None
) -> Publishing:
    """Returns what a server publishes to its own broker: all events to `topic`, and what the domain says. `folder`: of the
    checkpoints."""
    watched: list[WatchedOutbox] = []
    if broker is None:
        return Publishing(watched)
    begins = inherited_places(folder)

    def last() -> int:
        return store.engine.visible_sequence

    if topic is not None:
        events = StoreEvents(store)
        file = CheckpointFile(folder / CHECKPOINT, files)
        outbox = Outbox(events, BrokerTopic(broker, topic), file, begins=begins.get(topic, 0))
        watched.append(WatchedOutbox(events, outbox, "all", last))
    for publication in domain.publications.values():
        own = publication.topic
        events = StoreEvents(store, EventFilter(types=frozenset(publication.kinds)))
        file = CheckpointFile(folder / _CHECKPOINT_OF.format(own), files)
        make = partial(Outbox, events, BrokerTopic(broker, own), file, begins=begins.get(own, 0))
        watched.append(watched_publication(publication, events, make, ParkedMessages(store, own), last))
    return Publishing(watched)


def watched_publication(
    publication: Publication,
    events: PublishedStore,
    make: Callable[[PublishedEvents], Outbox],
    parked: ParkedMessages,
    last: Callable[[], int],
    suffix: str = "",
) -> WatchedOutbox:
    """Returns the outbox of a publication, which `make` makes with its messages."""
    outbox = make(PublishedEvents(events.store, publication, parked))
    return WatchedOutbox(events, outbox, ", ".join(sorted(publication.kinds)), last, parked, suffix)
