"""For `opentelemetry-instrument`, which finds this class by an entry point of the package."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from eventstore.tracing.points import start, stop


class EventStoreInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Starts tracing."""

    def instrumentation_dependencies(self) -> Collection[str]:
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        start()

    def _uninstrument(self, **kwargs: Any) -> None:
        stop()
