"""Restores aggregates from stored events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import Protocol, TypeAlias, TypeVar

from eventstore.domain.aggregate import Aggregate, applies_by_name, new
from eventstore.domain.encoding.codec import class_path
from eventstore.domain.handler import text_of
from eventstore.errors import EventStoreError, HandlerFailed, InvalidArgument, UnknownEvent
from eventstore.failures import is_fault
from eventstore.model import Event
from eventstore.records.timer_record import OF_OWNERS

A = TypeVar("A", bound=Aggregate)
_EVENTS_PER_TURN = 256

ReadEvents: TypeAlias = Callable[[str, int], AsyncGenerator[list[Event], None]]
"""Yields an aggregate's events from a version on, in pages; no page if there are none. A page is replayed without a pause."""


class Readable(Protocol):
    """The part of a store that is needed here."""

    def read(self, aggregate_id: str, from_version: int = 1) -> AsyncIterator[Event]: ...


def restore(cls: type[A], aggregate_id: str, events: Iterable[Event]) -> A:
    """Returns the aggregate after these events, which start at version 1; without events, a new one. Raises as `replay`."""
    aggregate = new(cls, aggregate_id)
    replay(aggregate, events)
    return aggregate


async def restore_from(store: Readable, cls: type[A], aggregate_id: str) -> A:
    """Returns the aggregate as it is in the store. Raises as `replay` and `store.read`."""
    aggregate = new(cls, aggregate_id)
    page: list[Event] = []
    async for event in store.read(aggregate_id):
        page.append(event)
        if len(page) == _EVENTS_PER_TURN:
            replay(aggregate, page)
            page.clear()
    replay(aggregate, page)
    return aggregate


def replay(aggregate: Aggregate, events: Iterable[Event]) -> None:
    """Applies its next events to an aggregate. After an error the aggregate must not be used.

    Raises:
        UnknownEvent: the code does not know an event's type or schema version.
        PayloadInvalid: an event does not match its class.
        HandlerFailed: an `@applies` method raised.
        InvalidArgument: the versions have a gap, or an event is of another aggregate.
        All name aggregate and version.
    """
    apply_stored(aggregate, events, is_of_aggregate=True)


def apply_stored(aggregate: Aggregate, events: Iterable[Event], *, is_of_aggregate: bool) -> None:
    """Applies stored events. `is_of_aggregate`: they have to be its own, without a gap. Raises as `replay`."""
    changes, version = applies_by_name(type(aggregate)), aggregate._aggregate_version
    aggregate._aggregate_applying = True
    stored: Event | None = None
    try:
        for stored in events:
            version += 1
            if is_of_aggregate and (stored[1] != version or stored[0] != aggregate._aggregate_id):
                raise InvalidArgument(
                    f"the next event must be version {version} of {aggregate._aggregate_id!r}", field="version", limit=version
                )
            change = changes.get(stored[2])
            if change is not None:
                change[1](aggregate, change[0].decode(stored))
            elif not aggregate.ignores_unknown and stored[2] not in OF_OWNERS:
                raise _unknown(aggregate, stored[2])
            aggregate._aggregate_version = version  # the next method may ask for it, as when its event was applied
    except BaseException as error:
        if not is_fault(error):
            raise
        assert stored is not None
        raise _named(aggregate, stored, error) from error
    aggregate._aggregate_applying = False


def _unknown(aggregate: Aggregate, name: str) -> UnknownEvent:
    return UnknownEvent(
        f"{class_path(type(aggregate))} has no method for events of type {name!r}; add one marked @applies, or set "
        "ignores_unknown = True",
        type=name,
    )


def _named(aggregate: Aggregate, stored: Event, error: BaseException) -> EventStoreError:
    """Returns the error with aggregate and version of the event that caused it."""
    where = f"aggregate {stored.aggregate_id!r}, version {stored.version}"
    place: dict[str, str | int | bool | None] = {"aggregate_id": stored.aggregate_id, "version": stored.version}
    if isinstance(error, EventStoreError):
        named = error.__class__.__new__(error.__class__)
        EventStoreError.__init__(named, f"{where}: {text_of(error)}", **{**error.fields, **place})
        return named
    handler = f"{class_path(type(aggregate))} @applies({stored.type})"
    text = f"{where}: {handler} raised {type(error).__name__}: {text_of(error)}"
    return HandlerFailed(text, handler=handler, error=type(error).__name__, **place)
