"""Registers a process with a domain: the command and the event of its steps, and the reactions that tell it and send for it.

All parts are what a domain has anyway. A reaction for each event class sends the *step command* to the process
that the event names; the handler of that command runs the method and stores the step; a reaction to the steps sends what they
have to send. So a step is taken once, by its command id, and sent once each time, by the ids of reactions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, field, make_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from eventstore.command_metadata import SCHEMA, merged_metadata
from eventstore.commands import RawCommand
from eventstore.domain.encoding.codec import class_path
from eventstore.domain.encoding.command_type import command, command_type
from eventstore.domain.encoding.event_type import EventType, event, event_type
from eventstore.domain.processes.process import (
    KEPT_MAX,
    EarlyEvent,
    On,
    Process,
    RefusedCommand,
    StepCommand,
    TakenStep,
    known,
    methods_of,
    steps_of,
)
from eventstore.domain.reactions.reaction import CommandSender, Start, reference
from eventstore.errors import DomainRefused, InvalidArgument, Rejected, UnknownEvent
from eventstore.fields import shown
from eventstore.model import DATA_IS_JSON, METADATA_IS_JSON, Event
from eventstore.records.timer_record import due

if TYPE_CHECKING:
    from eventstore.domain.domain import Domain

OTHER_STATE: Final = "other_state"
STUCK: Final = "stuck"
TOLD: Final = "told"


class ProcessType:
    """A registered class: its name, its methods, and the classes of its step command and its steps."""

    def __init__(self, cls: type[Process], name: str, domain: Domain) -> None:
        self.cls, self.name, self.domain = cls, name, domain
        self.methods = methods_of(cls, _stored_name)
        place = {"__module__": __name__}
        self.command_class = make_dataclass(
            f"{name}Step",
            [
                ("process", str),
                ("kind", str),
                ("name", str),
                ("value", str, field(default="")),
                ("source", str, field(default="")),
                ("schema", int, field(default=1)),
            ],
            frozen=True,
            namespace=dict(place),
        )
        self.step_class = make_dataclass(
            f"{name}Stepped",
            [
                ("kind", str),
                ("name", str),
                ("value", str),
                ("source", str),
                ("sends", tuple[StepCommand, ...]),
                ("code", int),
                ("state", str),
                ("ended", bool),
                ("number", int, field(default=0)),
                ("schema", int, field(default=1)),
            ],
            frozen=True,
            namespace=dict(place),
        )
        command(f"{name}Step")(self.command_class)
        event(f"{name}Stepped")(self.step_class)
        self.events: dict[str, tuple[EventType[Any], On]] = {
            name: (event_type(cast(type, takes.what)), takes)
            for (of, name), (takes, _) in self.methods.items()
            if of == "event"
        }
        self.refusals = frozenset(name for of, name in self.methods if of == "refused")

    def command(self, kind: str, process: str, name: str, value: str = "") -> object:
        """Returns the command by which a process is told of a deadline, or asked something."""
        return self.command_class(process, kind, name, value)

    def told_of(self, event: object, cause: str, source: str = "") -> object:
        """Returns the command by which the process that an event names is told of it. `cause`: the event's aggregate.

        Raises:
            InvalidArgument: the event names no process.
        """
        kind, takes = self.events[event_type(type(event)).name]
        named = cause if takes.by is None else getattr(event, takes.by)
        value = kind.codec.encode(event).decode()
        return self.command_class(self.id_of(named, takes), "event", kind.name, value, source, kind.version)

    def told_of_refusal(self, process: str, command_type: str, refusal: RefusedCommand) -> object:
        """Returns the command by which a process is told that a command of it was refused."""
        return self.command_class(process, "refused", command_type, json.dumps(asdict(refusal)))

    def id_of(self, correlation: object, takes: On) -> str:
        """Returns the id of the process that a value names. Raises InvalidArgument."""
        if not isinstance(correlation, str) or not correlation:
            raise InvalidArgument(
                f"event {takes.name} names process {self.name} by {takes.by!r}, which is {shown(correlation)}, not text",
                field=takes.by or "aggregate_id",
                value=shown(correlation),
            )
        return f"{self.name}-{correlation}"

    def taken(self, step: Any) -> TakenStep:
        """Returns what a step command, or a step, takes. Raises PayloadInvalid, UnknownEvent."""
        value: object = None
        if step.kind == "event":
            found = self.events.get(step.name)
            if found is None:
                what = f"process {class_path(self.cls)} has no method for {step.name}, which it has taken before"
                raise UnknownEvent(f"{what}; keep a method as long as there are processes that took it", name=step.name)
            value = found[0].decode(_stored(step))
        elif step.kind == "refused":
            value = RefusedCommand(**json.loads(step.value))
        elif step.kind == "kept":
            value = EarlyEvent(step.name, step.value, step.source, step.schema)
        return TakenStep(step.kind, step.name, value, step.source)


def _stored(step: Any) -> Event:
    """Returns the event of a step as it was stored, as far as it is needed to decode it."""
    metadata = None if step.schema == 1 else json.dumps({SCHEMA: step.schema}).encode()
    format_ = DATA_IS_JSON if metadata is None else DATA_IS_JSON | METADATA_IS_JSON
    return tuple.__new__(Event, ("", 1, step.name, step.value.encode(), metadata, "", 0, 1, format_))


def _stored_name(takes: On) -> str:
    if takes.kind == "deadline":
        return str(takes.what)
    of = cast(type, takes.what)
    return command_type(of).name if takes.kind == "refused" else event_type(of).name


def process_type(cls: type[Process]) -> ProcessType:
    """Returns a registered class. Raises DomainRefused."""
    return cast(ProcessType, steps_of(cls))


def register_process(domain: Domain, cls: type[Process], name: str | None, start: Start) -> None:
    """Registers the parts of a process. Raises DomainRefused."""
    if not (isinstance(cls, type) and issubclass(cls, Process) and cls is not Process):
        raise DomainRefused(f"process takes a subclass of Process, got {shown(cls)}", name=shown(cls))
    if cls in known:
        raise DomainRefused(f"process {cls.__name__} is registered already", name=cls.__name__)
    _check_stuck_after(cls)
    kind = ProcessType(cls, cls.__name__ if name is None else name, domain)
    known[cls] = kind
    of_bases = {process_type(base).step_class for base in cls.__mro__[1:] if base in known}
    own = {event: method for event, method in cls.event_methods.items() if event not in of_bases}
    cls.event_methods = {**own, kind.step_class: _again(kind)}
    domain.handles(kind.command_class)(_handler(kind))
    for found, _ in kind.events.values():
        domain.reacts(found.cls, name=f"{kind.name}_{found.cls.__name__}", start=start)(_tell(kind))
    domain.reacts(kind.step_class, name=f"{kind.name}_sends")(_sends(kind))
    domain.reacts(kind.step_class, name=f"{kind.name}_stuck")(_watch(kind))


def _check_stuck_after(cls: type[Process]) -> None:
    try:
        if cls.stuck_after is not None:
            due(cls.stuck_after, None)
    except InvalidArgument as error:
        raise DomainRefused(f"stuck_after of process {class_path(cls)}: {error.message}", name=class_path(cls)) from None


def _again(kind: ProcessType) -> Callable[[Process, Any], None]:
    def again(self: Process, step: Any) -> None:
        self.take(kind.taken(step), step.code)

    return again


def _handler(kind: ProcessType) -> Callable[[Any, Process], None]:
    """Returns the handler of the step command: it takes what there is to take, and stores the step."""

    def take(step: Any, process: Process) -> None:
        if step.kind == "check":
            _check(step, process)
        elif step.kind in ("compensate", "end", "quiet"):
            if process.steps and not process.ended and not (step.kind == "quiet" and step.value != str(process.steps)):
                _step(kind, step, process)
        elif _is_for(kind, step, process):
            if step.kind == "refused" or _is_in_state(kind, step.kind, step.name, process):
                _step(kind, step, process)
            elif step.kind == "event":
                if len(process.kept) >= KEPT_MAX:
                    raise Rejected(f"process {process.id!r} keeps {KEPT_MAX} events for other states", reason=OTHER_STATE)
                _step(kind, replace(step, kind="kept"), process)
        while (ready := _ready(kind, process)) is not None:
            _step(kind, kind.command_class(process.id, "event", ready.name, ready.value, ready.source, ready.schema), process)

    take.__annotations__ = {"step": kind.command_class, "process": kind.cls, "return": None}
    take.__module__, take.__qualname__ = kind.cls.__module__, f"{kind.cls.__qualname__}.take"
    return take


def _store(process: Process, step: object) -> None:
    kind: EventType[Any] = event_type(type(step))
    inherited = process._aggregate_metadata
    packed, _ = kind.pack(step) if inherited is None else kind.pack_with(step, merged_metadata(inherited, None))
    process._aggregate_events.append(packed)
    process._aggregate_version += 1


def _step(kind: ProcessType, step: Any, process: Process) -> None:
    """Takes what there is to take, and stores the step."""
    sends = process.take(kind.taken(step), process.code)
    what = step.kind, step.name, step.value, step.source
    _store(
        process, kind.step_class(*what, tuple(sends), process.code, process.state, process.ended, process.steps, step.schema)
    )


def _is_for(kind: ProcessType, step: Any, process: Process) -> bool:
    """Whether a process takes this at all: it has begun, or this begins it, and it has not ended. A deadline that was cancelled
    or set again while its command was on its way is not over.
    """
    found = kind.methods.get((step.kind, step.name))
    if step.kind == "deadline" and step.value != str(process.deadlines.get(step.name)):
        return False
    return found is not None and not process.ended and (process.steps > 0 or found[0].starts)


def _is_in_state(kind: ProcessType, of: str, name: str, process: Process) -> bool:
    return kind.methods[of, name][0].is_in(process.state)


def _ready(kind: ProcessType, process: Process) -> EarlyEvent | None:
    """Returns an event that was kept for the state in which the process is now."""
    if process.ended:
        return None
    return next((each for each in process.kept if _is_in_state(kind, "event", each.name, process)), None)


def _check(step: Any, process: Process) -> None:
    """Raises Rejected if the process has not moved on since: what a reaction cannot read, it asks so."""
    if step.name == STUCK and process.stuck and not process.ended:
        what = f"process {process.id!r} has made no step for {process.stuck_after}, in state {process.state!r}"
        raise Rejected(f"{what}; retry this when it has, or end it by `eventstore processes end`", reason=STUCK)
    if step.name == TOLD and int(step.value) in process.refused_steps:
        raise Rejected("the process was told of a refusal of this step", reason=TOLD)


def _tell(kind: ProcessType) -> Callable[[Any, CommandSender], Any]:
    """Returns the reaction that tells the process of an event."""

    async def tell(event: Any, send: CommandSender) -> None:
        await send(kind.told_of(event, send.cause.aggregate_id, reference(send.cause)))

    return tell


def _watch(kind: ProcessType) -> Callable[[Any, CommandSender], Any]:
    """Returns the reaction that is parked while a process is stuck. It is one of its own: what is parked holds up the later
    events of its aggregate, and a process that goes on has to send.
    """

    async def watch(step: Any, send: CommandSender) -> None:
        if step.kind == "quiet":
            await send(kind.command_class(send.cause.aggregate_id, "check", STUCK))

    return watch


def _sends(kind: ProcessType) -> Callable[[Any, CommandSender], Any]:
    """Returns the reaction that sends what a step has to send."""

    async def sends(step: Any, send: CommandSender) -> None:
        process = send.cause.aggregate_id
        if any(each.type in kind.refusals for each in step.sends):
            try:  # delivered again, a command that was refused might be accepted now, and the process was told otherwise
                await send(kind.command_class(process, "check", TOLD, str(step.number)))
            except Rejected:
                return
        else:  # the class may get such a method later, and a step that was parked is then retried
            send.leave_out()
        for place, each in enumerate(step.sends):
            try:
                await send(RawCommand(each.type, each.aggregate_id, each.payload.encode()))
            except Rejected as error:
                if each.type not in kind.refusals:
                    raise
                refusal = RefusedCommand(error.message, str(error.fields.get("reason", "")), step.number, place)
                await send(kind.told_of_refusal(process, each.type, refusal))
                return

    return sends
