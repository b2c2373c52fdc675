"""Puts the context of a trace into events, commands and messages, and reads it from stored ones.

Only sampled contexts are stored: the others would take 71 bytes of each event to say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from eventstore.client.session.message_rows import NewMessage
from eventstore.command_metadata import METADATA_BYTES_MAX
from eventstore.json_values import json_text, parsed
from eventstore.model import EVENT_BYTES_MAX, METADATA_IS_JSON, Commit, Event, NewEvent, Write
from eventstore.records.event_message import METADATA
from eventstore.records.message import PROPERTIES_BYTES_MAX, Message
from eventstore.tags import TAGGED, enveloped, metadata_in
from eventstore.trace_context import CONTEXT_BYTES_MAX, TRACEPARENT, TRACESTATE, with_trace

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_NAME: Final = TRACEPARENT.encode()
_PROPERTIES: Final = 7  # among the values of a message, encoded


def carrier_of(span: Span) -> dict[str, str]:
    """Returns the context of a span as W3C headers; none if it is not sampled."""
    headers: dict[str, str] = {}
    if span.get_span_context().trace_flags.sampled:
        _PROPAGATOR.inject(headers, set_span_in_context(span))
    return headers


# ---- into what is sent


def event_with(event: NewEvent, carrier: Mapping[str, str]) -> NewEvent:
    """Returns the event with a context in its metadata; as it is if they are not JSON, have one, or are as large as they may
    be.
    """
    if event.__class__ is not NewEvent:
        return event
    format_, type_, data, stored = event
    own = event.metadata
    if (own is not None and not format_ & METADATA_IS_JSON) or len(data) + len(
        stored or b""
    ) > EVENT_BYTES_MAX - CONTEXT_BYTES_MAX:
        return event
    metadata = with_trace(own, carrier)
    if metadata is own:
        return event
    packed = enveloped(event.tags, metadata) if format_ & TAGGED else metadata
    return tuple.__new__(NewEvent, (format_ | METADATA_IS_JSON, type_, data, packed))


def events_with(events: Any, carrier: Mapping[str, str]) -> Any:
    """Returns the events with a context. What is no sequence is refused by the store, and returned as it is."""
    return [event_with(each, carrier) for each in events] if isinstance(events, Sequence) else events


def commits_with(commits: Iterable[Any], carrier: Mapping[str, str]) -> Iterator[Any]:
    """Returns the commits with a context in each event. Takes one after the other, as the store does."""
    for each in commits:
        if each.__class__ is Commit:
            yield tuple.__new__(Commit, (each[0], events_with(each[1], carrier), *each[2:]))
        else:
            yield each


def writes_with(writes: Any, carrier: Mapping[str, str]) -> Any:
    """As `events_with`, for a joint commit."""
    if not isinstance(writes, Sequence):
        return writes
    return [each._replace(events=events_with(each.events, carrier)) if isinstance(each, Write) else each for each in writes]


def metadata_with(metadata: Any, carrier: Mapping[str, str]) -> Any:
    """Returns the metadata of a command with a context, unless they are as large as they may be."""
    if metadata is None:
        return dict(carrier)
    if not isinstance(metadata, Mapping) or len(metadata) > METADATA_BYTES_MAX:
        return metadata
    try:
        size_bytes = len(json_text(dict(metadata)).encode())
    except (TypeError, ValueError, RecursionError):  # the store refuses it, and says why
        return metadata
    return metadata if size_bytes > METADATA_BYTES_MAX - CONTEXT_BYTES_MAX else {**metadata, **carrier}


def commands_with(commands: Iterable[Any], carrier: Mapping[str, str]) -> Iterator[Any]:
    """As `commits_with`, for commands, or tuples of a command, its id and its metadata."""
    for each in commands:
        command, command_id, metadata = (*each, None, None)[:3] if each.__class__ is tuple else (each, None, None)
        yield command, command_id, metadata_with(metadata, carrier)


def properties_with(properties: Any, carrier: Mapping[str, str]) -> Any:
    """Returns the properties of a message with a context, unless they are as large as they may be."""
    if properties is None:
        return dict(carrier)
    if not isinstance(properties, Mapping) or sum(4 * len(str(each)) + 12 for each in (*properties, *properties.values())) > (
        PROPERTIES_BYTES_MAX - CONTEXT_BYTES_MAX
    ):
        return properties
    return {**properties, **carrier}


def messages_with(messages: Iterable[Any], carrier: Mapping[str, str]) -> Iterator[Any]:
    """As `commits_with`, for messages or bodies."""
    for each in messages:
        if each.__class__ is NewMessage:
            yield replace(each, properties=properties_with(each.properties, carrier))
        elif isinstance(each, bytes):
            yield NewMessage(each, properties=dict(carrier))
        else:
            yield each


# ---- out of what was stored


def context_of(item: Event | Message) -> Context:
    """Returns the context that an event, or a message, was made in, as the parent of a span of your own; an empty one if it has
    none, or one that was not sampled.
    """
    found = found_in_message(item) if isinstance(item, Message) else found_in_event(item)
    return Context() if found is None else remote(found)


def remote(context: SpanContext) -> Context:
    """Returns the context of what a span of another process, or of earlier, causes."""
    return set_span_in_context(NonRecordingSpan(context), Context())


def found_in_event(event: Event) -> SpanContext | None:
    """Returns the sampled context of a stored event, if it has one."""
    stored = event[4]
    return None if stored is None or _NAME not in stored else found_in(stored, event[8])


def found_in(stored: bytes, format_: int) -> SpanContext | None:
    """Returns the sampled context in metadata as they are stored."""
    if not format_ & METADATA_IS_JSON:
        return None
    try:
        metadata = metadata_in(stored) if format_ & TAGGED else stored
        return _sampled(parsed(metadata or b""))
    except (ValueError, IndexError, RecursionError):  # clients flag metadata as JSON, and that is not checked
        return None


def found_in_message(message: Message) -> SpanContext | None:
    """Returns the sampled context of a message: its own, or that of the event it was made from."""
    encoded = message[_PROPERTIES]
    if not encoded or _NAME not in encoded:
        return None
    properties = message.properties
    if TRACEPARENT in properties:
        return _sampled(properties)
    try:
        return _sampled(parsed(properties.get(METADATA, "").encode()))
    except (ValueError, RecursionError):
        return None


def _sampled(carrier: object) -> SpanContext | None:
    if not isinstance(carrier, Mapping):
        return None
    headers = {name: carrier[name] for name in (TRACEPARENT, TRACESTATE) if isinstance(carrier.get(name), str)}
    found = get_current_span(_PROPAGATOR.extract(headers, Context())).get_span_context()
    return found if found.is_valid and found.trace_flags.sampled else None
