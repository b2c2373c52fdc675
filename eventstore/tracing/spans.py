"""Spans, and where they belong: beneath what caused them, or in a trace of their own that is linked to it.

What is handled soon after it was caused continues its trace. What comes late (more than `LATE_S` after it, so also what is
replayed) or again begins a trace of its own, linked to the first: that one was complete, and would grow for as long as the log
is read. A batch is one span, beneath the first of its causes, linked to each of the others.

A span is current only inside a `with` in the body of one call, never across the `yield` of a generator: it would be the parent
of whatever the generator's user does next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, TypeAlias

from opentelemetry import context as current_context
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, get_tracer, set_span_in_context

from eventstore import __version__
from eventstore.tracing.carrying import remote

Method: TypeAlias = Callable[..., Any]
"""What is replaced, and what replaces it."""
LATE_S: Final = 60
LINKS_MAX: Final = 128
"""As many as an SDK keeps by default."""

tracer: Final = get_tracer("eventstore", __version__)


class Current:
    """Makes a span the current one in the body of a `with`, and ends it with that, unless it `goes_on`. An error is noted by
    its type alone: its text may quote data.
    """

    __slots__ = ("_not_errors", "_span", "_token", "goes_on")

    def __init__(self, span: Span, not_errors: tuple[type[BaseException], ...] = ()) -> None:
        self._span = span
        self._token: Any = None
        self._not_errors = not_errors
        self.goes_on = False

    def __enter__(self) -> Span:
        self._token = current_context.attach(set_span_in_context(self._span))
        return self._span

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        current_context.detach(self._token)
        if error is not None and not isinstance(error, self._not_errors):
            failed(self._span, error)
        if error is not None or not self.goes_on:
            self._span.end()


def failed(span: Span, error: BaseException) -> None:
    """Notes an error."""
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR))


def following(
    name: str,
    kind: SpanKind,
    causes: Sequence[SpanContext],
    attributes: dict[str, Any],
    *,
    late: bool,
    start_ns: int | None = None,
) -> Span:
    """Returns the span of what causes of other processes, or of earlier, have led to; at least one."""
    unique = {each.span_id: each for each in causes}
    first, *others = unique.values()
    parent = Context() if late else remote(first)
    linked = (first, *others) if late else others
    links = [Link(each) for each in linked[:LINKS_MAX]]
    return tracer.start_span(name, parent, kind, attributes, links, start_ns)


def is_late(micros: int) -> bool:
    """Returns whether something of this time, in microseconds since 1970, is handled late now."""
    return time.time() - micros / 1e6 > LATE_S


def known(found: Iterable[SpanContext | None]) -> list[SpanContext]:
    """Returns the contexts that there are."""
    return [each for each in found if each is not None]
