"""Turns answers into what a call returns: a version, a command's outcome, rows, messages.

Each reader takes an answered `Call`. It raises the server's error, or ProtocolError if the answer has another form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast, get_args, get_type_hints

from eventstore.client.session.calls import Call
from eventstore.errors import ProtocolError
from eventstore.flat import Scalar
from eventstore.model import Committed
from eventstore.protocol.handshake import read_map
from eventstore.protocol.requests import FindCommand
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.message import Message, decode_messages

T = TypeVar("T")
Row = TypeVar("Row")


def read_nothing(call: Call[Any]) -> None:
    """Reads the answer of a request that returns nothing."""
    call.ok()


def read_values(call: Call[Any]) -> Sequence[Scalar]:
    """Reads an answer's values, unchanged."""
    return call.ok().values


def read_version(call: Call[Any]) -> int:
    """Reads the answer to VERSION."""
    return read_one(int)(call)


def read_command(call: Call[Any]) -> Committed | None:
    """Reads the answer to FIND_COMMAND; None if the command was not appended."""
    match call.ok().values:
        case ():
            return None
        case (int(version), int(sequence)) | (int(version), int(sequence), None):
            return Committed(cast(FindCommand, call.request).aggregate_id, version, sequence, True, None)
        case (int(version), int(sequence), int(durability)):
            return Committed(cast(FindCommand, call.request).aggregate_id, version, sequence, True, durability)
        case other:
            raise ProtocolError(f"FIND_COMMAND was answered by {other!r:.100}, not by version and sequence or nothing")


def read_stats(call: Call[Any]) -> dict[str, Scalar]:
    """Reads the answer to STATS: names and values, alternating."""
    values = call.ok().values
    if len(values) % 2:
        raise ProtocolError(f"STATS was answered by {len(values)} values, not by pairs")
    return {str(name): value for name, value in zip(values[0::2], values[1::2], strict=True)}


def read_cluster(call: Call[Any]) -> ClusterMap:
    """Reads the answer to MAP."""
    return read_map(call.ok().values)


def read_one(kind: type[T]) -> Callable[[Call[Any]], T]:
    """Returns a reader of answers that are one value of this type."""

    def read(call: Call[Any]) -> T:
        values = call.ok().values
        if len(values) != 1 or type(values[0]) is not kind:
            raise ProtocolError(f"{_name(call)} was answered by {values!r:.100}, not by one {kind.__name__}")
        return values[0]

    return read


def read_list(kind: type[T]) -> Callable[[Call[Any]], list[T]]:
    """Returns a reader of answers that are any number of values of this type."""

    def read(call: Call[Any]) -> list[T]:
        return rows(lambda value: value, ((kind,),), call.ok().values, _name(call))

    return read


def read_rows(row: type[Row]) -> Callable[[Call[Any]], list[Row]]:
    """Returns a reader of answers that are rows: the fields of this NamedTuple, in order."""

    def read(call: Call[Any]) -> list[Row]:
        return rows(row, field_types(row), call.ok().values, _name(call))

    return read


def read_row(row: type[Row]) -> Callable[[Call[Any]], Row]:
    """Returns a reader of answers that are one row."""

    def read(call: Call[Any]) -> Row:
        found = read_rows(row)(call)
        if len(found) != 1:
            raise ProtocolError(f"{_name(call)} was answered by {len(found)} rows, not by one")
        return found[0]

    return read


def read_messages(call: Call[Any]) -> list[Message]:
    """Reads an answer of message records."""
    answer = call.messages()
    return decode_messages(bytes(answer.records), answer.count)


def read_found(call: Call[Any]) -> tuple[list[Message], int]:
    """Reads an answer to FIND_KEY: the messages, and the position before which to continue; 0: nothing is left."""
    return read_messages(call), call.messages().next or 0


def read_message(call: Call[Any]) -> Message | None:
    """Reads an answer of one message record at most."""
    return next(iter(read_messages(call)), None)


def rows(make: Callable[..., Row], types: Sequence[tuple[type, ...]], values: Sequence[Scalar], name: str) -> list[Row]:
    """Cuts values into rows of `len(types)`; `types` are those allowed in each column. Raises ProtocolError."""
    width = len(types)
    columns = [values[place::width] for place in range(width)]
    fits = all({*map(type, column)} <= {*allowed} for column, allowed in zip(columns, types, strict=True))
    if len(values) % width or not fits:
        raise ProtocolError(f"{name} was answered by {len(values)} values that are not rows of {width}: {values!r:.100}")
    return [make(*each) for each in zip(*columns, strict=True)]


def field_types(row: type[Any]) -> tuple[tuple[type, ...], ...]:
    """Returns the types each field of a NamedTuple may have. One with a default is not part of an answer."""
    sent = get_type_hints(row).items()
    return tuple(get_args(hint) or (hint,) for name, hint in sent if name not in row._field_defaults)


def _name(call: Call[Any]) -> str:
    return type(call.request).__name__
