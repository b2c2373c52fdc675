"""Tests of a domain without a server:

    from eventstore.domain.testing import given

    given(Opened("Ada"), Deposited(100)).when(Withdraw("acc-1", 30)).then(Withdrawn(30))
    given(Opened("Ada")).when(Withdraw("acc-1", 30)).then_rejected("not_covered")
    given(Offered("c1", 1), Enrolled("c1", "s1")).when(Enrol("enrolment-{courses}-7", "c1", "s2")).then_rejected("full")

Everything goes through the codecs: given events are encoded, stored and restored, a command is encoded and decoded, and its
events are compared as they would be read back.

PYTEST_DONT_REWRITE: what fails is said in words. pytest would add its own view of the values, as to all asserts of a package
that has a plugin.
"""

from __future__ import annotations

import difflib
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

from eventstore import flat
from eventstore.command_metadata import SCHEMA
from eventstore.domain.aggregate import Aggregate, applies_by_name, check_initial_state, new, shared_values
from eventstore.domain.alike import differing_field
from eventstore.domain.decision import Decision
from eventstore.domain.domain import Domain, domains_handling
from eventstore.domain.encoding.codec import class_path
from eventstore.domain.encoding.command_type import command_type, encode_command
from eventstore.domain.encoding.event_type import EventType, event_type
from eventstore.domain.handler import DecisionHandler, Handled, HandledJointly, Handler, JointHandler
from eventstore.domain.processes.process import Process, RefusedCommand, StepCommand
from eventstore.domain.processes.registration import process_type
from eventstore.domain.projections.projection import Projection, Row, fold, keys_of, projection_failure
from eventstore.domain.reactions.reaction import Reaction
from eventstore.domain.restore import apply_stored, restore
from eventstore.domain.timers.timer_book import DueTimer, TimerBook
from eventstore.errors import DomainRefused, EventStoreError, Rejected
from eventstore.model import DATA_IS_JSON, METADATA_IS_JSON, Committed, Event, NewEvent
from eventstore.query import Query
from eventstore.records.timer_record import OF_OWNERS, Delay, json_bytes, microseconds_of, timer_record

E = TypeVar("E")
R = TypeVar("R")
AGGREGATE_ID = "aggregate-1"
COMMAND_ID = "command-1"
TIME = 1_750_000_000_000_000


def given(*events: object, domain: Domain | None = None) -> Scenario:
    """Starts a scenario with the aggregate's events so far; for a command that is decided on a query, with all events of its
    scope. Name the `domain` if several handle the same command.
    """
    return Scenario(events, domain)


def given_each(events: Mapping[str, Iterable[object]], domain: Domain | None = None) -> JointScenario:
    """Starts a scenario for commands about several aggregates, with the events of each so far, by id:

        given_each({"acc-1": [Opened("Ada"), Deposited(100)], "acc-2": [Opened("Bob")]}).when(
            Transfer("acc-1", "acc-2", 30)
        ).then_each({"acc-1": [Withdrawn(30)], "acc-2": [Deposited(30)]})

    An aggregate that is not there has none.
    """
    return JointScenario(events, domain)


@dataclass(frozen=True)
class OldEvent:
    """An event as a store has it: its name there, the version it was stored in, its fields as JSON. Made by `old`."""

    name: str
    version: int
    data: bytes


def old(name: str, fields: dict[str, object] | str | bytes, *, version: int = 1) -> OldEvent:
    """Returns an event as older code stored it, for `given`, `stored` and `decoded`.

    `name`: the one in the store; `fields`: a dict, or JSON as `eventstore read --raw` prints it.
    """
    new = NewEvent(name, fields.encode() if isinstance(fields, str) else fields)
    return OldEvent(name, version, new.data)


def decoded(cls: type[E], event: OldEvent) -> E:
    """Returns what the code of today makes of an old event: after all upcasts, with defaults for fields added since.

    Raises:
        UnknownEvent: there is no upcast from its version, or the version is newer than the class.
        PayloadInvalid: an upcast fails, or what it returns does not fit the class.
    """
    kind = event_type(cls)
    assert kind.name == event.name, f"{class_path(cls)} is stored as {kind.name!r}, not as {event.name!r}"
    return kind.decode(stored(event)[0])


def stored(*events: object, aggregate_id: str = AGGREGATE_ID, version: int = 1, sequence: int | None = None) -> list[Event]:
    """Returns the events as a store would: of one aggregate, with versions from `version` on."""
    first = version if sequence is None else sequence
    encoded = [_encoded(event) for event in events]
    return [
        _event(aggregate_id, version + place, first + place, new[0], new.type, new.data, new[3])
        for place, new in enumerate(encoded)
    ]


def _encoded(event: object) -> NewEvent:
    if not isinstance(event, OldEvent):
        return event_type(type(event)).encode(event)
    metadata = None if event.version == 1 else json.dumps({SCHEMA: event.version}).encode()
    format_ = DATA_IS_JSON if metadata is None else DATA_IS_JSON | METADATA_IS_JSON
    return tuple.__new__(NewEvent, (format_, event.name, event.data, metadata))


class _Scenario:
    """What scenarios about one aggregate and about several have in common."""

    def __init__(self, domain: Domain | None) -> None:
        self._domain = domain
        self._handled: Handled | HandledJointly | None = None
        self._events: list[object] = []
        self._kinds: dict[type, EventType[Any]] = {}

    def _decoded(self, command: object) -> tuple[Handler, object, str] | EventStoreError:
        """Returns the handler, the command as it gets it, and the aggregate's id; or the error that a sender would get."""
        assert self._handled is None or self._handled.error is None, (
            f"the command before failed: {_outcome_text(self._handled)}"
        )
        try:
            raw = encode_command(command)
            return *self._domain_of(command).decode(raw.type, raw.payload, raw.aggregate_id), raw.aggregate_id
        except DomainRefused:  # the command class itself is wrong
            raise
        except EventStoreError as error:
            self._handled, self._events = Handled(b"", 0, error), []
            return error

    def then_rejected(self, reason: str | type[Rejected] | None = None) -> Self:
        """Asserts that the domain rejected the command, with this reason, subclass of Rejected, or part of the message."""
        error = self.then_failed(Rejected)
        if isinstance(reason, type):
            assert isinstance(error, reason), f"expected {reason.__name__}, but the error was {error!r}"
        elif reason is not None:
            assert error.fields["reason"] == reason or reason in error.message, (
                f"expected a rejection with reason {reason!r}, but the reason was {error.fields['reason']!r}: {error.message}"
            )
        self._handled = None
        return self

    def then_failed(self, kind: type[EventStoreError] = EventStoreError) -> EventStoreError:
        """Asserts that the command failed with an error of this class; returns the error."""
        handled = self._run_before()
        assert handled.error is not None, f"expected {kind.__name__}, but the command was accepted:\n{_shown(self._events)}"
        assert isinstance(handled.error, kind), f"expected {kind.__name__}, but {_outcome_text(handled)}"
        return handled.error

    def _run_before(self) -> Handled | HandledJointly:
        assert self._handled is not None, "call .when(command) first"
        return self._handled

    def _note_kinds(self, cls: type[Aggregate]) -> None:
        """Notes the events that aggregates of a class apply."""
        self._kinds |= {kind.cls: kind for kind, _ in applies_by_name(cls).values()}

    def _as_read(self, expected: object) -> object:
        """Returns an expected event in the form in which the events of the command are: as it would be read back."""
        kind = self._kinds.get(type(expected))
        return expected if kind is None else kind.codec.written(expected)[1]

    def _domain_of(self, command: object) -> Domain:
        if self._domain is None:
            found = domains_handling(type(command))
            assert len(found) == 1, (
                f"{len(found)} domains handle {class_path(type(command))}; name one with given(…, domain=app)"
                if found
                else f"no domain handles {class_path(type(command))}; import the module of its handler"
            )
            self._domain = found[0]
        return self._domain


class Scenario(_Scenario):
    """Events, a command, and its result. After `then…` the next `when` continues from there."""

    def __init__(self, events: Iterable[object], domain: Domain | None) -> None:
        super().__init__(domain)
        self._given = list(events)
        self._history: list[Event] | None = None
        self._aggregate: Aggregate | None = None
        self._now_us = TIME
        self._timers = TimerBook()
        self._timed = 0
        self.refused: list[EventStoreError] = []
        """Why commands of timers failed in the last `after`."""
        self.sent_later: list[object] = []
        """The commands of timers to other aggregates that were due in the last `after`."""

    def when(self, command: object) -> Self:
        """Runs the command's handler, sync or async."""
        found = self._decoded(command)
        if not isinstance(found, EventStoreError):
            self._handle(*found)
        return self

    def _handle(self, handler: Handler, decoded: object, aggregate_id: str) -> None:
        assert not handler.is_joint, (
            f"{class_path(type(decoded))} is about several aggregates; give the events of each with given_each({{id: […], …}})"
        )
        if self._history is None:
            self._history = stored(*self._given, aggregate_id=aggregate_id)
        if isinstance(handler, DecisionHandler):
            self._decide(handler, decoded, aggregate_id, self._history)
            return
        assert all(event.aggregate_id == aggregate_id for event in self._history), (
            "a scenario is about one aggregate; start another with given()"
        )
        shared = shared_values(handler.aggregate)
        if self._aggregate is None:
            check_initial_state(handler.aggregate)
            self._aggregate = restore(handler.aggregate, aggregate_id, self._history)
        self._note_kinds(handler.aggregate)
        self._handled = handled = _run(handler, decoded, self._aggregate)
        self._events, self._aggregate = _stored_after(handled, self._aggregate, self._history)
        _check_shared(handler.aggregate, shared)

    def after(self, duration: Delay) -> Self:
        """Lets time pass, such as "31m": runs the handlers of what was sent later and is due by then, in the order of the due
        times. `then…` asserts what all of them applied; `refused` and `sent_later` have the rest.
        """
        self._handled, self.refused, self.sent_later = Handled(b"", 0), [], []
        applied, end_us = list[object](), self._now_us + microseconds_of(duration)
        while (timer := self._next_timer(end_us)) is not None:
            self._now_us = max(self._now_us, timer.due_us)
            self._handled = Handled(b"", 0)
            fields = timer_record((self._history or [])[timer.command - 1]).fields
            assert self._domain is not None, "what set the timer was handled by a domain"
            try:
                handler, command = self._domain.decode(fields["type"], json_bytes(fields["payload"]), fields["aggregate_id"])
            except EventStoreError as error:
                self.refused.append(error)
                continue
            if fields["aggregate_id"] != (self._history or [])[0].aggregate_id:
                self.sent_later.append(command)
                continue
            self._handle(handler, command, fields["aggregate_id"])
            if self._handled.error is None:
                applied += self._events
            else:
                self.refused.append(self._handled.error)
        self._now_us = end_us
        self._handled, self._events = Handled(b"", 0), applied
        return self

    def _next_timer(self, end_us: int) -> DueTimer | None:
        """Returns what is due next, after it was told what was stored since."""
        for event in (self._history or [])[self._timed :]:
            self._timed += 1
            if event.type in OF_OWNERS:
                self._timers.take(timer_record(tuple.__new__(Event, (*event[:6], self._now_us, *event[7:]))))
        return next(iter(self._timers.due(end_us, 1)), None)

    def _decide(self, handler: DecisionHandler, command: object, aggregate_id: str, history: list[Event]) -> None:
        cls = handler.decision
        shared = shared_values(cls)
        check_initial_state(cls)
        self._note_kinds(cls)
        try:
            query = handler.query_of(command)
        except EventStoreError as error:
            self._handled, self._events = Handled(b"", 0, error), []
            return
        self._aggregate = live = _decision(cls, aggregate_id, query, history)
        self._handled = handled = _run(handler, command, live)
        fresh = _events_of(handled, aggregate_id, len(history) + 1)
        history += fresh
        restored = _decision(cls, aggregate_id, query, history)
        if handled.error is None and all(map(query.matches, fresh)):
            _check_alike(live, restored)
        kinds = applies_by_name(cls)
        self._events, self._aggregate = _decoded_by(kinds, fresh), restored
        _check_shared(cls, shared)

    def then(self, *expected: object) -> Self:
        """Asserts that the command applied exactly these events, in this order.

        Raises:
            PayloadInvalid: one of them could not be stored.
        """
        handled = self._run_before()
        assert handled.error is None, f"expected {_shown(expected)}, but {_outcome_text(handled)}"
        read = [self._as_read(event) for event in expected]
        assert self._events == read, "the events differ:\n" + _difference(read, self._events)
        return self

    def then_nothing(self) -> Self:
        """Asserts that the command was accepted and applied no event."""
        return self.then()

    @property
    def aggregate(self) -> Aggregate | None:
        """The aggregate, or the decision, restored from all events so far; None before the first command."""
        return self._aggregate


def given_process(cls: type[Process], *events: object, of: str = AGGREGATE_ID) -> ProcessScenario:
    """Starts a scenario about a process, which has taken these events:

        given_process(Fulfilment, Placed("o-1")).when(Reserved("o-1")).then_sends().after("31m").then_sends(Cancel("o-1"))

    `of`: the aggregate of the events, for those that name their process by it.
    """
    scenario = ProcessScenario(cls)
    for event in events:
        scenario.when(event, of=of)
    return scenario


class ProcessScenario:
    """A process, what it takes, and what it sends. Events come from wherever; they go through the codecs, and the process is
    restored after each step.
    """

    def __init__(self, cls: type[Process]) -> None:
        self._kind = process_type(cls)
        self._scenario = Scenario((), self._kind.domain)
        self._steps: list[Any] = []
        self._fresh: list[Any] = []
        self._taken = 0
        self._id: str | None = None

    @property
    def process(self) -> Any:
        """The process, restored from all its steps; None before the first event."""
        return self._scenario.aggregate

    def when(self, event: object, *, of: str = AGGREGATE_ID) -> Self:
        """Tells the process of an event of the aggregate `of`."""
        assert event_type(type(event)).name in self._kind.events, (
            f"{class_path(self._kind.cls)} has no method for {class_path(type(event))}; mark one with @d.on"
        )
        self._taken += 1
        return self._run(self._kind.told_of(event, of, f"{of}/{self._taken}"))

    def when_refused(self, command: object, reason: str = "rejected") -> Self:
        """Tells the process that this command, of the last step that sent it, was rejected for this reason."""
        raw = encode_command(command)
        wanted = StepCommand(raw.type, raw.aggregate_id, raw.payload.decode())
        for step in reversed(self._steps):
            for place, each in enumerate(step.sends):
                if each == wanted:
                    refusal = RefusedCommand(reason, reason, step.number, place)
                    return self._run(self._kind.told_of_refusal(self.process.id, raw.type, refusal))
        raise AssertionError(f"the process has not sent {command!r}")

    def after(self, duration: Delay) -> Self:
        """Lets time pass, such as "31m": what is due by then is taken."""
        self._scenario.after(duration)
        assert not self._scenario.refused, f"a deadline failed: {self._scenario.refused}"
        return self._told()

    def compensate(self) -> Self:
        """Has the process compensate, as an operator does."""
        return self._run(self._kind.command("compensate", self.process.id, ""))

    def _run(self, step: object) -> Self:
        self._scenario.when(step)
        handled = self._scenario._run_before()
        assert handled.error is None, _outcome_text(handled)
        return self._told()

    def _told(self) -> Self:
        self._fresh = list(self._scenario._events)
        self._steps += self._fresh
        return self

    def then_sends(self, *commands: object) -> Self:
        """Asserts that exactly these commands were sent, in this order, by what was taken last."""
        found = [(each.type, each.aggregate_id, json.loads(each.payload)) for step in self._fresh for each in step.sends]
        wanted = [(raw.type, raw.aggregate_id, json.loads(raw.payload)) for raw in map(encode_command, commands)]
        assert found == wanted, "the commands differ:\n" + _difference(wanted, found)
        return self

    def then_is(self, state: str) -> Self:
        """Asserts in which state the process is."""
        assert self.process.state == state, f"expected state {state!r}, but it is {self.process.state!r}"
        return self

    def then_ended(self) -> Self:
        """Asserts that the process has ended."""
        assert self.process.ended, f"the process has not ended; it is {self.process.state!r}"
        return self


class JointScenario(_Scenario):
    """Events of several aggregates, a command about some of them, and its result. After `then…` the next `when` continues from
    there. It may be about one of them alone.
    """

    def __init__(self, events: Mapping[str, Iterable[object]], domain: Domain | None) -> None:
        super().__init__(domain)
        self._histories = {name: stored(*given, aggregate_id=name) for name, given in events.items()}
        self._by_id: dict[str, list[object]] = {}
        self.aggregates: dict[str, Aggregate] = {}
        """Those that commands were about, by id, restored from all events so far."""

    def when(self, command: object) -> Self:
        """Runs the command's handler, sync or async."""
        self._by_id = {}
        found = self._decoded(command)
        if isinstance(found, EventStoreError):
            return self
        handler, decoded, aggregate_id = found
        assert not handler.is_decision, (
            f"{class_path(type(command))} is decided on a query; test it with given(…), and the events of all aggregates"
        )
        names = handler.aggregate_ids(decoded) if isinstance(handler, JointHandler) else (aggregate_id,)
        shared = [shared_values(cls) for cls in handler.aggregates]
        for name, cls in zip(names, handler.aggregates, strict=True):
            check_initial_state(cls)
            self.aggregates[name] = restore(cls, name, self._histories.setdefault(name, []))
            self._note_kinds(cls)
        handled = _run_each(handler, decoded, [self.aggregates[name] for name in names])
        self._handled, self._events = handled, []
        for name, part in zip(names, handled.parts, strict=True):
            found_events, self.aggregates[name] = _stored_after(part, self.aggregates[name], self._histories[name])
            self._events += found_events
            if found_events:
                self._by_id[name] = found_events
        for cls, before in zip(handler.aggregates, shared, strict=True):
            _check_shared(cls, before)
        return self

    def then_each(self, expected: Mapping[str, Iterable[object]]) -> Self:
        """Asserts that the command applied exactly these events, to these aggregates, in this order; to all others none.

        Raises:
            PayloadInvalid: one of them could not be stored.
        """
        handled = self._run_before()
        wanted = {name: list(events) for name, events in expected.items()}
        assert handled.error is None, (
            f"expected {_shown([event for events in wanted.values() for event in events])}, but {_outcome_text(handled)}"
        )
        for name in sorted(wanted.keys() | self._by_id.keys()):
            read = [self._as_read(event) for event in wanted.get(name, ())]
            got = self._by_id.get(name, [])
            assert got == read, f"the events of {name!r} differ:\n" + _difference(read, got)
        return self

    def then_nothing(self) -> Self:
        """Asserts that the command was accepted and applied no event."""
        return self.then_each({})


def _stored_after(handled: Handled, live: Aggregate, history: list[Event]) -> tuple[list[object], Aggregate]:
    """Adds the events of a command to a history, and returns them as they are read back, with the aggregate restored. Checks
    that this gives the same state as applying them did.
    """
    cls, aggregate_id = type(live), live.id
    fresh = _events_of(handled, aggregate_id, len(history) + 1)
    history += fresh
    kinds = applies_by_name(cls)
    restored = restore(cls, aggregate_id, history)
    if handled.error is None:
        _check_alike(live, restored)
    return _decoded_by(kinds, fresh), restored


def _decoded_by(kinds: Mapping[str, tuple[EventType[Any], Any]], events: Iterable[Event]) -> list[object]:
    """Returns the events as objects; what sets timers is left out."""
    return [kinds[event.type][0].decode(event) for event in events if event.type not in OF_OWNERS]


def _decision(cls: type[Decision], aggregate_id: str, query: Query, history: Iterable[Event]) -> Decision:
    """Returns the fold of the events that pass a query."""
    decision = new(cls, aggregate_id)
    apply_stored(decision, filter(query.matches, history), is_of_aggregate=False)
    return decision


def _check_alike(live: Aggregate, restored: Aggregate) -> None:
    what = "decision" if isinstance(live, Decision) else "aggregate"
    assert differing_field(vars(live), vars(restored)) is None, (
        f"restored from its events the {what} is {restored}, but after the command it was {live}; "
        "change state only in @applies methods"
    )


def _check_shared(cls: type[Aggregate], before: Mapping[str, str]) -> None:
    for name, value in shared_values(cls).items():
        assert before.get(name) == value, (
            f"{class_path(cls)}.{name}, which all aggregates share, is {value}, but was {before.get(name)} "
            f"before the command; set it in __init__, as in self.{name} = …"
        )


class Sent(NamedTuple):
    """A command that a reaction sent, as its handler gets it, and its command id."""

    command: object
    command_id: str


async def sent_by(reaction: Reaction, cause: Event) -> list[Sent]:
    """Returns the commands that a reaction sends for an event; `stored` creates one."""
    sent: list[Sent] = []

    async def send(command: object, command_id: str, *, metadata: Mapping[str, object]) -> Committed | None:
        raw = encode_command(command)
        sent.append(Sent(command_type(type(command)).decode(raw.payload, raw.aggregate_id), command_id))
        return Committed(raw.aggregate_id, 1, 1)

    await reaction.run(cause, send)
    return sent


def rows_of(projection: Projection[Any], events: Iterable[Event]) -> dict[str, Row]:
    """Returns the rows of a projection after these events, by key.

    Raises:
        ProjectionFailed: it raised, or a state would be read back as another.
        DomainRefused: `initial` gives all keys the same list.
    """
    projection.check_states()
    states: dict[str, Any] = {}
    for event in events:
        if projection.wanted_types is None or event.type in projection.wanted_types:
            fold(projection, states, [event])
            (key,) = keys_of(projection, [event])
            if states[key] is not None:
                try:
                    states[key] = projection.decode_state(projection.encode_state(states[key]))
                except BaseException as error:
                    raise projection_failure(projection, event, error) from error
    rows = {key: projection.checked_row(key, state) for key, state in states.items() if state is not None}
    return {key: dict(zip(projection.columns, values, strict=True)) for key, values in rows.items()}


def _run(handler: Handler, command: object, aggregate: Aggregate) -> Handled:
    return _in_thread(handler.run_async, command, aggregate) if handler.is_async else handler.run(command, aggregate)


def _run_each(handler: Handler, command: object, aggregates: Sequence[Aggregate]) -> HandledJointly:
    if not isinstance(handler, JointHandler):
        handled = _run(handler, command, aggregates[0])
        return HandledJointly((handled,), handled.error)
    if handler.is_async:
        return _in_thread(handler.run_jointly_async, command, aggregates)
    return handler.run_jointly(command, aggregates)


def _in_thread(run: Callable[..., Awaitable[R]], *arguments: object) -> R:
    """Runs an async handler in a thread, because the test may have an event loop."""
    import trio

    handled: list[R] = []
    thread = threading.Thread(target=lambda: handled.append(trio.run(run, *arguments)))
    thread.start()
    thread.join()
    return handled[0]


def _events_of(handled: Handled, aggregate_id: str, version: int) -> list[Event]:
    values = flat.Decoder(len(handled.events) or 1, 4 * handled.event_count).decode(handled.events) if handled.events else []
    return [
        _event(aggregate_id, version + place, version + place, *values[4 * place : 4 * place + 4])
        for place in range(handled.event_count)
    ]


def _event(aggregate_id: str, version: int, sequence: int, format: Any, type: Any, data: Any, metadata: Any) -> Event:
    values = (aggregate_id, version, type, data, metadata, COMMAND_ID, TIME + version, sequence, format)
    return tuple.__new__(Event, values)


def _outcome_text(handled: Handled | HandledJointly | None) -> str:
    error = handled.error if handled is not None else None
    return "the command was accepted" if error is None else f"the command failed with {type(error).__name__}: {error.message}"


def _shown(events: Iterable[object]) -> str:
    return "\n".join(f"  {event}" for event in events) or "  no event"


def _difference(expected: Iterable[object], found: Iterable[object]) -> str:
    lines = difflib.ndiff([f"{event}" for event in expected] or ["no event"], [f"{event}" for event in found] or ["no event"])
    return "\n".join(f"  {line}" for line in lines) + "\n(- expected, + actual)"
