"""Lists the message chunks, and where readers found what they read of each."""

from __future__ import annotations

from typing import Annotated

import typer

from eventstore.cli.terminal.broker_connection import connect_to_broker
from eventstore.cli.terminal.output import print_json, print_line
from eventstore.cli.terminal.shard_rows import members_of, print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress


def chunks(
    after: Annotated[
        int, typer.Option("--after", metavar="N", min=0, help="Only chunks with higher numbers; of one shard.")
    ] = 0,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """List the broker's message chunks, their rates and reads.

    The list begins with the oldest chunk and has up to 1,000. The columns "recent", "memory" and "file" count messages since
    the server was started: those that a reader got from the latest ones in memory, those from the mapped file or the page
    cache, and those read by position, which may have waited for the disk. The rates of reading are of the file.

    \b
    Example:
      eventstore chunks
    """
    with connect_to_broker(store, "chunks") as connected:
        found = connected.broker.chunks(after)
    if as_json:
        print_json([members_of(each) for each in found])
    elif found:
        columns = ("chunk", "state", "bytes", "mapped", "written/s", "bytes/s", "read/s", "bytes/s", "recent", "memory", "file")
        print_rows(columns, [each[:11] for each in found], [each.shard for each in found])
    else:
        print_line("no message was sent yet, or none after this chunk")
