"""Encodes an error as values of a payload that are safe to send, and decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from eventstore.errors import EventStoreError, ProtocolError, from_wire, to_wire
from eventstore.flat import Scalar
from eventstore.protocol.limits import ERROR_TEXT_BYTES_MAX


def error_values(error: EventStoreError, text_bytes_max: int = ERROR_TEXT_BYTES_MAX) -> list[Scalar]:
    """Returns the values of `errors.to_wire`; text is cut to the limit, and escaped if it is not valid Unicode, since an
    error may quote any input.
    """
    return [_safe_value(value, text_bytes_max) for value in to_wire(error)]


def _safe_value(value: Scalar, text_bytes_max: int) -> Scalar:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")[:text_bytes_max].decode("utf-8", "ignore")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


def error_of(values: Sequence[Scalar]) -> EventStoreError:
    """Decodes `error_values`.

    Raises:
        ProtocolError: the values are not those of an error.
    """
    malformed = len(values) < 2 or len(values) % 2 or not isinstance(values[0], int)
    if malformed or any(isinstance(value, bytes) for value in values):
        raise ProtocolError("an error is code (uint), message (str) and pairs of names and scalars")
    return from_wire(cast("list[str | int | bool | None]", list(values)))
