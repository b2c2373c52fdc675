"""JSON as the data and metadata of events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from eventstore.errors import InvalidArgument

Json: TypeAlias = Any  # with a union a type checker would refuse `event.json()["total"]`
# raw_decode calls it; the library's type hints omit it
_scan: Callable[[str, int], tuple[Json, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def bytes_of(name: str, value: object) -> tuple[bytes, bool]:
    """Returns the bytes of a value, and whether they are JSON. Raises InvalidArgument if JSON cannot hold it."""
    if isinstance(value, bytes):
        return value, False
    if isinstance(value, bytearray | memoryview):
        return bytes(value), False
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode(), True
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name} is neither bytes nor JSON: {error}", field=name) from None


def parsed(data: bytes) -> Json:
    """Same as `json.loads`, in a third of its time if nothing surrounds the value, as in events stored as JSON."""
    parsed: Json
    try:
        text = data.decode()
        parsed, end = _scan(text, 0)
        if end == len(text):
            return parsed
    except (ValueError, StopIteration):
        pass  # leading white space, a byte order mark, UTF-16; or not JSON, and json.loads says why
    parsed = json.loads(data)
    return parsed
