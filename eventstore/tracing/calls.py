"""The calls of a program: `append`, `commit`, `send`, `topic.send`. Here traces begin, or continue the one that is current."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Final, NamedTuple, TypeAlias

from opentelemetry.trace import Span, SpanKind, TraceFlags, get_current_span

from eventstore.tracing.attributes import of_messages, own
from eventstore.tracing.carrying import (
    carrier_of,
    commands_with,
    commits_with,
    events_with,
    messages_with,
    metadata_with,
    properties_with,
    writes_with,
)
from eventstore.tracing.spans import Current, Method, tracer

Attributes: TypeAlias = Callable[[Any, tuple[Any, ...]], tuple[str, dict[str, Any]]]

traces_begin = True  # where none is current
_SAMPLED: Final = TraceFlags.SAMPLED
# A method calls itself again, within its timeout: that is one call. It also says that a sampler was asked, and said no.
_inside: Final[ContextVar[bool]] = ContextVar("inside", default=False)


class Carried(NamedTuple):
    """The argument that takes the context: its place after `self`, its name, and the function that puts the context in."""

    place: int
    name: str
    put: Callable[[Any, Mapping[str, str]], Any]

    def into(self, span: Span, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with the context of a span."""
        if not (carrier := carrier_of(span)):
            return args, named
        if 0 <= self.place < len(args):
            return (*args[: self.place], self.put(args[self.place], carrier), *args[self.place + 1 :]), named
        if self.name in named or self.place < 0:
            return args, {**named, self.name: self.put(named.get(self.name), carrier)}
        return args, named  # it is missing, and the method says so


def call(kind: SpanKind, about: Attributes, carried: Carried) -> Callable[[Method], Method]:
    """Returns a wrapper for methods that a program calls, async or not. `about`: returns the span's name and attributes."""

    def begun(self: Any, args: tuple[Any, ...]) -> Span:
        name, attributes = about(self, args)
        return tracer.start_span(name, kind=kind, attributes=attributes)

    async def awaited(method: Method, self: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        token = _inside.set(True)
        try:
            if not (span := begun(self, args)).is_recording():
                return await method(self, *args, **named)
            args, named = carried.into(span, args, named)
            with Current(span):
                return await method(self, *args, **named)
        finally:
            _inside.reset(token)

    def called(method: Method, self: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        token = _inside.set(True)
        try:
            if not (span := begun(self, args)).is_recording():
                return method(self, *args, **named)
            args, named = carried.into(span, args, named)
            with Current(span):
                return method(self, *args, **named)
        finally:
            _inside.reset(token)

    def wrapper(method: Method) -> Method:
        traced_call = awaited if iscoroutinefunction(method) else called

        @wraps(method)
        def traced(self: Any, *args: Any, **named: Any) -> Any:
            # in a request that is not sampled this is all that tracing costs: no coroutine around that of the method
            current = get_current_span().get_span_context()
            if not (current.trace_flags & _SAMPLED or (traces_begin and not current.is_valid)) or _inside.get():
                return method(self, *args, **named)
            return traced_call(method, self, args, named)

        return traced

    return wrapper


def _append(_: Any, args: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    return "append", own(aggregate_id=args[0] if args and isinstance(args[0], str) else None)


def _send(_: Any, args: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    command = args[0] if args else None
    return "send", own(command=getattr(command, "type", None) or type(command).__name__)


def _send_message(topic: Any, _: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    return f"send {topic.name}", of_messages("send", "send", topic=topic.name)


def _plain(name: str) -> Attributes:
    return lambda _, args: (name, {})


append: Final = call(SpanKind.CLIENT, _append, Carried(1, "events", events_with))
append_many: Final = call(SpanKind.CLIENT, _plain("append"), Carried(0, "commits", commits_with))
commit: Final = call(SpanKind.CLIENT, _plain("append"), Carried(0, "writes", writes_with))
send: Final = call(SpanKind.CLIENT, _send, Carried(-1, "metadata", metadata_with))
send_many: Final = call(SpanKind.CLIENT, _plain("send"), Carried(0, "commands", commands_with))
send_message: Final = call(SpanKind.PRODUCER, _send_message, Carried(-1, "properties", properties_with))
send_messages: Final = call(SpanKind.PRODUCER, _send_message, Carried(0, "messages", messages_with))
