"""Traces by OpenTelemetry: what happens because of an append, a command or a message, from one process to the next.

    from eventstore import tracing

    tracing.start()  # once, at the start of the program; before or after the tracer provider is set

`start` replaces the methods of `points` by such as make spans. Nothing else in the package knows of it: where it is not called,
nothing is different. `opentelemetry-instrument PROGRAM` calls it by itself, also for `eventstore serve`, `work` and `project`.

Traces begin with `append`, `commit`, `send` and `topic.send` of a program, as its sampler says, or continue the one that is
current there. What follows (a handler, a commit, a reaction, a projection, a publication, a consumer) continues what an event
or message says of its trace, and begins none where it says nothing: so what is not sampled costs next to nothing.
"""

from __future__ import annotations

from eventstore.extras import advice

try:
    import opentelemetry.trace  # noqa: F401
    import wrapt  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"tracing needs {error.name}; {advice('otel')}", name=error.name) from None

from eventstore.tracing.carrying import context_of as context_of
from eventstore.tracing.points import start as start
from eventstore.tracing.points import stop as stop

__all__ = ["context_of", "start", "stop"]
