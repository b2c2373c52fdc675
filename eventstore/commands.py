"""Commands as they travel, and what makes them of objects: the domain says how, when it is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from eventstore.errors import InvalidArgument
from eventstore.fields import shown


class RawCommand(NamedTuple):
    """A command as it travels: its type, the aggregate it is for, and its fields as JSON."""

    type: str
    aggregate_id: str
    payload: bytes


_encoders: list[Callable[[object], RawCommand]] = []


def encode_with(encoder: Callable[[object], RawCommand]) -> None:
    """Makes `raw_command` use this encoder for whatever is no `RawCommand`."""
    _encoders[:] = [encoder]


def raw_command(command: object) -> RawCommand:
    """The command as it travels.

    Raises:
        InvalidArgument: it is neither a `RawCommand` nor, as far as `eventstore.domain` is imported, a command of a domain.
        EventStoreError: what the domain says is wrong with it.
    """
    if isinstance(command, RawCommand):
        return command
    if not _encoders:
        raise InvalidArgument(
            f"{shown(command)} is no RawCommand, and eventstore.domain, which makes one of it, was not imported",
            field="command",
            value=shown(command),
        )
    return _encoders[0](command)
