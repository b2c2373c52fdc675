"""Replays the events of one aggregate."""

from __future__ import annotations

from typing import Annotated

import typer

from eventstore.cli.terminal.output import print_event, print_note
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.errors import InvalidArgument


def read(
    aggregate_id: Annotated[str, typer.Argument(metavar="ID", help="The aggregate.")],
    from_version: Annotated[int, typer.Option(metavar="N", min=1, help="The first version.")] = 1,
    to_version: Annotated[int | None, typer.Option(metavar="N", min=0, help="The last version.")] = None,
    backwards: Annotated[bool, typer.Option("--backwards", help="Newest first.")] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="Print at most this many events.")] = None,
    as_json: AsJson = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the data, as stored, each followed by a line break.")] = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Replay the events of one aggregate.

    \b
    Example:
      eventstore read order-42 --from-version 3 --json
    """
    import sys

    from eventstore import blocking
    from eventstore.cli.transfer.event_lines import format_event

    if raw and as_json:
        raise InvalidArgument("--raw and --json are different forms of the output; give one of them", field="raw")
    found = False
    with blocking.connect(store, name="eventstore read") as connected:
        for event in connected.read(aggregate_id, from_version, to_version, backwards, limit):
            found = True
            if raw:
                sys.stdout.buffer.write(event.data + b"\n")
            elif as_json:
                print(format_event(event))
            else:
                print_event(event, with_aggregate=False)
        if not found:
            print_note(f"no events: aggregate {aggregate_id!r} is at version {connected.version(aggregate_id)}")
