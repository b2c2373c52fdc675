"""Checks of single values that came from outside: each names the field, the limit and the value it refuses.

Everybody runs the same ones: a store on what its user gives it, a client before it sends anything, a server on what it
received. So a wrong argument is refused in the same words wherever the store is.
"""

from __future__ import annotations

from eventstore.errors import InvalidArgument
from eventstore.model import ID_BYTES_MAX

_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """The value as an error message quotes it: short, and printable whatever it is."""
    text = ascii(value[:_SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def check_text(field: str, value: object, low: int = 1, high: int = ID_BYTES_MAX) -> str:
    """`value`, if it is valid Unicode text of `low` to `high` bytes in UTF-8.

    Raises:
        InvalidArgument
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{field} must be text, not {shown(value)}", field=field, value=shown(value))
    if value.isascii():
        size = len(value)
    else:
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise InvalidArgument(f"{field} is not UTF-8: {shown(value)}", field=field, value=shown(value)) from None
    if not low <= size <= high:
        raise InvalidArgument(
            f"{field} has {size} bytes, allowed are {low} to {high}",
            field=field,
            limit=low if size < low else high,
            value=size,
        )
    return value


def check_int(field: str, value: object, low: int, high: int) -> int:
    """`value`, if it is an integer within the range.

    Raises:
        InvalidArgument
    """
    if value.__class__ is not int:
        raise InvalidArgument(f"{field} must be an integer, not {shown(value)}", field=field, value=shown(value))
    assert isinstance(value, int)
    if not low <= value <= high:
        limit = low if value < low else high
        raise InvalidArgument(
            f"{field} is {shown(value)}, allowed are {low} to {high}",
            field=field,
            limit=limit,
            value=value if abs(value) < 2**63 else shown(value),
        )
    return value


def check_optional_int(field: str, value: object, low: int, high: int) -> int | None:
    """`value`, if it is nil or an integer within the range.

    Raises:
        InvalidArgument
    """
    return None if value is None else check_int(field, value, low, high)


def check_flag(field: str, value: object) -> bool:
    """`value`, if it is true or false.

    Raises:
        InvalidArgument
    """
    if not isinstance(value, bool):
        raise InvalidArgument(f"{field} must be true or false, not {shown(value)}", field=field, value=shown(value))
    return value
