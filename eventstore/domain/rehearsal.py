"""Rehearses a domain: restores every aggregate of a store with the code of now, and reports each event that does not fit.

Run it before new code is deployed. An aggregate whose `@applies` method fails is not restored any further; its later events
are still decoded, so that all that do not fit their classes are found at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import anyio

from eventstore.aggregate_info import AggregateInfo
from eventstore.domain.aggregate import Aggregate, new
from eventstore.domain.candidates import CandidateClasses, Classes
from eventstore.domain.domain import Domain
from eventstore.domain.encoding.event_type import EventType
from eventstore.domain.handler import text_of
from eventstore.domain.restore import replay
from eventstore.errors import EventStoreError
from eventstore.fields import RESERVED
from eventstore.model import Event

_AT_ONCE: Final = 16
_EVENTS_PER_TURN: Final = 256


class Fault(NamedTuple):
    """An event that does not fit. `error`: why."""

    aggregate_id: str
    version: int
    type: str
    error: str


class Rehearsed(NamedTuple):
    """What was done. `others`: aggregates whose first event no class of the domain has; nothing of them was checked. `faults`:
    how many were found."""

    aggregates: int = 0
    events: int = 0
    others: int = 0
    faults: int = 0


class Rehearsable(Protocol):
    """The part of a store that is needed here."""

    def aggregates(self, prefix: str = "", after: str | None = None) -> Any: ...

    def read(self, aggregate_id: str) -> AsyncIterator[Event]: ...


async def rehearse(
    store: Rehearsable, domain: Domain, prefix: str = "", found: Callable[[Fault], None] = lambda fault: None,
    on_progress: Callable[[Rehearsed], None] = lambda done: None,
) -> Rehearsed:  # fmt: skip
    """Restores every aggregate whose id begins with `prefix`. `found` is called with each fault, `on_progress` after each page
    of aggregates. Changes nothing. Runs on trio and asyncio.

    Raises:
        EventStoreError: the store cannot be read.
    """
    run = _Rehearsal(store, domain, found)
    after: str | None = None
    while page := await store.aggregates(prefix, after):
        await run.check(page)
        on_progress(run.done)
        after = page[-1].aggregate_id
    return run.done


class _Rehearsal:
    def __init__(self, store: Rehearsable, domain: Domain, found: Callable[[Fault], None]) -> None:
        self.done = Rehearsed()
        self._store = store
        self._kinds = domain.event_types
        self._candidates = CandidateClasses(domain)
        self._found = found

    async def check(self, page: Sequence[AggregateInfo]) -> None:
        """Checks these aggregates, some of them at the same time. Raises the first error of the store."""
        left, failed = iter([each.aggregate_id for each in page]), list[EventStoreError]()

        async def next_ones() -> None:
            for aggregate_id in left:
                if failed:
                    return
                if aggregate_id[0] != RESERVED:
                    try:
                        await self._check(aggregate_id)
                    except EventStoreError as error:
                        failed.append(error)

        async with anyio.create_task_group() as tasks:
            for _ in range(_AT_ONCE):
                tasks.start_soon(next_ones)
        if failed:
            raise failed[0]

    async def _check(self, aggregate_id: str) -> None:
        classes, one, count = self._candidates.all, None, 0
        attempts: list[_Attempt] = []  # one for each class that it may have
        async for event in self._store.read(aggregate_id):
            if not count:
                one = self._candidates.only(event.type)
                classes, _ = self._candidates.narrow(classes, [event])
                kinds: Classes = classes if one is None else frozenset((one,))
                if event.type not in self._kinds and not kinds:
                    self.done = self.done._replace(others=self.done.others + 1)
                    return
                attempts = [_Attempt(new(kind, aggregate_id)) for kind in kinds] or [_Attempt(None)]
            count += 1
            for attempt in attempts:
                attempt.take(event, self._kinds.get(event.type))
            if not count % _EVENTS_PER_TURN:
                await anyio.lowlevel.checkpoint()
        best = min((each.faults for each in attempts), key=len, default=[])
        for fault in best:
            self._found(fault)
        done = self.done
        self.done = done._replace(aggregates=done.aggregates + 1, events=done.events + count, faults=done.faults + len(best))


class _Attempt:
    """An aggregate that is restored as one class, or as none. `faults`: the events that do not fit."""

    def __init__(self, aggregate: Aggregate | None) -> None:
        self.faults: list[Fault] = []
        self._aggregate: Aggregate | None = aggregate

    def take(self, event: Event, kind: EventType[object] | None) -> None:
        """`kind`: the class that the domain has for events of this type; it is decoded where the aggregate does not."""
        try:
            if self._aggregate is not None:
                aggregate, self._aggregate = self._aggregate, None  # it must not be used after an error
                replay(aggregate, [event])
                self._aggregate = aggregate
            if kind is not None:
                kind.decode(event)
        except EventStoreError as error:
            text = text_of(error).removeprefix(f"aggregate {event.aggregate_id!r}, version {event.version}: ")
            self.faults.append(Fault(event.aggregate_id, event.version, event.type, text))
