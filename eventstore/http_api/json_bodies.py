"""JSON from outside: what Python would read as something else than was sent is refused."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, Final, NoReturn

from eventstore.errors import InvalidArgument
from eventstore.fields import shown
from eventstore.json_values import Json


def parsed_body(body: bytes) -> Json:
    """Returns the value that a body of JSON holds.

    Raises:
        InvalidArgument: it is not JSON, a name occurs twice in an object, a number would be rounded, or a text has half of a
            surrogate pair, which no encoding holds.
    """
    try:
        value = json.loads(body.decode(), **_STRICT)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}", field="body") from None


def members(value: object, where: str, known: frozenset[str] | None = None) -> dict[str, Json]:
    """Returns the members of an object. `where`: which one, for errors. `known`: the names that are allowed; None: all.

    Raises:
        InvalidArgument: it is not an object, or has a member that is not `known`.
    """
    if not isinstance(value, dict):
        raise InvalidArgument(f"{where} must be an object, not {shown(value)}", field=where, value=shown(value))
    for name in [] if known is None else sorted(value.keys() - known):
        what = f"{where} has the member {shown(name)}, allowed are {', '.join(sorted(known or ()))}"
        raise InvalidArgument(what, field=where, value=shown(name))
    return value


def elements(value: object, where: str, most: int) -> list[Json]:
    """Returns the elements of an array. Raises InvalidArgument: it is not an array, or has more than `most`."""
    if not isinstance(value, list):
        raise InvalidArgument(f"{where} must be an array, not {shown(value)}", field=where, value=shown(value))
    if len(value) > most:
        what = f"{where} has {len(value)} elements, the limit is {most}"
        raise InvalidArgument(what, field=where, limit=most, value=len(value))
    return value


_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the name {twice!a:.80} twice")
    return found


def _number(text: str) -> float:
    number = float(text)
    if Decimal(text) != Decimal(repr(number)):
        raise ValueError(f"the number {text:.40} would be rounded; send it as text")
    return number


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_STRICT: Final[dict[str, Any]] = {"object_pairs_hook": _object, "parse_float": _number, "parse_constant": _constant}
