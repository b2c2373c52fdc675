"""Reads values that people write: on the command line, in the environment, in a TOML file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final


def read_written(kind: type, written: object) -> Any:
    """Returns a written value as one of type `kind`: int, float, bool, str or Path. A text is read; other values have a type.

    Raises:
        ValueError: its text says what is expected, such as `a whole number`.
    """
    read, expected = _READERS[kind]
    try:
        return read(written)
    except (ValueError, TypeError, KeyError, OverflowError):
        raise ValueError(expected) from None


def _whole_number(written: str | int | float) -> int:
    number = int(written)
    if isinstance(written, bool) or (isinstance(written, float) and number != written):
        raise ValueError
    return number


def _number(written: str | int | float) -> float:
    if isinstance(written, bool):
        raise TypeError
    return float(written)


def _flag(written: object) -> bool:
    return _FLAGS[str(written).strip().lower()]


def _text(written: object) -> str:
    if not isinstance(written, str):
        raise TypeError
    return written


_READERS: Final[dict[type, tuple[Callable[[Any], object], str]]] = {
    int: (_whole_number, "a whole number"),
    float: (_number, "a number"),
    bool: (_flag, "true or false"),
    str: (_text, "text"),
    Path: (Path, "a path"),
}
_FLAGS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1", "t", "y"), True),
    **dict.fromkeys(("false", "no", "off", "0", "f", "n"), False),
}
