"""The metadata of a command, which each of its events carries: a JSON object.

`correlation_id` names what began a chain of commands and events, `causation_id` what caused this command. An event without them
was begun and caused by its command, whose id it has anyway: so they are stored only where they differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.fields import check_text, shown
from eventstore.import_marks import MARKS
from eventstore.json_values import bytes_of, parsed

METADATA_BYTES_MAX: Final = 16 * 1024
SCHEMA: Final = "schema"
CORRELATION_ID: Final = "correlation_id"
CAUSATION_ID: Final = "causation_id"


def encode_metadata(metadata: Mapping[str, object]) -> bytes:
    """Returns the metadata of a command, or of an event it applies, as JSON.

    Raises:
        InvalidArgument: see `check_metadata`.
    """
    if not isinstance(metadata, Mapping):
        raise _refused(f"is {shown(metadata)}; give a dict")
    encoded, _ = bytes_of("metadata", dict(metadata))
    check_metadata(encoded)
    return encoded


def check_metadata(encoded: bytes) -> None:
    """Raises InvalidArgument unless it is a JSON object of at most 16 KiB, whose correlation and causation ids are text of 1 to
    255 bytes, and without `schema`, which the domain adds to events itself, and the marks of imported events."""
    if len(encoded) > METADATA_BYTES_MAX:
        raise InvalidArgument(
            f"the metadata has {len(encoded)} bytes, the limit is {METADATA_BYTES_MAX}",
            field="metadata",
            limit=METADATA_BYTES_MAX,
            value=len(encoded),
        )
    try:
        given = json.loads(encoded.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _refused(f"is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise _refused(f"is {shown(given)}, not an object")
    if SCHEMA in given:
        raise _refused(f"has {SCHEMA!r}, where an event keeps the version of its class; use another name")
    for mark in MARKS:
        if mark in given:
            raise _refused(f"has {mark!r}, which marks imported events; use another name")
    for name in (CORRELATION_ID, CAUSATION_ID):
        if name in given:
            check_text(name, given[name])


def merged_metadata(inherited: bytes | None, own: Mapping[str, object] | None) -> bytes:
    """Returns the metadata of an event: that of its command, overridden by its own. Raises InvalidArgument."""
    if own is None:
        return inherited or b"{}"
    encoded = encode_metadata(own)
    return encoded if inherited is None else encode_metadata({**parsed(inherited), **parsed(encoded)})


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _refused(why: str) -> InvalidArgument:
    return InvalidArgument(f"the metadata {why}", field="metadata")
