"""Sends a command to a domain."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from eventstore.cli.terminal.output import print_json, print_line
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress, shard_member
from eventstore.errors import InvalidArgument, Rejected

if TYPE_CHECKING:
    from eventstore.commands import RawCommand
    from eventstore.model import Committed, Unchanged

_QUOTED: Final = """quote it for the shell, as in '{"account": "acc-1", "cents": 100}'"""


def send(
    command_type: Annotated[str, typer.Argument(metavar="TYPE", help="The type of the command.")],
    fields: Annotated[str, typer.Argument(metavar="JSON|-", help="The fields; - reads them from standard input.")],
    domain: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Check the command with this domain, such as bank:app, before sending it."),
    ] = None,
    aggregate_id: Annotated[
        str | None, typer.Option("--aggregate", metavar="ID", help="The aggregate; required without --domain.")
    ] = None,
    command_id: Annotated[
        str | None, typer.Option(metavar="ID", help="A command that is sent again takes effect once. [a new UUID]")
    ] = None,
    metadata: Annotated[
        str | None, typer.Option(metavar="JSON", help="An object that is stored with each event of the command.")
    ] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Send a command to a server or worker that runs a domain.

    Its changes are durable when this ends. A rejected command changes nothing; the exit code is 1 then.

    \b
    Example:
      eventstore send --domain bank:app Deposit '{"account": "acc-1", "cents": 100}' --command-id c-1
    """
    from eventstore import blocking

    text = sys.stdin.read() if fields == "-" else fields
    command = (
        _unchecked(command_type, text, aggregate_id) if domain is None else _checked(domain, command_type, text, aggregate_id)
    )
    parsed = None if metadata is None else _metadata(metadata)
    with blocking.connect(store, name="eventstore send", timeout=None) as connected:
        try:
            outcome = connected.send(command, command_id, metadata=parsed)
        except Rejected as error:
            raise _with_reason(error) from None
        shard = shard_member(connected, command.aggregate_id) if as_json and outcome.sequence is not None else {}
    if as_json:
        print_json({"status": _status(outcome), **outcome._asdict(), **shard})
    else:
        _print_outcome(outcome)


def _checked(domain: str, command_type: str, text: str, aggregate_id: str | None) -> RawCommand:
    """Returns the command as checked and encoded by its class."""
    from eventstore.domain.import_path import load

    described = load(domain).handler(command_type).command
    payload = text.strip().encode()
    if aggregate_id is None:
        aggregate_id = described.aggregate_id(described.codec.decode(payload))
    return described.encode(described.decode(payload, aggregate_id))


def _unchecked(command_type: str, text: str, aggregate_id: str | None) -> RawCommand:
    """Returns the command as it was typed; its handler checks it."""
    from eventstore.cli.transfer.event_lines import checked_json
    from eventstore.commands import RawCommand

    if aggregate_id is None:
        raise InvalidArgument(
            "the command has no aggregate: give --aggregate ID, or --domain MODULE:NAME to derive it",
            field="aggregate_id",
        )
    try:
        return RawCommand(command_type, aggregate_id, checked_json(text))
    except ValueError as error:
        raise InvalidArgument(f"the fields are not JSON: {error}; {_QUOTED}", field="fields") from None


def _metadata(text: str) -> dict[str, object]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the metadata are not JSON: {error}; {_QUOTED}", field="metadata") from None
    if not isinstance(given, dict):
        raise InvalidArgument(f"the metadata are {given!r:.80}, not a JSON object; {_QUOTED}", field="metadata")
    return given


def _with_reason(error: Rejected) -> Rejected:
    """Returns the error with its reason, the word for programs, in the text."""
    return Rejected(f"rejected ({error.reason}): {error.message}", **error.fields)


def _print_outcome(outcome: Committed | Unchanged) -> None:
    from eventstore.model import Committed

    if not isinstance(outcome, Committed):
        print_line(f"{outcome.aggregate_id}: nothing had to change")
    elif outcome.duplicate:
        print_line(
            f"{outcome.aggregate_id}: this command was handled before, up to version {outcome.version}; nothing was written"
        )
    else:
        print_line(f"{outcome.aggregate_id} is at version {outcome.version} (sequence {outcome.sequence})")


def _status(outcome: Committed | Unchanged) -> str:
    from eventstore.model import Committed

    return "committed" if isinstance(outcome, Committed) else "unchanged"
