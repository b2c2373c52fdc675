"""Appends one event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import print_json, print_line
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress, shard_member
from eventstore.errors import InvalidArgument
from eventstore.fields import read_number, shown

if TYPE_CHECKING:
    from eventstore.model import ExpectedVersion, NewEvent


def append(
    aggregate_id: Annotated[str, typer.Argument(metavar="ID", help="The aggregate.")],
    event_type: Annotated[str, typer.Option("--type", metavar="TYPE", help="The type of the event.")],
    data: Annotated[str, typer.Option(metavar="JSON|-", help="Its data; - reads it from standard input.")],
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="Its metadata.")] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="What it is about, such as course:c1; repeat it for more.")
    ] = None,
    expected_version: Annotated[
        str,
        typer.Option(metavar="N|any|exists|new", help="The version the aggregate must have; new: it must not exist."),
    ] = "any",
    command_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Repeating a command writes nothing. [a new UUID]")
    ] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Append one event to an aggregate.

    It is durable when the command ends.

    \b
    Example:
      eventstore append order-42 --type OrderPlaced --data '{"total": 12}' --expected-version new --command-id c-1
    """
    import sys

    from eventstore import blocking
    from eventstore.cli.transfer.event_lines import with_tags
    from eventstore.tags import checked_tags

    event = with_tags(_event(event_type, sys.stdin.read() if data == "-" else data, metadata), checked_tags(tags or ()))
    expected = _expected(expected_version)
    with blocking.connect(store, name="eventstore append", timeout=None) as connected:
        done = connected.append(aggregate_id, [event], expected, command_id)
        shard = shard_member(connected, aggregate_id) if as_json else {}
    if as_json:
        print_json({name: getattr(done, name) for name in ("aggregate_id", "version", "sequence", "duplicate")} | shard)
    elif done.duplicate:
        print_line(f"{aggregate_id}: this command was appended before, up to version {done.version}; nothing was written")
    else:
        print_line(f"{aggregate_id} is at version {done.version} (sequence {done.sequence})")


def _event(event_type: str, data: str, metadata: str | None) -> NewEvent:
    from eventstore.cli.transfer.event_lines import checked_json, json_event

    for field, text in (("data", data), ("metadata", "null" if metadata is None else metadata)):
        try:
            checked_json(text)
        except ValueError as error:
            hint = f"quote it for the shell, as in --{field} '{{\"total\": 12}}'"
            raise InvalidArgument(f"{field} is not JSON: {error}; {hint}", field=field) from None
    return json_event(event_type, data, metadata)


def _expected(text: str) -> ExpectedVersion:
    from eventstore.model import ANY, EXISTS

    named: dict[str, ExpectedVersion] = {"any": ANY, "exists": EXISTS, "new": 0}
    if text in named:
        return named[text]
    number = read_number(text)
    if number is None:
        raise InvalidArgument(
            f"--expected-version is {shown(text)}, allowed are a number from 0, any, exists and new",
            field="expected_version",
            value=shown(text),
        )
    return number
