"""Makes the messages that an outbox sends: of all events, or of those that a domain publishes to a topic."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from eventstore.cloudevents import STRUCTURED, source_of, structured
from eventstore.domain.handler import line_of, text_of
from eventstore.domain.publication import Publication, PublishFunction, as_cloudevent, as_stored
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.failures import is_fault
from eventstore.fields import RESERVED, encodable
from eventstore.import_marks import NO_PUBLISH, is_marked
from eventstore.model import Event
from eventstore.protocol.reaction_info import ParkedEvent
from eventstore.records.event_message import EventMessages, marked_parked
from eventstore.records.message import BODY_BYTES_MAX, RawMessage
from eventstore.records.timer_record import OF_OWNERS
from eventstore.server.outbox.parked_messages import ParkedMessages

_log = logging.getLogger(__name__)


class MadeMessages(NamedTuple):
    """The events that have a message, and their messages. `failed`: the sequence up to which events were looked at, and why the
    one after it could not be made a message."""

    events: list[Event]
    messages: list[RawMessage]
    failed: tuple[int, EventStoreError] | None = None


class Late(NamedTuple):
    """The message of an event that was parked; None: it has none."""

    message: RawMessage | None


class OutboxMessages(Protocol):
    """Makes messages of events. `parked`: those of which none could be made; None: there can be no such events."""

    @property
    def parked(self) -> ParkedMessages | None: ...

    async def of(self, events: Sequence[Event]) -> MadeMessages:
        """Returns the messages of consecutive events, in order; what was parked meanwhile is durable."""
        ...

    async def late(self, parked: ParkedEvent) -> Late | None:
        """Returns what is made of a parked event; None if that fails again. Raises EventStoreError: it cannot be read."""
        ...


class AllEvents:
    """Every event but those that the server keeps for itself or that are marked, as it is stored."""

    parked = None

    def __init__(self, store: str) -> None:
        self._encode = EventMessages(store)

    async def of(self, events: Sequence[Event]) -> MadeMessages:
        published = [event for event in events if _is_published(event)]
        return MadeMessages(published, self._encode.of(published))

    async def late(self, parked: ParkedEvent) -> Late | None:
        return None


class PublishedEvents:
    """The events of a publication."""

    def __init__(self, store: str, publication: Publication, parked: ParkedMessages) -> None:
        self.parked = parked
        self._encode = EventMessages(store)
        self._publication = publication
        self._source = source_of(store)

    async def of(self, events: Sequence[Event]) -> MadeMessages:
        published: list[Event] = []
        messages: list[RawMessage] = []
        failed: tuple[int, EventStoreError] | None = None
        for event in events:
            function = self._publication.function(event.type)
            if function is None or not _is_published(event):
                continue
            try:
                held = not self.parked.is_quiet and await self.parked.holds(event)
                made = None if held else await self._made_or_parked(event, function)
            except EventStoreError as error:
                failed = event.sequence - 1, error
                break
            if made is not None:
                published.append(event)
                messages.append(made)
        await self.parked.events.wait_until_durable()
        return MadeMessages(published, messages, failed)

    async def late(self, parked: ParkedEvent) -> Late | None:
        event = await self.parked.events.event(parked)
        function = self._publication.function(event.type)
        if function is None:  # the domain publishes its type no more
            return Late(None)
        try:
            made = self._message(event, function)
        except BaseException as error:
            if not is_fault(error):
                raise
            self.parked.events.error = str(self._failed(event, error))
            return None
        return Late(None if made is None else marked_parked(made, parked.record))

    async def _made_or_parked(self, event: Event, function: PublishFunction) -> RawMessage | None:
        """Raises EventStoreError if no message can be made of it, and it is not parked."""
        try:
            return self._message(event, function)
        except BaseException as error:
            if not is_fault(error):
                raise
            failed = self._failed(event, error)
            if self._publication.on_failure == "stop":
                raise failed from error
            await self.parked.events.park(event, _why(error), 1)
            self.parked.events.error = failed.message
            _log.warning("%s; the event is parked: `eventstore reactions show %s`", failed, self.parked.events.name)
            return None

    def _message(self, event: Event, function: PublishFunction) -> RawMessage | None:
        if function is as_stored:
            return self._encode.of([event])[0]
        if function is as_cloudevent:
            body: bytes | None = structured(event, self._source).encode()
        else:
            body = self._publication.body(event)
        if body is not None and len(body) > BODY_BYTES_MAX:
            raise ValueError(f"it returned {len(body)} bytes; a message has at most {BODY_BYTES_MAX}")
        return None if body is None else self._encode.made_from(event, body, STRUCTURED if function is as_cloudevent else None)

    def _failed(self, event: Event, error: BaseException) -> EventStoreError:
        return InvalidArgument(
            f"event {event.type} at sequence {event.sequence}, version {event.version} of {event.aggregate_id!r}, cannot be "
            f"made a message of topic {self._publication.topic!r}: {_why(error)}; mend the function that publishes it, and "
            "start again",
            type=event.type,
            sequence=event.sequence,
        )


def _is_published(event: Event) -> bool:
    return event.aggregate_id[0] != RESERVED and event.type not in OF_OWNERS and not is_marked(event, NO_PUBLISH)


def _why(error: BaseException) -> str:
    why = text_of(error) if isinstance(error, EventStoreError) else encodable(text_of(error) + line_of(error))
    return f"{type(error).__name__}: {why}"
