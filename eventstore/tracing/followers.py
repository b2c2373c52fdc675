"""What follows an event, a command or a message: handlers, reactions, projections, publications, consumers. Each continues the
trace that it finds there, or links to it; where it finds none it does what it does without tracing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from typing import Any, Final
from weakref import WeakKeyDictionary

from opentelemetry.trace import Span, SpanKind, get_current_span

from eventstore import flat
from eventstore.client.consumer.delivery import Delivery, place_of
from eventstore.model import METADATA_IS_JSON, Event
from eventstore.records.message import decode_messages
from eventstore.trace_context import TRACEPARENT
from eventstore.tracing.attributes import of_messages, own
from eventstore.tracing.carrying import carrier_of, found_in, found_in_event, found_in_message, metadata_with
from eventstore.tracing.spans import Current, Method, failed, following, is_late, known
from eventstore_mailbox import ChangesFirst

_NAME: Final = TRACEPARENT.encode()


# ---- commands


def handle(method: Method) -> Method:
    """Wraps what runs a command's handler. The events of the command get the context of its span, in place of the sender's."""

    @wraps(method)
    def traced(self: Any, decided: Any, target: Any) -> Any:
        metadata = decided.metadata
        if metadata is None or _NAME not in metadata or (cause := found_in(metadata, METADATA_IS_JSON)) is None:
            return method(self, decided, target)
        name = decided.handler.command.name
        attributes = own(command=name, handler=decided.handler.name, command_id=decided.command_id)
        span = following(f"handle {name}", SpanKind.CONSUMER, [cause], attributes, late=False)
        if carrier := carrier_of(span):
            before = f"{cause.trace_id:032x}-{cause.span_id:016x}".encode()
            decided = decided._replace(metadata=metadata.replace(before, carrier[TRACEPARENT][3:-3].encode()))
        with (current := Current(span, (ChangesFirst,))):
            handled = method(self, decided, target)
            current.goes_on = iscoroutine(handled)
        return _awaited(span, handled) if current.goes_on else handled

    return traced


async def _awaited(span: Span, handling: Awaitable[Any]) -> Any:
    with Current(span):
        return await handling


# ---- reactions and projections


def react(method: Method) -> Method:
    """Wraps an attempt of a reaction at an event."""

    @wraps(method)
    async def traced(self: Any, event: Event) -> Any:
        cause = found_in_event(event)
        if cause is None:
            return await method(self, event)
        attributes = own(reaction=self.reaction.name, aggregate_id=event.aggregate_id, sequence=event.sequence)
        late = is_late(event.timestamp)
        with Current(following(f"react {self.reaction.name}", SpanKind.CONSUMER, [cause], attributes, late=late)):
            return await method(self, event)

    return traced


def reaction_sends(method: Method) -> Method:
    """Wraps what sends a command of a reaction: it carries the context of the attempt."""

    @wraps(method)
    async def traced(self: Any, event: Event, command: object, command_id: str, *, metadata: Any) -> Any:
        carrier = carrier_of(get_current_span())
        return await method(
            self, event, command, command_id, metadata=metadata_with(metadata, carrier) if carrier else metadata
        )

    return traced


def project(function: Method) -> Method:
    """Wraps what applies a batch to the table of a projection."""

    @wraps(function)
    def traced(projection: Any, target: Any, events: Sequence[Event], before: int, after: Any) -> Any:
        causes = known(map(found_in_event, events))
        if not causes:
            return function(projection, target, events, before, after)
        attributes = own(projection=projection.name, events=len(events), sequence=after.sequence)
        late = is_late(events[-1].timestamp)
        with Current(following(f"project {projection.name}", SpanKind.CONSUMER, causes, attributes, late=late)):
            return function(projection, target, events, before, after)

    return traced


# ---- publishing

_publishing: Final[ContextVar[dict[int, Span] | None]] = ContextVar("publishing", default=None)


def publish(method: Method) -> Method:
    """Wraps what sends a batch of events as messages: a span for each event that has a trace, which its message carries."""

    @wraps(method)
    async def traced(self: Any, events: list[Event], place: int) -> Any:
        spans: dict[int, Span] = {}
        for event in events:
            if (cause := found_in_event(event)) is not None:
                attributes = of_messages("publish", "send", topic=self.topic) | own(sequence=event.sequence)
                late = is_late(event.timestamp)
                spans[event.sequence] = following(f"publish {self.topic}", SpanKind.PRODUCER, [cause], attributes, late=late)
        if not spans:
            return await method(self, events, place)
        token = _publishing.set(spans)
        try:
            return await method(self, events, place)
        except BaseException as error:
            for span in spans.values():
                failed(span, error)
            raise
        finally:
            _publishing.reset(token)
            for span in spans.values():
                span.end()

    return traced


def _context_property(event: Event) -> bytes:
    spans = _publishing.get()
    span = None if spans is None else spans.get(event.sequence)
    carrier = {} if span is None else carrier_of(span)
    return flat.encode([text for pair in carrier.items() for text in pair]) if carrier else b""


def message_made(method: Method) -> Method:
    """Wraps what makes a message of an event and a body."""

    @wraps(method)
    def traced(self: Any, event: Event, body: bytes) -> Any:
        body_, key, tag, properties, queue = method(self, event, body)
        return body_, key, tag, (properties or b"") + _context_property(event), queue

    return traced


def messages_made(method: Method) -> Method:
    """Wraps what makes messages of events."""

    @wraps(method)
    def traced(self: Any, events: Sequence[Event]) -> Any:
        made = method(self, events)
        if not _publishing.get():
            return made
        return [
            (b, k, t, (p or b"") + _context_property(event), q) for event, (b, k, t, p, q) in zip(events, made, strict=True)
        ]

    return traced


# ---- consumers

_pulled_ns: Final[WeakKeyDictionary[Any, int]] = WeakKeyDictionary()


def next_pull(method: Method) -> Method:
    """Wraps what plans a pull: the span of what it brings begins here."""

    @wraps(method)
    def traced(self: Any) -> Any:
        pull = method(self)
        if pull is not None:
            _pulled_ns[self] = time.time_ns()
        return pull

    return traced


def receive(method: Method) -> Method:
    """Wraps what takes the answer to a pull: one span, linked to the traces of the messages."""

    @wraps(method)
    def traced(self: Any, pull: Any, answer: Any) -> Any:
        begun = _pulled_ns.pop(self, None)
        received = method(self, pull, answer)
        if answer.count and _NAME in answer.records:
            causes = known(map(found_in_message, decode_messages(bytes(answer.records), answer.count)))
            topics = sorted({window.topic for window in pull.windows})
            name = topics[0] if len(topics) == 1 else None
            attributes = of_messages("receive", "receive", topic=name, group=self.options.group, messages=answer.count)
            if causes:
                title = f"receive {name}" if name else "receive"
                following(title, SpanKind.CLIENT, causes, attributes, late=False, start_ns=begun).end()
        return received

    return traced


def run_handler(function: Method) -> Method:
    """Wraps what runs a handler on messages: with each that has a trace, in a span."""

    @wraps(function)
    def traced(member: Any, handler: Any, concurrency: int) -> Any:
        if not callable(handler) or (iscoroutinefunction(handler) and not iscoroutinefunction(function)):
            return function(member, handler, concurrency)  # refuses it
        return function(member, processing(handler, awaited=iscoroutinefunction(function)), concurrency)

    return traced


def processing(handler: Callable[[Delivery], object], *, awaited: bool) -> Callable[[Delivery], object]:
    """Returns the handler so that it runs in a span. `awaited`: a coroutine may be returned."""

    def handled(message: Delivery) -> object:
        cause = found_in_message(message)
        if cause is None:
            return handler(message)
        group, topic, again = place_of(message)[0].group, message.topic, message.times_failed
        attributes = of_messages(
            "process", "process", topic=topic, queue=message.queue, group=group, message_id=message.message_id
        )
        late = again > 0 or is_late(message.timestamp)
        current = Current(following(f"process {topic}", SpanKind.CONSUMER, [cause], attributes, late=late))
        if awaited:
            return _handled(current, handler, message)
        with current:
            return handler(message)

    return handled


async def _handled(current: Current, handler: Callable[[Delivery], object], message: Delivery) -> object:
    with current:
        result = handler(message)
        return await result if isawaitable(result) else result
