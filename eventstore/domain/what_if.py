"""Replays kept commands with other code, and reports where that decides otherwise. Nothing is written.

Each command is decided on the history that it was decided on: aggregates are restored in memory, with the code of now, from the
events that were stored before it. So one difference does not cause others.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, cast

import anyio

from eventstore import flat
from eventstore.domain.aggregate import Aggregate, new
from eventstore.domain.decision import Decision
from eventstore.domain.domain import Domain
from eventstore.domain.handler import DecisionHandler, Handler, JointHandler, text_of
from eventstore.domain.kept_commands import KeptCommand, refusal_of
from eventstore.domain.restore import apply_stored, replay
from eventstore.errors import EventStoreError
from eventstore.model import Event
from eventstore.query import Query
from eventstore.records.slots import scope_of

SAMPLES_OF_KIND: Final = 5
_KINDS_MAX: Final = 200
_OTHER: Final = "other differences"

Fields = Any
"""The fields of an event as JSON; bytes if it is no JSON."""


class Verdict(NamedTuple):
    """What became of a command. `events`: (aggregate id, type, fields)."""

    outcome: str
    reason: str | None = None
    events: tuple[tuple[str, str, Fields], ...] = ()

    def __str__(self) -> str:
        if self.outcome == "committed":
            return ", ".join(type for _, type, _ in self.events)
        return self.outcome if self.reason is None else f"{self.outcome} ({self.reason})"


class Otherwise(NamedTuple):
    """A command that is decided otherwise. `what`: in words, without values of fields."""

    command: KeptCommand
    what: str
    before: Verdict
    after: Verdict
    error: str | None = None

    def as_json(self, *, values: bool) -> dict[str, Any]:
        """Returns what a command prints as JSON. `values`: also the fields of events."""
        kept = self.command
        named = {"type": kept.type, "aggregate_id": kept.aggregate_id, "command_id": kept.command_id, "what": self.what}
        sides = {name: _side(each, values=values) for name, each in (("before", self.before), ("after", self.after))}
        return {**named, **sides, "error": self.error}


def _side(decided: Verdict, *, values: bool) -> dict[str, Any]:
    events = [
        {"aggregate_id": aggregate_id, "type": type, **({"fields": _printable(fields)} if values else {})}
        for aggregate_id, type, fields in decided.events
    ]
    return {"outcome": decided.outcome, "reason": decided.reason, "events": events}


def _printable(fields: Fields) -> Any:
    return ascii(fields) if isinstance(fields, bytes) else fields


@dataclass
class WhatIf:
    """`same`: commands that are decided as before. `counts`: the others, by (command type, what). `samples`: up to five of
    each. `skipped`: commands that were not replayed, by why.
    """

    same: int = 0
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    samples: list[Otherwise] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def different(self) -> int:
        return self.counts.total()

    def note(self, found: Otherwise) -> None:
        kind = found.command.type, found.what
        if kind not in self.counts and len(self.counts) >= _KINDS_MAX:
            kind = found.command.type, _OTHER
        self.counts[kind] += 1
        if self.counts[kind] <= SAMPLES_OF_KIND:
            self.samples.append(found)


class PastStore(Protocol):
    """The part of a store that is needed here."""

    def read(self, aggregate_id: str) -> AsyncIterator[Event]: ...

    def read_all(self, *, query: Query | None = None) -> AsyncIterator[Event]: ...


async def what_if(
    store: PastStore,
    domain: Domain,
    commands: Iterable[KeptCommand],
    *,
    run_async: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> WhatIf:
    """Replays commands, which come in the order in which those of an aggregate were answered.

    `run_async`: async handlers as well, which may do more than decide. `on_progress` gets how many commands are done.

    Raises:
        EventStoreError: the store cannot be read.
    """
    by_aggregate = dict[str, list[KeptCommand]]()
    for each in commands:
        by_aggregate.setdefault(each.aggregate_id, []).append(each)
    run, done = _Replay(store, domain, run_async), 0
    for kept in by_aggregate.values():
        await run.replay(kept)
        done += len(kept)
        if on_progress is not None:
            on_progress(done)
        await anyio.lowlevel.checkpoint()
    return run.found


class _Past:
    """The events of an aggregate, and the aggregate as it was before one of them; times only go on."""

    def __init__(self, aggregate_id: str, events: Sequence[Event], kept: Sequence[KeptCommand]) -> None:
        self.events = events
        self._aggregate_id = aggregate_id
        self._places = {each.command_id: place for place, each in enumerate(kept)}
        self._restored: Aggregate | None = None

    def of_command(self, command_id: str) -> list[Event]:
        return [event for event in self.events if event.command_id == command_id]

    def before(self, command: KeptCommand, place: int) -> Sequence[Event]:
        """Returns the events that the command was decided on: of those that were there when it was answered, without its own
        and those of commands that were answered later.
        """
        for count, event in enumerate(self.events):
            if event.sequence > command.sequence or self._places.get(event.command_id, -1) >= place:
                return self.events[:count]
            if event.command_id == command.command_id:
                return self.events[:count]
        return self.events

    def restored(self, kind: type[Aggregate], events: Sequence[Event]) -> Aggregate:
        """Returns an aggregate of this class after these events, to be used once. Raises as `replay`."""
        aggregate = self._restored
        if aggregate is None or type(aggregate) is not kind or aggregate.version > len(events):
            aggregate = new(kind, self._aggregate_id)
        self._restored = None  # it must not be used after an error
        replay(aggregate, events[aggregate.version :])
        try:
            used = copy.deepcopy(aggregate)
        except Exception:  # its state holds what cannot be copied
            return aggregate
        self._restored = aggregate
        return used


class _Replay:
    def __init__(self, store: PastStore, domain: Domain, run_async: bool) -> None:
        self.found = WhatIf()
        self._store, self._domain, self._run_async = store, domain, run_async

    async def replay(self, kept: Sequence[KeptCommand]) -> None:
        """Replays the commands of one aggregate."""
        past = await self._past(kept[0].aggregate_id, kept)
        for place, command in enumerate(kept):
            if command.outcome != "committed" and past.of_command(command.command_id):
                self.found.skipped["it was a repetition"] += 1
                continue
            await self._replay(command, past, place)

    async def _past(self, aggregate_id: str, kept: Sequence[KeptCommand]) -> _Past:
        return _Past(aggregate_id, [event async for event in self._store.read(aggregate_id)], kept)

    async def _replay(self, kept: KeptCommand, past: _Past, place: int) -> None:
        pasts = [past]
        try:
            payload = json.dumps(kept.payload, ensure_ascii=False, separators=(",", ":")).encode()
            handler, command = self._domain.decode(kept.type, payload, kept.aggregate_id)
        except EventStoreError as error:
            self._compare(kept, pasts, Verdict(*refusal_of(error)), text_of(error))
            return
        if handler.is_async and not self._run_async:
            self.found.skipped["its handler is async (--run-async)"] += 1
            return
        if handler.is_joint:
            others = cast(JointHandler, handler).aggregate_ids(command)[1:]
            pasts += [await self._past(each, [kept]) for each in others]
        try:
            aggregates: list[Aggregate]
            if isinstance(handler, DecisionHandler):
                aggregates = [await self._decision(handler, command, kept, past)]
            else:
                aggregates = [
                    each.restored(kind, each.before(kept, place if each is past else 0))
                    for kind, each in zip(handler.aggregates, pasts, strict=True)
                ]
        except EventStoreError as error:
            self._compare(kept, pasts, Verdict(*refusal_of(error)), text_of(error))
            return
        self._compare(kept, pasts, *await _decided(handler, command, aggregates))

    async def _decision(self, handler: DecisionHandler, command: object, kept: KeptCommand, past: _Past) -> Decision:
        """Returns what a command is decided on that a query finds. Raises as `query_of` and `replay`."""
        own, scope = past.of_command(kept.command_id), scope_of(kept.aggregate_id)
        last, found = own[0].sequence - 1 if own else kept.sequence, list[Event]()
        async for event in self._store.read_all(query=handler.query_of(command)):
            if scope_of(event.aggregate_id) == scope:
                if event.sequence > last:
                    break
                found.append(event)
        decision = new(handler.decision, kept.aggregate_id)
        apply_stored(decision, found, is_of_aggregate=False)
        return decision

    def _compare(self, kept: KeptCommand, pasts: Sequence[_Past], after: Verdict, error: str | None) -> None:
        events = [event for past in pasts for event in past.of_command(kept.command_id)]
        if kept.outcome == "committed" and not events:
            self.found.skipped["its events are not in the store"] += 1
            return
        stored = tuple((event.aggregate_id, event.type, self._fields(event)) for event in events)
        before = Verdict(kept.outcome, kept.reason, stored if kept.outcome == "committed" else ())
        what = _difference(before, after, types_only=bool(kept.left_out))
        if what is None:
            self.found.same += 1
        else:
            self.found.note(Otherwise(kept, what, before, after, error))

    def _fields(self, event: Event) -> Fields:
        """Returns the fields of a stored event as the code of now would store them."""
        kind = self._domain.event_types.get(event.type)
        if kind is not None:
            try:
                return _parsed(kind.encode(kind.decode(event)).data)
            except EventStoreError:
                pass
        return _parsed(event.data)


async def _decided(handler: Handler, command: object, aggregates: Sequence[Aggregate]) -> tuple[Verdict, str | None]:
    if handler.is_joint:
        jointly = await cast(JointHandler, handler).run_jointly_async(command, aggregates)
        error, parts = jointly.error, jointly.parts
    else:
        handled = await handler.run_async(command, aggregates[0])
        error, parts = handled.error, (handled,)
    if error is not None:
        return Verdict(*refusal_of(error)), text_of(error)
    events = list[tuple[str, str, Fields]]()
    for aggregate, part in zip(aggregates, parts, strict=True):
        values = flat.decode_trusted(part.events, 4 * part.event_count)
        for place in range(0, len(values), 4):
            events.append((aggregate.id, cast(str, values[place + 1]), _parsed(cast(bytes, values[place + 2]))))
    return (Verdict("committed", None, tuple(events)) if events else Verdict("unchanged")), None


def _parsed(data: bytes) -> Fields:
    try:
        return json.loads(data)
    except ValueError:
        return data


def _difference(before: Verdict, after: Verdict, *, types_only: bool) -> str | None:
    """Returns what differs, without values; None: nothing. `types_only`: fields of events are not compared."""
    if before.outcome != after.outcome or before.reason != after.reason:
        return f"{before} → {after}"
    if [each[:2] for each in before.events] != [each[:2] for each in after.events]:
        return f"{before} → {after}"
    if types_only:
        return None
    changed = dict[str, None]()
    for (_, type, one), (_, _, other) in zip(before.events, after.events, strict=True):
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            names = dict.fromkeys((*one, *other))
            changed.update(dict.fromkeys(f"{type}.{name}" for name in names if one.get(name) != other.get(name)))
        else:
            changed[type] = None
    return f"other values: {', '.join(changed)}" if changed else None
