"""A domain as what runs in command mailboxes: handles commands, restores aggregates.

The mailboxes know aggregates by id alone, and an id does not say of which class it is before a command for it is handled. So
what they keep in memory is a `Seat`: the aggregate, or the events to make it of.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from eventstore.domain.aggregate import Aggregate, changes_by_name, new
from eventstore.domain.codec import described
from eventstore.domain.domain import Domain
from eventstore.domain.handling import Handled, Handler, text_of
from eventstore.domain.restoring import replay
from eventstore.errors import Corrupt, EventStoreError, HandlerFailed, InvalidArgument, ShuttingDown
from eventstore.fields import shown
from eventstore.model import Event
from eventstore_mailbox import Unrestorable

ReadEvents: TypeAlias = Callable[[str, int], AsyncGenerator[list[Event], None]]
"""An aggregate's events from a version on, a page at a time; no page where there is none. A page is replayed in one go."""

Change: TypeAlias = "tuple[str, int, str, None, tuple[bytes, int]]"
"""As a commit on the wire: aggregate id, expected version, command id, no timestamp, events; but with their number, by which
the store knows that they were packed here and need no further check."""

_SEATED: Final[list[Event]] = []
_FIELDS_MAX: Final = 32
"""Of an error of the domain: the sender takes a bounded number of values."""


class Decided(NamedTuple):
    """A decoded command, and who decides on it."""

    handler: Handler
    command: object
    command_id: str


class Seat:
    """An aggregate in memory. `events` are those it has to be made of; `touched`: a refused command may have left a trace."""

    __slots__ = ("aggregate", "events", "touched")

    def __init__(self, aggregate: Aggregate | None, events: list[Event]) -> None:
        self.aggregate = aggregate
        self.events = events
        self.touched = False


class Running:
    """What `Ports` of the mailboxes asks of a domain. `read_events` reads the store."""

    def __init__(self, domain: Domain, read_events: ReadEvents) -> None:
        self._read_events = read_events
        self._class_of_event = _classes_by_event(domain)

    def handle(self, decided: Decided, seat: Seat) -> Change | Coroutine[object, object, Change | None] | None:
        """Runs a command. Raises what its sender is told."""
        handler, command, command_id = decided
        aggregate = seat.aggregate
        if type(aggregate) is not handler.aggregate:
            aggregate = _seated(seat, decided)
        version = aggregate._aggregate_version
        if handler.is_async:
            return self._handle_async(decided, seat, aggregate, version)
        try:
            handled = handler.run(command, aggregate)
        except BaseException:  # what is no Exception passes through the handler: SystemExit, say
            seat.touched = True
            raise
        if handled.error is None and handled.events:  # as `_change`, for the most frequent case
            return aggregate._aggregate_id, version, command_id, None, handled[:2]
        return _change(handled, seat, aggregate, version, decided)

    async def _handle_async(self, decided: Decided, seat: Seat, aggregate: Aggregate, version: int) -> Change | None:
        seat.touched = True  # should it be cancelled
        handled = await decided.handler.run_async(decided.command, aggregate)
        seat.touched = False
        return _change(handled, seat, aggregate, version, decided)

    async def restore(self, aggregate_id: str) -> Seat:
        """The aggregate as the store has it.

        Raises:
            Unrestorable: its events cannot be read, or not be applied.
            EventStoreError: the store cannot be reached.
        """
        seat = Seat(None, [])

        def take(page: list[Event]) -> None:
            if seat.aggregate is None and not seat.events:
                kind = self._class_of_event.get(page[0].type)
                seat.aggregate = None if kind is None else new(kind, aggregate_id)
            if seat.aggregate is None:
                seat.events += page
            else:
                replay(seat.aggregate, page)

        await self._read(aggregate_id, 1, take)
        return seat

    async def refresh(self, aggregate_id: str, seat: Seat) -> Seat:
        """The aggregate with what the store has behind its version. Raises as `restore`, and then it is of no use any more."""
        aggregate = seat.aggregate
        if aggregate is None or not aggregate._aggregate_version:
            return await self.restore(aggregate_id)
        await self._read(aggregate_id, aggregate._aggregate_version + 1, partial(replay, aggregate))
        return seat

    async def _read(self, aggregate_id: str, from_version: int, take: Callable[[list[Event]], None]) -> None:
        try:
            async with aclosing(self._read_events(aggregate_id, from_version)) as pages:
                async for page in pages:
                    take(page)
        except Corrupt as error:
            raise Unrestorable(error) from error
        except EventStoreError as error:
            if error.retriable:
                raise
            raise Unrestorable(error) from error

    def untouched(self, seat: Seat) -> bool:
        """Whether the aggregate is as it was before the command that was refused last."""
        return not seat.touched


def _seated(seat: Seat, decided: Decided) -> Aggregate:
    """The aggregate as one of the class that the handler is for."""
    kind, id_of = decided.handler.aggregate, decided.handler.command.aggregate_id
    if seat.aggregate is not None and seat.aggregate.version:
        raise InvalidArgument(
            f"{seat.aggregate.id!r} is a {described(type(seat.aggregate))}, and {decided.handler.name} is for a "
            f"{described(kind)}",
            field="aggregate_id",
            value=seat.aggregate.id,
        )
    aggregate = new(kind, id_of(decided.command))
    replay(aggregate, seat.events)
    seat.aggregate, seat.events = aggregate, _SEATED
    return aggregate


def _change(handled: Handled, seat: Seat, aggregate: Aggregate, version: int, decided: Decided) -> Change | None:
    if handled.error is not None:
        seat.touched = handled.touched
        raise _told(handled.error, decided.handler)
    if not handled.events:
        return None
    return aggregate._aggregate_id, version, decided.command_id, None, handled[:2]


def _told(error: EventStoreError, handler: Handler) -> EventStoreError:
    """The error as it can travel: with a number, a text and not too many fields, and without a meaning to the connection."""
    if type(error.message) is not str:
        error.message = text_of(error)
    if len(error.fields) > _FIELDS_MAX:
        error.fields = dict(islice(error.fields.items(), _FIELDS_MAX))
    if type(error.code) is int and not isinstance(error, ShuttingDown):  # upon which clients look for another server
        return error
    name = type(error).__name__
    why = "it is for servers to say" if isinstance(error, ShuttingDown) else f"its code is {shown(error.code)}, and no number"
    return HandlerFailed(f"{handler.name} raised {name}: {error.message}; {why}", handler=handler.name, error=name)


def _classes_by_event(domain: Domain) -> dict[str, type[Aggregate]]:
    """The class of aggregates to which an event of this type happens, where that is clear."""
    classes: dict[str, Any] = {}
    for handler in domain.handlers.values():
        for name in changes_by_name(handler.aggregate):
            if classes.setdefault(name, handler.aggregate) is not handler.aggregate:
                classes[name] = None
    return {name: kind for name, kind in classes.items() if kind is not None}
