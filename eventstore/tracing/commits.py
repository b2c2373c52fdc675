"""The commit: one span for each batch that is written and synced, beneath the first traced commit in it, linked to the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import msgpack
from opentelemetry.trace import Span, SpanContext, SpanKind

from eventstore.model import COMMIT_BYTES_MAX
from eventstore.records.raw_commit import JointWrites
from eventstore.store.append import COMMITTED
from eventstore.trace_context import TRACEPARENT
from eventstore.tracing.attributes import own
from eventstore.tracing.carrying import found_in
from eventstore.tracing.spans import LINKS_MAX, failed, following

Method: TypeAlias = Callable[..., Any]
_NAME: Final = TRACEPARENT.encode()


class _Batches:
    """The traces of what waits to be written by an engine, and the spans of what is being written, in order."""

    def __init__(self) -> None:
        self.waiting: list[SpanContext] = []
        self.spans: deque[tuple[object, Span]] = deque()


_of: Final[WeakKeyDictionary[Any, _Batches]] = WeakKeyDictionary()


def appended(method: Method) -> Method:
    """Wraps what puts commits into the front buffer: notes the traces of those that were taken."""

    @wraps(method)
    def traced(self: Any, commits: Sequence[Any]) -> Any:
        outcomes = method(self, commits)
        found = [
            context
            for commit, outcome in zip(commits, outcomes, strict=True)
            if (events := _events(commit)) is not None
            and _NAME in events
            and outcome[0] == COMMITTED
            and (context := _first_of(events)) is not None
        ]
        if found:
            waiting = _of.setdefault(self, _Batches()).waiting
            waiting += found[: LINKS_MAX - len(waiting)]
        return outcomes

    return traced


def _events(commit: Any) -> bytes | None:
    """Returns packed events of a commit, of the first aggregate if it has several."""
    events: Any = commit[0].writes[0][2] if isinstance(commit[0], JointWrites) else commit[4]
    return events[0] if events.__class__ is tuple else events  # type: ignore[no-any-return]


def _first_of(events: bytes) -> SpanContext | None:
    """Returns the context of the first event: they have all the same."""
    values = msgpack.Unpacker(max_buffer_size=COMMIT_BYTES_MAX, unicode_errors="surrogateescape")
    values.feed(events)
    format_, _, _, metadata = (values.unpack() for _ in range(4))
    return found_in(metadata, format_) if metadata is not None and _NAME in metadata else None


def taken(method: Method) -> Method:
    """Wraps what takes a batch to be written."""

    @wraps(method)
    def traced(self: Any) -> Any:
        segment = method(self)
        batches = _of.get(self)
        if segment is not None and batches is not None and batches.waiting:
            causes, batches.waiting = batches.waiting, []
            events = segment.next_sequence - segment.first_sequence
            attributes = own(events=events, bytes=segment.end - segment.offset, sequence=segment.next_sequence - 1)
            batches.spans.append((segment, following("commit", SpanKind.INTERNAL, causes, attributes, late=False)))
        return segment

    return traced


def written(method: Method) -> Method:
    """Wraps what makes a batch visible, once it is durable wherever it has to be."""

    @wraps(method)
    def traced(self: Any, segment: Any, *, durable: bool) -> Any:
        done = method(self, segment, durable=durable)
        batches = _of.get(self)
        if batches is not None and batches.spans and batches.spans[0][0] is segment:
            batches.spans.popleft()[1].end()
        return done

    return traced


def rolled_back(method: Method) -> Method:
    """Wraps what takes back all that is not written, after an error."""

    @wraps(method)
    def traced(self: Any, error: BaseException) -> Any:
        batches = _of.pop(self, None)
        for _, span in () if batches is None else batches.spans:
            failed(span, error)
            span.end()
        return method(self, error)

    return traced
