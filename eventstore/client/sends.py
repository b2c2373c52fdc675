"""Commands in batches (see `batches`): how they travel, and what their outcomes mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from eventstore.commands import raw_command
from eventstore.errors import EventStoreError
from eventstore.fields import check_text
from eventstore.flat import Scalar
from eventstore.model import Committed, Unchanged, fresh_command_id
from eventstore.protocol.answers import OUTCOME_VALUES, decode_command_outcome
from eventstore.protocol.codes import OutcomeKind
from eventstore.protocol.request_codec import encode_send
from eventstore.protocol.requests import WireCommand, check_command

_ENVELOPE_BYTES: Final = 20  # the marks and lengths of the four values


class Commands:
    """A `batches.Kind`."""

    name = "commands"
    refused = int(OutcomeKind.REFUSED)

    def size_bytes(self, row: WireCommand) -> int:
        return len(row[3]) + 4 * (len(row[0]) + len(row[1]) + len(row[2])) + _ENVELOPE_BYTES

    def encode(self, request_id: int, rows: Sequence[WireCommand]) -> bytes:
        return encode_send(request_id, list(chain.from_iterable(rows)))

    def outcomes(self, rows: Sequence[WireCommand], values: Sequence[Scalar]) -> list[Committed | Unchanged | EventStoreError]:
        triples = zip(*(values[place::OUTCOME_VALUES] for place in range(OUTCOME_VALUES)), strict=True)
        return [decode_command_outcome(row[1], *triple) for row, triple in zip(rows, triples, strict=True)]


COMMANDS: Final = Commands()


def encode_command(command: object, command_id: str | None) -> WireCommand:
    """The command's four values. Without a command id it gets a fresh one.

    Raises:
        InvalidArgument: it breaks a limit; names field, limit and value. Or it is no command.
        PayloadInvalid: a field holds what its type does not say.
    """
    name, aggregate_id, payload = raw_command(command)
    if command_id is None:
        command_id = fresh_command_id()
    else:
        check_text("command_id", command_id)
    row = (name, aggregate_id, command_id, payload)
    check_command(row)
    return row


def encoded_or_refused(commands: Iterable[object | tuple[object, str]]) -> list[WireCommand | EventStoreError]:
    """As `encode_command`, for each of many: commands, or pairs of a command and its id. What is wrong with one is its
    outcome, and nobody else's."""
    encoded: list[WireCommand | EventStoreError] = []
    for each in commands:
        command, command_id = each if each.__class__ is tuple else (each, None)
        try:
            encoded.append(encode_command(command, command_id))
        except EventStoreError as error:
            encoded.append(error)
    return encoded
