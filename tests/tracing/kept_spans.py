"""The spans that an exporter has kept, and how they hang together."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.waiting import wait_until


class KeptSpans:
    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Waits until so many spans of this name have ended, and returns them, in the order of their ends."""
        wait_until(lambda: len(self._named(name)) >= count, f"{count} spans {name!r}")
        return self._named(name)

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def _named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.context is not None
    assert parent.context is not None
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


def is_linked(span: ReadableSpan, cause: ReadableSpan) -> bool:
    assert cause.context is not None
    return cause.context.span_id in {link.context.span_id for link in span.links}
