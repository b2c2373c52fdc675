"""Replays the events of one aggregate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import print_event, print_note
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, FromTime, OfShard, StoreAddress, ToTime, event_filters
from eventstore.errors import EventStoreError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventstore.client.blocking.store import BlockingStore
    from eventstore.model import Event


def read(
    aggregate_id: Annotated[str, typer.Argument(metavar="ID", help="The aggregate.")],
    from_version: Annotated[int, typer.Option(metavar="N", min=1, help="The first version.")] = 1,
    to_version: Annotated[int | None, typer.Option(metavar="N", min=0, help="The last version.")] = None,
    backwards: Annotated[bool, typer.Option("--backwards", help="Newest first.")] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Print at most this many events.")] = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    command: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Print the events of this command of the aggregate; exit code 1 without any."),
    ] = None,
    shard: OfShard = None,
    as_json: AsJson = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the data, as stored, each followed by a line break.")] = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Replay the events of one aggregate.

    Of a node's shards, #5@1 is event 5 of shard 1. --shard reads a shard's own aggregates, such as $audit.

    \b
    Example:
      eventstore read order-42 --from-version 3 --json
    """
    import sys
    from itertools import islice

    from eventstore import blocking
    from eventstore.cli.terminal.broker_connection import one_shard
    from eventstore.records.event_filter import event_filter

    if raw and as_json:
        raise InvalidArgument("--raw and --json exclude each other; give one of the two", field="raw")
    chosen = (from_version, to_version, backwards, limit, from_time, to_time)
    if command is not None and chosen != (1, None, False, None, None, None):
        raise InvalidArgument(
            "--command prints a whole commit; give no versions, times, --backwards or --limit with it", field="command"
        )
    passing = event_filter(**event_filters(None, None, None, from_time, to_time))
    found = False
    with blocking.connect(store, name="eventstore read", timeout=None) as connected:
        of = connected if shard is None else one_shard(connected, shard)
        if command is None:
            # The limit counts what is printed, so the server does not know it where it does not choose.
            most = limit if passing.everything else None
            events: Iterable[Event] = of.read(aggregate_id, from_version, to_version, backwards, most)
            events = islice(filter(passing.matches, events), limit)
        else:
            events = _events_of(of, aggregate_id, command)
        if not connected.shards:
            shard = None
        elif shard is None:
            shard = connected.cluster_map().owner_of(aggregate_id)
        for event in events:
            found = True
            if raw:
                sys.stdout.buffer.write(event.data + b"\n")
            else:
                print_event(event, shard, with_aggregate=False, as_json=as_json)
        if not found:
            which = "events" if passing.everything else "such events"
            print_note(f"no {which}: aggregate {aggregate_id!r} is at version {of.version(aggregate_id)}")


def _events_of(store: BlockingStore, aggregate_id: str, command_id: str) -> list[Event]:
    """Returns the events of a command, in order. Raises EventStoreError if it was never carried out."""
    from itertools import takewhile

    commit = store.find_command(aggregate_id, command_id)
    if commit is None:
        raise EventStoreError(
            f"aggregate {aggregate_id!r} has no event of command {command_id!r}: it was not carried out, changed nothing, "
            "or was sent to another aggregate"
        )
    newest_first = store.read(aggregate_id, to_version=commit.version, backwards=True)
    return list(takewhile(lambda event: event.command_id == command_id, newest_first))[::-1]
