"""`eventstore send`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from eventstore.cli.options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.cli.output import print_json, print_line
from eventstore.errors import InvalidArgument, Rejected

if TYPE_CHECKING:
    from eventstore.commands import RawCommand
    from eventstore.model import Committed, Unchanged

_QUOTED: Final = """quote it for the shell, as in '{"account": "acc-1", "cents": 100}'"""


def send(
    command_type: Annotated[str, typer.Argument(metavar="TYPE", help="The type of the command.")],
    fields: Annotated[str, typer.Argument(metavar="JSON|-", help="Its fields; - reads them from standard input.")],
    domain: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Check it with this domain, such as bank:app, before it is sent."),
    ] = None,
    aggregate_id: Annotated[
        str | None, typer.Option("--aggregate", metavar="ID", help="Whom it is for; needed where no domain says it.")
    ] = None,
    command_id: Annotated[
        str | None, typer.Option(metavar="ID", help="A command sent again takes effect once. [a fresh one]")
    ] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Send a command to a server or worker that runs a domain.

    What it changed is durable when this ends. A command that is rejected changes nothing; the exit code is 1 then.

    \b
    Example:
      eventstore send --domain bank:app Deposit '{"account": "acc-1", "cents": 100}' --command-id c-1
    """
    from eventstore import blocking

    text = sys.stdin.read() if fields == "-" else fields
    command = (
        _unchecked(command_type, text, aggregate_id) if domain is None else _checked(domain, command_type, text, aggregate_id)
    )
    with blocking.connect(store, name="eventstore send") as connected:
        try:
            outcome = connected.send(command, command_id)
        except Rejected as error:
            raise _with_reason(error) from None
    _print_outcome(outcome, as_json)


def _checked(domain: str, command_type: str, text: str, aggregate_id: str | None) -> RawCommand:
    """The command as its class says it."""
    from eventstore.domain.loading import load

    described = load(domain).handler(command_type).command
    payload = text.strip().encode()
    if aggregate_id is None:
        aggregate_id = described.aggregate_id(described.codec.decode(payload))
    return described.encode(described.decode(payload, aggregate_id))


def _unchecked(command_type: str, text: str, aggregate_id: str | None) -> RawCommand:
    """The command as it was typed: whoever handles it checks it."""
    from eventstore.cli.event_lines import checked_json
    from eventstore.commands import RawCommand

    if aggregate_id is None:
        raise InvalidArgument(
            "nothing says which aggregate the command is for: give --aggregate ID, or --domain MODULE:NAME, which knows",
            field="aggregate_id",
        )
    try:
        return RawCommand(command_type, aggregate_id, checked_json(text))
    except ValueError as error:
        raise InvalidArgument(f"the fields are not JSON: {error}; {_QUOTED}", field="fields") from None


def _with_reason(error: Rejected) -> Rejected:
    """The same with its reason, the word for programs, in the text."""
    return Rejected(f"rejected ({error.reason}): {error.message}", **error.fields)


def _print_outcome(outcome: Committed | Unchanged, as_json: bool) -> None:
    from eventstore.model import Committed

    if as_json:
        print_json({"status": _status(outcome), **outcome._asdict()})
    elif not isinstance(outcome, Committed):
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
