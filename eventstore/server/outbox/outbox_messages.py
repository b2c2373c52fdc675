"""Makes the messages that an outbox sends: of all events, or of those that a domain publishes to a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from eventstore.domain.publication import Publication, as_stored
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import RESERVED
from eventstore.model import Event
from eventstore.records.event_message import EventMessages
from eventstore.records.message import BODY_BYTES_MAX, RawMessage

_ERROR_CHARACTERS_MAX: Final = 200


class Made(NamedTuple):
    """The events that have a message, and their messages. `failed`: the sequence up to which events were looked at, and why the
    one after it could not be made a message."""

    events: list[Event]
    messages: list[RawMessage]
    failed: tuple[int, EventStoreError] | None = None


class Messages(Protocol):
    """Makes messages of events."""

    def of(self, events: Sequence[Event]) -> Made:
        """Returns the messages of consecutive events, in order."""
        ...


class AllEvents:
    """Every event but those that the server keeps for itself, as it is stored."""

    def __init__(self, store: str) -> None:
        self._encode = EventMessages(store)

    def of(self, events: Sequence[Event]) -> Made:
        published = [event for event in events if event.aggregate_id[0] != RESERVED]
        return Made(published, self._encode.of(published))


class PublishedEvents:
    """The events of a publication."""

    def __init__(self, store: str, publication: Publication) -> None:
        self._encode = EventMessages(store)
        self._publication = publication

    def of(self, events: Sequence[Event]) -> Made:
        published: list[Event] = []
        messages: list[RawMessage] = []
        for event in events:
            try:
                made = self._message(event)
            except Exception as error:
                return Made(published, messages, (event.sequence - 1, self._failed(event, error)))
            if made is not None:
                published.append(event)
                messages.append(made)
        return Made(published, messages)

    def _message(self, event: Event) -> RawMessage | None:
        function = self._publication.function(event.type)
        if function is None or event.aggregate_id[0] == RESERVED:
            return None
        if function is as_stored:
            return self._encode.of([event])[0]
        body = self._publication.body(event)
        if body is not None and len(body) > BODY_BYTES_MAX:
            raise ValueError(f"it returned {len(body)} bytes; a message has at most {BODY_BYTES_MAX}")
        return None if body is None else self._encode.made_from(event, body)

    def _failed(self, event: Event, error: Exception) -> EventStoreError:
        why = f"{type(error).__name__}: {error!s:.{_ERROR_CHARACTERS_MAX}}"
        return InvalidArgument(
            f"event {event.type} at sequence {event.sequence}, version {event.version} of {event.aggregate_id!r}, cannot be "
            f"made a message of topic {self._publication.topic!r}: {why}; mend the function that publishes it, and start again",
            type=event.type,
            sequence=event.sequence,
        )
