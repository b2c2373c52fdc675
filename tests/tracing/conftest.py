"""An exporter of the SDK that keeps the spans of a test, and tracing while it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from eventstore import tracing
from tests.tracing.kept_spans import KeptSpans

_exporter = InMemorySpanExporter()


@pytest.fixture(scope="session")
def _provider() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_exporter))
    trace.set_tracer_provider(provider)  # once in a process


@pytest.fixture
def spans(_provider: None) -> Iterator[KeptSpans]:
    """Those of the test, once they have ended."""
    tracing.start()
    _exporter.clear()
    yield KeptSpans(_exporter)
    tracing.stop()
