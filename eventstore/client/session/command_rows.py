"""Commands in batches (see `batches`): their rows, frames and outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from eventstore.command_metadata import encode_metadata
from eventstore.commands import raw_command
from eventstore.errors import EventStoreError
from eventstore.fields import check_text
from eventstore.flat import Scalar
from eventstore.model import Committed, Unchanged, fresh_command_id
from eventstore.protocol.answers import OUTCOME_VALUES, decode_command_outcome
from eventstore.protocol.codes import OutcomeKind
from eventstore.protocol.request_codec import encode_send
from eventstore.protocol.requests import WireCommand, check_command

_ENVELOPE_BYTES: Final = 25  # the marks and lengths of the five values


class CommandRows:
    """The `RowKind` of commands."""

    name = "commands"
    refused = int(OutcomeKind.REFUSED)

    def size_bytes(self, row: WireCommand) -> int:
        return len(row[3]) + len(row[4] or b"") + 4 * (len(row[0]) + len(row[1]) + len(row[2])) + _ENVELOPE_BYTES

    def encode(self, request_id: int, rows: Sequence[WireCommand]) -> bytes:
        return encode_send(request_id, list(chain.from_iterable(rows)))

    def outcomes(
        self, rows: Sequence[WireCommand], values: Sequence[Scalar], durability: int | None
    ) -> list[Committed | Unchanged | EventStoreError]:
        triples = zip(*(values[place::OUTCOME_VALUES] for place in range(OUTCOME_VALUES)), strict=True)
        return [
            decode_command_outcome(row[1], kind, first, second, durability)
            for row, (kind, first, second) in zip(rows, triples, strict=True)
        ]


COMMANDS: Final = CommandRows()


def encode_command(command: object, command_id: str | None, metadata: Mapping[str, object] | None = None) -> WireCommand:
    """Returns the command's five values. Generates a command id if none is given.

    Raises:
        InvalidArgument: it breaks a limit (the error has field, limit and value), or it is not a command.
        PayloadInvalid: a field has a value of another type than declared.
    """
    name, aggregate_id, payload = raw_command(command)
    if command_id is None:
        command_id = fresh_command_id()
    else:
        check_text("command_id", command_id)
    row = (name, aggregate_id, command_id, payload, None if metadata is None else encode_metadata(metadata))
    check_command(row)
    return row


def encode_commands(commands: Iterable[object]) -> list[WireCommand | EventStoreError]:
    """As `encode_command`, for commands, or tuples of a command, its id and its metadata. An error is the outcome of its
    command alone."""
    encoded: list[WireCommand | EventStoreError] = []
    for each in commands:
        given: Any = each if each.__class__ is tuple else (each, None)
        try:
            encoded.append(encode_command(*given))
        except EventStoreError as error:
            encoded.append(error)
    return encoded
