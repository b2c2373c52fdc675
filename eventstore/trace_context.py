"""The W3C trace context in the metadata of an event: `traceparent` and `tracestate`, the first members of its JSON object.

They say in which trace an event came to be, and nothing about its content. So a command that is repeated in another trace is
the same command: where contents are compared, `without_trace` takes the context off, byte for byte as it was put there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from eventstore import flat
from eventstore.model import COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX, METADATA_IS_JSON
from eventstore.tags import TAGGED, enveloped, metadata_in, subject_in, tags_in

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
MARK: Final = b'"traceparent":"'
"""What metadata with a context have in them; others may have it, too."""
CONTEXT_BYTES_MAX: Final = 1024
"""The most that a context adds; a longer `tracestate` is left out."""

_OURS: Final = re.compile(
    rb'\{"traceparent":"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"(?:,"tracestate":"(?:[^"\\]|\\.){0,1000}")?(?:,|( \})|(\}))'
)


def with_trace(metadata: bytes | None, context: Mapping[str, str]) -> bytes | None:
    """Returns metadata, which are a JSON object or None, with a context at their front; as they are if there is no place for
    one: they are something else, or have one already.
    """
    if TRACEPARENT not in context or (metadata is not None and (metadata[:1] != b"{" or b'"traceparent"' in metadata)):
        return metadata
    front = f'{{"traceparent":"{context[TRACEPARENT]}"'.encode()
    if context.get(TRACESTATE):
        state = f',"tracestate":{json.dumps(context[TRACESTATE])}'.encode()
        front += state if len(front) + len(state) < CONTEXT_BYTES_MAX else b""
    if metadata is None:
        return front + b"}"
    rest = metadata[1:]
    return front + (b" }" if rest == b"}" else b"," + rest)  # the blank tells `{}` from no metadata


def _taken_off(metadata: bytes | None) -> bytes | None:
    found = None if metadata is None else _OURS.match(metadata)
    if found is None or metadata is None:
        return metadata
    if found[2] is not None:
        return None if found.end() == len(metadata) else metadata
    return b"{}" if found[1] is not None else b"{" + metadata[found.end() :]


def without_trace(events: bytes) -> bytes:
    """Returns packed events, in the canonical encoding, as they were before a context was put into their metadata."""
    if MARK not in events:
        return events
    values = flat.Decoder(COMMIT_BYTES_MAX, 4 * COMMIT_EVENTS_MAX + 1).decode(events)
    for at in range(0, len(values), 4):
        format_, metadata = values[at], values[at + 3]
        if not isinstance(format_, int) or not isinstance(metadata, bytes) or not format_ & METADATA_IS_JSON:
            continue
        own = metadata_in(metadata) if format_ & TAGGED else metadata
        bare = _taken_off(own)
        if bare is own:
            continue
        if bare is None:
            values[at] = format_ & ~METADATA_IS_JSON
        values[at + 3] = enveloped(tags_in(metadata), bare, subject_in(metadata)) if format_ & TAGGED else bare
    return flat.encode(values)
