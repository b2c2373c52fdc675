"""`Domain`: registers which function handles which command, and which reacts to which event.

It runs nothing itself. A server, a worker or a test decodes a command with `decode`, provides the aggregate, and calls the
handler's `run`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as fields_of
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_type_hints
from weakref import WeakSet

from eventstore.domain.aggregate import Aggregate, applies_by_name, check_initial_state
from eventstore.domain.decision import Decision
from eventstore.domain.encoding.codec import check_dataclass, class_path
from eventstore.domain.encoding.command_type import CommandType, command_type
from eventstore.domain.encoding.event_type import EventType, event_type
from eventstore.domain.event_methods import accepts_positional, add_event_type
from eventstore.domain.handler import DecisionHandler, Handler, HandlerFunction, JointHandler
from eventstore.domain.processes.process import Process
from eventstore.domain.processes.registration import register_process
from eventstore.domain.publication import Publication, PublishFunction, as_cloudevent, as_stored
from eventstore.domain.reactions.reaction import ATTEMPTS, OnFailure, Reaction, ReactionFunction, Start
from eventstore.errors import DomainRefused, UnknownCommand, UnknownEvent
from eventstore.fields import RESERVED, reserved_id_refused, shown
from eventstore.model import WRITES_MAX, Event
from eventstore.query import Query

HF = TypeVar("HF", bound=HandlerFunction)
RF = TypeVar("RF", bound=ReactionFunction)
PF = TypeVar("PF", bound=PublishFunction)
_domains: WeakSet[Domain] = WeakSet()


class Domain:
    """Handlers by command type, reactions by name, and publications by topic."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._reactions: dict[str, Reaction] = {}
        self._publications: dict[str, Publication] = {}
        self._event_types: dict[str, EventType[object]] = {}
        _domains.add(self)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Handlers by the name of the command type."""
        return MappingProxyType(self._handlers)

    @property
    def reactions(self) -> Mapping[str, Reaction]:
        """Reactions by name."""
        return MappingProxyType(self._reactions)

    @property
    def publications(self) -> Mapping[str, Publication]:
        """What a server publishes to topics of its broker, by topic."""
        return MappingProxyType(self._publications)

    @property
    def event_types(self) -> Mapping[str, EventType[object]]:
        """The types of events of its aggregates, reactions and publications, by name."""
        self._event_types = self._find_event_types()
        return MappingProxyType(self._event_types)

    def handles(
        self,
        command: type,
        *,
        id: str | None = None,  # the domain's word
        aggregates: Sequence[str] | None = None,
    ) -> Callable[[HF], HF]:
        """Registers a function (command, aggregate), sync or async, for a class of commands.

        The annotation of its second parameter is the class of the aggregate. `id` names the field of the command that holds
        the aggregate's id (default: the first field).

        `aggregates` names the fields with the ids of several aggregates; the function takes these after the command, in this
        order. What it applies to them is one commit: all is stored or nothing. If it applies events, then also to the first.

        Raises:
            DomainRefused: the command already has a handler, the annotations do not match, or `aggregates` does not name 2 to
                1,000 fields of the command.
        """
        fields = _fields_of(command, id, aggregates)
        kind: CommandType[Any] = command_type(command, fields[0] if aggregates is not None else id)

        def register(function: HF) -> HF:
            classes = _folds_of(function, command, len(fields), Aggregate)
            handler = Handler(kind, classes[0], function) if len(fields) == 1 else JointHandler(kind, classes, fields, function)
            self._add(handler)
            return function

        return register

    def decides(
        self,
        command: type,
        *,
        over: Callable[[Any], Query],
        id: str | None = None,  # the domain's word
    ) -> Callable[[HF], HF]:
        """Registers a function (command, decision), sync or async, for a class of commands that no single aggregate decides.

        `over` returns the query of a command: which events it is decided on, of all aggregates whose ids have the same text in
        braces as the command's aggregate, its scope; of that aggregate alone if its id has no braces. An item that names no
        types is about those that the decision applies. The annotation of the second parameter is the class of the `Decision`.
        `id` names the field of the command with the id of the aggregate that gets the events (default: the first field).

        The events are stored unless another event that passes the query has come up since; then the function runs again, on
        that one as well.

        Raises:
            DomainRefused: the command already has a handler, the annotations do not match, or `over` is no sync function of a
                command.
        """
        kind: CommandType[Any] = command_type(command, id)
        if not callable(over) or inspect.iscoroutinefunction(over) or not accepts_positional(over, 1):
            raise DomainRefused(
                f"@decides({class_path(command)}): over is {shown(over)}; it must be a sync function that takes the command "
                'and returns its query, as in over=lambda command: es.Query(tags=[f"course:{command.course}"])',
                name=class_path(command),
                field="over",
            )

        def register(function: HF) -> HF:
            (decision,) = _folds_of(function, command, 1, Decision)
            self._add(DecisionHandler(kind, cast("type[Decision]", decision), over, function))
            return function

        return register

    def _add(self, handler: Handler) -> None:
        kind = handler.command
        existing = self._handlers.setdefault(kind.name, handler)
        if existing is not handler:
            raise DomainRefused(
                f"command {kind.name!r} ({class_path(kind.cls)}) already has a handler, {existing.name} "
                f"({class_path(existing.command.cls)}); remove that one or {handler.name}",
                type=kind.name,
            )

    def reacts(
        self,
        event: type,
        *,
        name: str | None = None,
        start: Start = "beginning",
        on_failure: OnFailure = "park",
        attempts: int = ATTEMPTS,
    ) -> Callable[[RF], RF]:
        """Registers an async function (event, send) for a class of events. `name` (default: that of the function) is part of
        the ids of the commands it sends: keep it when you rename the function.

        `start`: where a new reaction begins: "beginning", "end", or the sequence of its first event. An event whose command is
        refused, or that fails `attempts` times (1 to 1,000), is parked with `on_failure="park"`: later events of its aggregate
        wait for it, all others continue. With "stop" the reaction waits there, and is tried again every 5 seconds.

        Raises:
            DomainRefused: another reaction has this name, or the function is not async or takes other parameters.
        """
        kind: EventType[Any] = event_type(event)

        def register(function: RF) -> RF:
            named = name or function.__name__
            reaction = Reaction(named, kind, function, start=start, on_failure=on_failure, attempts=attempts)
            existing = self._reactions.setdefault(reaction.name, reaction)
            if existing is not reaction:
                raise DomainRefused(
                    f"a reaction {reaction.name!r} already exists in {existing.function.__module__}; "
                    'give this one another name with @reacts(…, name="…")',
                    name=reaction.name,
                )
            return function

        return register

    def process(self, cls: type[Process], *, name: str | None = None, start: Start = "beginning") -> None:
        """Registers a process class: what its methods take is told to it, and what they send is sent.

        `name`: part of its ids, `NAME-…`, and of the types of its steps; by default that of the class. Keep it when you rename
        the class. `start`: as of `reacts`, for all events that it takes.

        Raises:
            DomainRefused: the class takes nothing that begins it, or takes something twice; a reaction or command has one of
                its names.
        """
        register_process(self, cls, name, start)

    def publishes(self, topic: str, *events: type, on_failure: OnFailure | None = None) -> Callable[[PF], PF]:
        """Registers a function (event, stored event) that makes a message of each event of these classes, for a topic of the
        server's broker. It returns the body, a JSON value or bytes, or None for no message; it must not depend on anything
        but its arguments, because an event may be published again.

        `on_failure` is of the topic, and named once. With "park" (the default) an event of which no message can be made is
        parked: later events of its aggregate wait for it, all others continue. With "stop" the topic waits at the event.

        Raises:
            DomainRefused: the topic has one of these classes already, or another `on_failure`, or no class is named.
        """

        if not events:
            raise DomainRefused(
                f"@publishes({topic!r}) names no class of events; name those that become its messages", name=topic
            )

        def register(function: PF) -> PF:
            publication = self._publications.setdefault(topic, Publication(topic))
            publication.declare(on_failure)
            for event in events:
                publication.add(event_type(event), function)
            return function

        return register

    def publishes_as_stored(self, topic: str, *events: type, on_failure: OnFailure | None = None) -> None:
        """As `publishes`, with the events as they are stored: `event()` of their messages returns them."""
        self.publishes(topic, *events, on_failure=on_failure)(as_stored)

    def publishes_as_cloudevents(self, topic: str, *events: type, on_failure: OnFailure | None = None) -> None:
        """As `publishes`, with the events as CloudEvents in the JSON format, for systems that know nothing of this store."""
        self.publishes(topic, *events, on_failure=on_failure)(as_cloudevent)

    def handler(self, type: str) -> Handler:
        """Returns the handler of a command type.

        Raises:
            UnknownCommand: no handler is registered for it.
        """
        handler = self._handlers.get(type)
        if handler is None:
            raise self.unknown_command(type)
        return handler

    def unknown_command(self, type: str, named: Callable[[str], bool] = lambda _: True) -> UnknownCommand:
        """Returns the error of a command that has no handler. `named`: which types of those that have one it may name."""
        registered = ", ".join([each for each in sorted(self._handlers) if named(each)][:20]) or "none"
        return UnknownCommand(
            f"no handler for commands of type {shown(type)}; there are handlers for: {registered}", type=type[:255]
        )

    def decode(self, type: str, payload: bytes, aggregate_id: str) -> tuple[Handler, object]:
        """Decodes a command that was sent to an aggregate; returns its handler and the command.

        Raises:
            UnknownCommand: no handler is registered for it.
            PayloadInvalid: the payload does not match its class.
            InvalidArgument: the command names no aggregate, another one, a reserved id, or one aggregate twice.
        """
        return self.decode_with_fingerprint(type, payload, aggregate_id)[:2]

    def decode_with_fingerprint(self, type: str, payload: bytes, aggregate_id: str) -> tuple[Handler, object, bytes]:
        """As `decode`; also returns the command's fingerprint."""
        if aggregate_id and aggregate_id[0] == RESERVED:
            raise reserved_id_refused(aggregate_id)
        handler = self._handlers.get(type) or self.handler(type)
        command, fingerprint = handler.command.decode_with_fingerprint(payload, aggregate_id)
        if handler.is_joint:
            cast(JointHandler, handler).check_ids(command)
        return handler, command, fingerprint

    def decode_event(self, event: Event) -> object:
        """Returns a stored or published event as an instance of its class today, through upcasts.

        Raises:
            UnknownEvent: no aggregate or reaction of the domain has its type, or the code does not know its version.
            PayloadInvalid: it does not match its class.
        """
        kind = self._event_types.get(event.type)
        if kind is None:  # or registered since
            self._event_types = self._find_event_types()
            kind = self._event_types.get(event.type)
        if kind is None:
            raise UnknownEvent(
                f"no aggregate or reaction of this domain has events of type {shown(event.type)}; decode it with "
                "event_type(CLASS).decode(event)",
                type=event.type,
            )
        return kind.decode(event)

    def check(self) -> None:
        """Checks all classes, by building everything that is otherwise built at first use.

        Raises:
            DomainRefused: a field has a type that JSON cannot hold, instances of a class are read back as others, an upcast is
                missing, two classes have the same name, an aggregate needs arguments, or shares a list with all others, or a
                command's aggregate id is not text.
        """
        for handler in self._handlers.values():
            handler.command.check()
            for field in handler.fields if isinstance(handler, JointHandler) else ():
                handler.command.check_id_field(field)
            for cls in handler.folds:
                check_initial_state(cls)
        for each in self._find_event_types().values():
            each.check()

    def _find_event_types(self) -> dict[str, EventType[object]]:
        found: dict[str, EventType[object]] = {}
        for handler in self._handlers.values():
            for cls in handler.folds:
                for each, _ in applies_by_name(cls).values():
                    add_event_type(found, each)
        for reaction in self._reactions.values():
            add_event_type(found, reaction.event)
        for publication in self._publications.values():
            for kind in publication.kinds.values():
                add_event_type(found, kind)
        return found


def domains_handling(command: type) -> list[Domain]:
    """Returns the domains with a handler for this command class."""
    return [domain for domain in _domains if any(handler.command.cls is command for handler in domain.handlers.values())]


def _fields_of(command: type, id: str | None, aggregates: Sequence[str] | None) -> Sequence[str]:  # `id`: the domain's word
    """Returns the fields of a command with the ids of its aggregates; one, if it is about one aggregate."""
    if aggregates is None:
        return ("",) if id is None else (id,)
    names = [aggregates] if isinstance(aggregates, str) else list(aggregates)
    check_dataclass(command)
    known = [field.name for field in fields_of(command)]
    unknown = next((name for name in names if name not in known), None)
    different = unknown is None and len(set(names)) == len(names)
    if not (different and 2 <= len(names) <= WRITES_MAX and id in (None, names[0])):
        raise DomainRefused(
            f"@handles({class_path(command)}, aggregates={shown(tuple(names))}): name 2 to {WRITES_MAX} different fields of "
            f"the command, the first one is its id; it has {', '.join(known)}",
            name=class_path(command),
            field=unknown or "aggregates",
        )
    return names


def _folds_of(function: HandlerFunction, command: type, count: int, base: type[Aggregate]) -> list[type[Aggregate]]:
    """Returns the classes that a handler's parameters after the first are annotated with: subclasses of `base`, which is
    Aggregate or Decision.
    """
    is_decision, what = base is Decision, base.__name__.lower()
    name = f"{function.__module__}.{function.__qualname__}"
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 1 + count or any(parameter.kind not in kinds for parameter in parameters):
        wanted = (
            f"two: command, {what}"
            + "; for several aggregates, name the fields with their ids: @handles(…, aggregates=(…))" * (not is_decision)
            if count == 1
            else f"{1 + count}: the command and {count} aggregates"
        )
        raise DomainRefused(f"handler {name} takes {len(parameters)} parameters; it must take {wanted}", handler=name)
    try:
        hints = get_type_hints(function)
    except Exception as error:  # an annotation may be any expression
        raise DomainRefused(
            f"the annotations of handler {name} cannot be resolved: {error}; import these classes in its module",
            handler=name,
        ) from None
    first, *others = (hints.get(parameter.name) for parameter in parameters)
    if first not in (None, command):
        raise DomainRefused(
            f"handler {name} handles {class_path(command)}, but its parameter {parameters[0].name} is annotated with "
            f"{shown(first)}; change one of them",
            handler=name,
        )
    for parameter, hint in zip(parameters[1:], others, strict=True):
        fits = isinstance(hint, type) and issubclass(hint, base) and hint is not base
        if not fits or issubclass(cast(type, hint), Decision) is not is_decision:
            found = f"annotated with {shown(hint)}" if parameter.name in hints else "not annotated"
            raise DomainRefused(
                f"handler {name}: parameter {parameter.name} is {found}; annotate it with a subclass of {base.__name__}, as in "
                f"{parameter.name}: {parameter.name.title().replace('_', '')}",
                handler=name,
            )
    return cast("list[type[Aggregate]]", others)
