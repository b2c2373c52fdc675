"""Raw commands, as clients send them; the domain registers how its command objects are encoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from eventstore.errors import InvalidArgument
from eventstore.fields import shown


class RawCommand(NamedTuple):
    """A command on the wire: its type, the id of its aggregate, and its fields as JSON."""

    type: str
    aggregate_id: str
    payload: bytes


_encoders: list[Callable[[object], RawCommand]] = []


def encode_with(encoder: Callable[[object], RawCommand]) -> None:
    """Registers the encoder that `raw_command` uses for all other objects."""
    _encoders[:] = [encoder]


def raw_command(command: object) -> RawCommand:
    """Returns the command as a `RawCommand`.

    Raises:
        InvalidArgument: it is neither a `RawCommand` nor a command of the domain, or `eventstore.domain` was not imported.
        EventStoreError: the domain refuses it.
    """
    if isinstance(command, RawCommand):
        return command
    if not _encoders:
        raise InvalidArgument(
            f"{shown(command)} is not a RawCommand, and eventstore.domain, which would encode it, was not imported",
            field="command",
            value=shown(command),
        )
    return _encoders[0](command)
