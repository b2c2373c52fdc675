"""JSON as the data and metadata of events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from eventstore.errors import InvalidArgument

Json: TypeAlias = Any  # with a union a type checker would refuse `event.json()["total"]`
# raw_decode calls it; the library's type hints omit it
_scan: Callable[[str, int], tuple[Json, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def json_text(value: object) -> str:
    """Returns a value as JSON without white space; a tuple as an array.

    Raises:
        TypeError: JSON cannot hold it, or a dict has a key that is not text: it would be read back as text, and could be there
            twice.
        ValueError: NaN, infinity, a cycle.
        RecursionError: it is nested too deeply.
    """
    text = _encode(value)
    if value.__class__ not in _SCALARS:
        _check_keys(value, "the value")
    return text


def _check_keys(value: object, where: str) -> None:
    if value.__class__ is dict or isinstance(value, dict):
        for key, inner in value.items():
            if key.__class__ is not str and not isinstance(key, str):
                raise _other_key(where, key)
            if inner.__class__ not in _SCALARS:
                _check_keys(inner, f"{where}[{key!r:.40}]")
    elif isinstance(value, list | tuple):
        for inner in value:
            if inner.__class__ not in _SCALARS:
                _check_keys(inner, where)


def _other_key(where: str, key: object) -> TypeError:
    return TypeError(f"{where:.200} has the key {key!r:.80}, which JSON would make text; make it text, as in {str(key)!r:.40}")


def exact_json_text(value: object, name: str) -> str:
    """As `json_text`, of a value that is read back as it is: a tuple would become a list, a member of an enum its value.

    Raises:
        TypeError: also if it contains anything but dicts with text as keys, lists, text, numbers, bool and None. `name`: of the
            value, in this error.
        ValueError: NaN, infinity; it contains itself, or is nested too deeply.
    """
    try:
        _check_exact(value, name)
        return _encode(value)
    except RecursionError:
        raise ValueError(f"{name} contains itself, or is nested too deeply for JSON") from None


def _check_exact(value: object, where: str) -> None:
    kind = type(value)
    if isinstance(value, dict) and kind is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise _other_key(where, key)
            if type(inner) not in _SCALARS:
                _check_exact(inner, f"{where}[{key!r:.40}]")
    elif isinstance(value, list) and kind is list:
        for place, inner in enumerate(value):
            if type(inner) not in _SCALARS:
                _check_exact(inner, f"{where}[{place}]")
    elif kind not in _SCALARS:
        raise TypeError(
            f"{where:.200} is {value!r:.80}, of type {kind.__name__}, which JSON does not keep; use dicts with text as keys, "
            "lists, text, numbers, bool and None"
        )


def bytes_of(name: str, value: object) -> tuple[bytes, bool]:
    """Returns the bytes of a value, and whether they are JSON. Raises InvalidArgument if JSON cannot hold it."""
    if isinstance(value, bytes):
        return value, False
    if isinstance(value, bytearray | memoryview):
        return bytes(value), False
    try:
        return json_text(value).encode(), True
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
