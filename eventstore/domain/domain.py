"""A domain: which function handles which command, and what happens on which event.

It only registers and looks up. Whoever runs it (a server, a worker, a test) decodes with `decode`, has the aggregate at hand,
and calls the handler's `run`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints
from weakref import WeakSet

from eventstore.domain.aggregate import Aggregate, changes_by_name, check_made_without_arguments
from eventstore.domain.codec import described
from eventstore.domain.command_type import CommandType, command_type
from eventstore.domain.event_type import EventType, event_type
from eventstore.domain.handling import Handler, HandlerFunction
from eventstore.domain.methods import add_event_type
from eventstore.domain.reaction import Reaction, ReactionFunction
from eventstore.errors import DomainRefused, UnknownCommand
from eventstore.fields import shown

HF = TypeVar("HF", bound=HandlerFunction)
RF = TypeVar("RF", bound=ReactionFunction)
_domains: WeakSet[Domain] = WeakSet()


class Domain:
    """Handlers by the name of their command, and reactions by their own name."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._reactions: dict[str, Reaction] = {}
        _domains.add(self)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By the name of the command type."""
        return MappingProxyType(self._handlers)

    @property
    def reactions(self) -> Mapping[str, Reaction]:
        """By their names."""
        return MappingProxyType(self._reactions)

    def handles(self, command: type, *, id: str | None = None) -> Callable[[HF], HF]:  # the aggregate's own word
        """Registers a function (command, aggregate), sync or async, for a class of commands.

        The annotation of its second parameter says which aggregate. `id` names the field of the command that holds the
        aggregate's id; by default it is the first.

        Raises:
            DomainRefused: the command has a handler already, or the annotations do not fit.
        """
        described_type: CommandType[Any] = command_type(command, id)

        def register(function: HF) -> HF:
            handler = Handler(described_type, _aggregate_of(function, command), function)
            known = self._handlers.setdefault(described_type.name, handler)
            if known is not handler:
                raise DomainRefused(
                    f"command {described_type.name!r} ({described(command)}) is handled by {known.name} "
                    f"({described(known.command.cls)}) already, and cannot be by {handler.name}",
                    type=described_type.name,
                )
            return function

        return register

    def reacts(self, event: type, *, name: str | None = None) -> Callable[[RF], RF]:
        """Registers an async function (event, send) for a class of events. `name` (default: that of the function) is part of
        the ids of the commands it sends: keep it when the function is renamed.

        Raises:
            DomainRefused: there is a reaction of this name already, or the function is none.
        """
        described_type: EventType[Any] = event_type(event)

        def register(function: RF) -> RF:
            reaction = Reaction(name or function.__name__, described_type, function)
            known = self._reactions.setdefault(reaction.name, reaction)
            if known is not reaction:
                raise DomainRefused(
                    f"there is a reaction {reaction.name!r} already, in {known.function.__module__}; "
                    'give this one another name with @reacts(…, name="…")',
                    name=reaction.name,
                )
            return function

        return register

    def handler(self, type: str) -> Handler:
        """The handler of a type of commands.

        Raises:
            UnknownCommand: there is none.
        """
        handler = self._handlers.get(type)
        if handler is None:
            known = ", ".join(sorted(self._handlers)[:20])
            raise UnknownCommand(f"no handler for commands of type {shown(type)}; there are: {known}", type=type[:255])
        return handler

    def decode(self, type: str, payload: bytes, aggregate_id: str) -> tuple[Handler, object]:
        """The command that was sent to an aggregate, and its handler.

        Raises:
            UnknownCommand: there is no handler for it.
            PayloadInvalid: the payload does not fit its class.
            InvalidArgument: it names no aggregate, or another one.
        """
        handler = self._handlers.get(type) or self.handler(type)
        return handler, handler.command.decode(payload, aggregate_id)

    def check(self) -> None:
        """Builds everything that is built at first use.

        Raises:
            DomainRefused: a class cannot be carried by JSON, an upcast is missing, two classes have the same name, an
                aggregate cannot be made without arguments, its id in a command is no text.
        """
        found: dict[str, EventType[object]] = {}
        for handler in self._handlers.values():
            handler.command.check()
            check_made_without_arguments(handler.aggregate)
            for each, _ in changes_by_name(handler.aggregate).values():
                add_event_type(found, each)
        for reaction in self._reactions.values():
            add_event_type(found, reaction.event)
        for each in found.values():
            each.check()


def domains_handling(command: type) -> list[Domain]:
    """The domains with a handler for this class of commands."""
    return [domain for domain in _domains if any(handler.command.cls is command for handler in domain.handlers.values())]


def _aggregate_of(function: HandlerFunction, command: type) -> type[Aggregate]:
    """The aggregate that a handler's second parameter is annotated with."""
    name = f"{function.__module__}.{function.__qualname__}"
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 2 or any(parameter.kind not in kinds for parameter in parameters):
        raise DomainRefused(
            f"handler {name} takes {len(parameters)} parameters; they are two: command, aggregate", handler=name
        )
    try:
        hints = get_type_hints(function)
    except Exception as error:  # an annotation may be any expression
        raise DomainRefused(
            f"the annotations of handler {name} cannot be resolved: {error}; its classes must be known to its module",
            handler=name,
        ) from None
    first, second = (hints.get(parameter.name) for parameter in parameters)
    if first not in (None, command):
        raise DomainRefused(
            f"handler {name} handles {described(command)}, but its parameter {parameters[0].name} is annotated with "
            f"{shown(first)}",
            handler=name,
        )
    if not (isinstance(second, type) and issubclass(second, Aggregate) and second is not Aggregate):
        parameter = parameters[1].name
        found = f"annotated with {shown(second)}" if parameter in hints else "not annotated"
        raise DomainRefused(
            f"handler {name}: parameter {parameter} is {found}; write there which class of aggregates it takes, as in "
            f"{parameter}: {parameter.title().replace('_', '')}",
            handler=name,
        )
    return second
