"""Reads some of the events of a store with the classes of a domain, and reports each type that has none, or does not fit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any, NamedTuple, Protocol

from eventstore.domain.domain import Domain
from eventstore.domain.schema import Misfit
from eventstore.errors import EventStoreError
from eventstore.failures import text_of
from eventstore.fields import RESERVED
from eventstore.model import Event
from eventstore.records.timer_record import OF_OWNERS


class Sampled(NamedTuple):
    """`events`: how many were read; `findings`: one for each type and reason."""

    events: int
    findings: list[Misfit]


class SampledStore(Protocol):
    """The part of a store that is needed here."""

    def read_all(self, *, limit: int | None = None, backwards: bool = False) -> Any: ...


async def unread(store: SampledStore, domain: Domain, events_max: int | None, ignored: Collection[str] = ()) -> Sampled:
    """Decodes the newest and the oldest events of a store, `events_max` together; None: all. `ignored`: types to leave
    out.

    Raises:
        EventStoreError: the store cannot be read.
    """
    found: dict[tuple[str, str], Misfit] = {}
    count = 0
    async for event in _sample(store, events_max):
        if event.aggregate_id[0] == RESERVED or event.type in OF_OWNERS or event.type in ignored:
            continue
        count += 1
        for each in _unread(domain, event):
            found.setdefault((event.type, each.message.partition(": ")[2]), each)
    return Sampled(count, list(found.values()))


async def _sample(store: SampledStore, events_max: int | None) -> AsyncIterator[Event]:
    if events_max is None:
        async for event in store.read_all():
            yield event
        return
    newest: set[tuple[str, int]] = set()
    async for event in store.read_all(limit=(events_max + 1) // 2, backwards=True):
        newest.add((event.aggregate_id, event.version))
        yield event
    async for event in store.read_all(limit=events_max // 2):
        if (event.aggregate_id, event.version) not in newest:
            yield event


def _unread(domain: Domain, event: Event) -> Iterator[Misfit]:
    kind, why = domain.event_types.get(event.type), "no class of the domain has this event"
    if kind is not None:
        try:
            kind.decode(event)
            return
        except EventStoreError as error:
            why = text_of(error)
    place = f"{event.type!r} of aggregate {event.aggregate_id!r}, version {event.version}"
    yield Misfit("event-unread", event.type, f"{place}: {why}", None if kind is None else kind.cls)
