"""The commit: one span for each batch that is written and synced, beneath the first traced commit in it, linked to the
others.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from functools import wraps
from itertools import islice
from typing import Any, Final
from weakref import WeakKeyDictionary

from opentelemetry.trace import Span, SpanContext, SpanKind, TraceFlags

from eventstore.trace_context import TRACEPARENT
from eventstore.tracing.attributes import own
from eventstore.tracing.spans import LINKS_MAX, Method, failed, following

_NAME: Final = TRACEPARENT.encode()


_of: Final[WeakKeyDictionary[Any, deque[tuple[object, Span]]]] = WeakKeyDictionary()
"""The spans of the batches that an engine is writing, in order."""
_CONTEXT: Final = re.compile(rb'"traceparent":"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f][13579bdf]"')


def _causes(buffers: Sequence[bytes]) -> list[SpanContext]:
    """Returns the traces of the commits in a batch. It looks at bytes: decoding all events of each batch to find the few that
    have a trace would cost more than all else of tracing.
    """
    found = dict.fromkeys(pair for buffer in buffers if _NAME in buffer for pair in _CONTEXT.findall(buffer))
    return [
        SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        for trace, span in islice(found, LINKS_MAX)
    ]


def taken(method: Method) -> Method:
    """Wraps what takes a batch to be written."""

    @wraps(method)
    def traced(self: Any) -> Any:
        segment = method(self)
        if segment is not None and (causes := _causes(segment.buffers)):
            events = segment.next_sequence - segment.first_sequence
            attributes = own(events=events, bytes=segment.end - segment.offset, sequence=segment.next_sequence - 1)
            span = following("commit", SpanKind.INTERNAL, causes, attributes, late=False)
            _of.setdefault(self, deque()).append((segment, span))
        return segment

    return traced


def written(method: Method) -> Method:
    """Wraps what makes a batch visible, once it is durable wherever it has to be."""

    @wraps(method)
    def traced(self: Any, segment: Any, *, durable: bool) -> Any:
        done = method(self, segment, durable=durable)
        spans = _of.get(self)
        if spans and spans[0][0] is segment:
            spans.popleft()[1].end()
        return done

    return traced


def rolled_back(method: Method) -> Method:
    """Wraps what takes back all that is not written, after an error."""

    @wraps(method)
    def traced(self: Any, error: BaseException) -> Any:
        for _, span in _of.pop(self, ()):
            failed(span, error)
            span.end()
        return method(self, error)

    return traced
