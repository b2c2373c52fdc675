"""Checks single values from outside; an error names the field, the limit and the refused value.

The embedded store, the clients and the server share these checks, so a wrong argument is refused in the same words everywhere.
"""

from __future__ import annotations

import math
from urllib.parse import urlsplit

from eventstore.errors import InvalidArgument
from eventstore.model import ID_BYTES_MAX

RESERVED = "$"
_SHOWN_CHARACTERS = 80
_AS_FLOAT = 1e300  # an integer of JSON may be too large for a float
_DIGITS_MAX = 19  # of a signed number of 64 bits; `int` raises ValueError at more than 4,300


def shown(value: object) -> str:
    """Returns the value as an error message quotes it: short and printable, even if its `__repr__` raises."""
    try:
        text = ascii(value[:_SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def shown_url(text: str) -> str:
    """Returns a URL as it may be shown: without user and password, and without path and query, which often are a secret."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "an address that is none"
    if not parts.scheme or not host:
        return "an address without a host"
    named = f"[{host}]" if ":" in host else host
    rest = "/…" if parts.path.strip("/") or parts.query or parts.fragment else ""
    return escaped(f"{parts.scheme}://{named}{'' if port is None else f':{port}'}{rest}")


def without_password(text: str) -> str:
    """Returns what should have been an address, for the error that it is not: one with a user or password without them."""
    return shown_url(text) if "@" in text else text


def encodable(text: str) -> str:
    """Returns the text with halves of characters (lone surrogates) as escapes: no encoding holds them."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def size_text(size: float) -> str:
    """Returns bytes for people, such as 1.2 GB."""
    for unit, factor in (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} B"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Returns `1 file` or `2 files`. `many` is the plural, unless it is `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def for_people(value: object) -> str:
    """Formats a value for people: numbers with separators, "–" for an empty one."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def check_text(field: str, value: object, low: int = 1, high: int = ID_BYTES_MAX) -> str:
    """Returns `value` if it is valid Unicode text of `low` to `high` bytes in UTF-8.

    Raises:
        InvalidArgument
    """
    if value.__class__ is not str and not isinstance(value, str):  # most are a plain one
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
    """Returns `value` if it is an integer within the range.

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
    """Returns `value` if it is nil or an integer within the range.

    Raises:
        InvalidArgument
    """
    return None if value is None else check_int(field, value, low, high)


def check_number(field: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """Returns `value` if it is a number within the range.

    Raises:
        InvalidArgument
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InvalidArgument(f"{field} must be a number, not {shown(value)}", field=field, value=shown(value))
    if not low <= value <= high:
        limit = low if value < low else high
        given = f"{value:g}" if abs(value) < _AS_FLOAT else shown(value)
        raise InvalidArgument(
            f"{field} is {given}, allowed are {low:g} to {high:g}", field=field, limit=f"{limit:g}", value=given
        )
    return value


def read_number(text: str) -> int | None:
    """Returns the number that a text of 1 to 19 digits is; None: it is something else."""
    return int(text) if len(text) <= _DIGITS_MAX and text.isdecimal() and text.isascii() else None


def check_flag(field: str, value: object) -> bool:
    """Returns `value` if it is true or false.

    Raises:
        InvalidArgument
    """
    if value is not True and value is not False:
        raise InvalidArgument(f"{field} must be true or false, not {shown(value)}", field=field, value=shown(value))
    return value


def reserved_id_refused(aggregate_id: str) -> InvalidArgument:
    """Returns the error for a caller's commit or command on an id that begins with `$`."""
    return InvalidArgument(
        f"aggregate_id {shown(aggregate_id)} is reserved: ids that begin with {RESERVED} are the server's own; choose another",
        field="aggregate_id",
        value=shown(aggregate_id),
    )


def escaped(text: str) -> str:
    """Returns the text as one line that is safe to print: characters that are not printable (control characters, line breaks,
    marks that change the direction of text) are spelled as in Python, `\\x1b`.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
