"""`Publication`: which events become messages of a topic, and how: as they are stored, or as what a function makes of them.

Events are a service's own; what others may rely on is a message of its own, which stays when the events change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from eventstore.cloudevents import structured
from eventstore.domain.encoding.event_type import EventType
from eventstore.domain.reactions.reaction import OnFailure
from eventstore.errors import DomainRefused
from eventstore.json_values import json_text
from eventstore.model import Event

PublishFunction: TypeAlias = Callable[[Any, Event], object]


def as_stored(event: object, stored: Event) -> bytes:
    """Publishes an event as it is."""
    return stored[3]  # of one with a subject: encrypted


def as_cloudevent(event: object, stored: Event) -> bytes:
    """Publishes an event as a CloudEvent in its JSON format. Its source is `/` here: who publishes it names the store."""
    return structured(stored, "/").encode()


class Publication:
    """The messages of one topic, by event type."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._declared: OnFailure | None = None
        self._kinds: dict[str, tuple[EventType[Any], PublishFunction]] = {}

    @property
    def kinds(self) -> Mapping[str, EventType[Any]]:
        """The event types, by name."""
        return {name: kind for name, (kind, _) in self._kinds.items()}

    def add(self, kind: EventType[Any], function: PublishFunction) -> None:
        """Adds a type of events. Raises DomainRefused if the topic has it already, or the function is async."""
        if inspect.iscoroutinefunction(function):
            raise DomainRefused(
                f"{function.__qualname__}, which publishes {kind.name!r}, is async; a message is made of its event alone",
                type=kind.name,
            )
        if kind.name in self._kinds:
            raise DomainRefused(
                f"events of type {kind.name!r} are published to topic {self.topic!r} already; remove one of the two",
                type=kind.name,
            )
        self._kinds[kind.name] = kind, function

    @property
    def on_failure(self) -> OnFailure:
        """What happens to an event of which no message can be made (see `Domain.publishes`)."""
        return self._declared or "park"

    def declare(self, on_failure: OnFailure | None) -> None:
        """Sets the policy of the topic, unless it is None. Raises DomainRefused: there is none like it, or it has another."""
        if on_failure is None:
            return
        if on_failure not in ("park", "stop"):
            raise DomainRefused(
                f'topic {self.topic!r}: on_failure is {on_failure!r:.80}, expected "park" or "stop"', name=self.topic
            )
        if self._declared not in (None, on_failure):
            raise DomainRefused(
                f"topic {self.topic!r} is published with on_failure={self._declared!r} and with {on_failure!r}; a topic has "
                "one policy, which the others need not name",
                name=self.topic,
            )
        self._declared = on_failure

    def function(self, type: str) -> PublishFunction | None:
        """Returns the function for events of this type, if they are published."""
        found = self._kinds.get(type)
        return None if found is None else found[1]

    def body(self, stored: Event) -> bytes | None:
        """Returns the body of the event's message, None if it has none. Raises what the function raises."""
        kind, function = self._kinds[stored.type]
        made = function(kind.decode(stored), stored)
        if made is None:
            return None
        if isinstance(made, bytes):
            return bytes(made)  # the broker takes no subclass
        return json_text(made).encode()
