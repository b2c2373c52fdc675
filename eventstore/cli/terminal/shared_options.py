"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventstore.errors import InvalidArgument
from eventstore.fields import read_number

if TYPE_CHECKING:
    from datetime import datetime

    from eventstore.client.blocking.store import BlockingStore
    from eventstore.position import Position

DEFAULT_STORE = "tcp://127.0.0.1:7701"

StoreAddress = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="tcp://HOST:PORT",
        envvar="EVENTSTORE_STORE",
        help="The address of the server; for a cluster, the addresses of several nodes with commas between them.",
    ),
]
Wait = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0, help="How long to try to reach the server; inf: without a limit."),
]
WAIT_SECONDS = 30.0  # as long as a client tries to reconnect
ShowProgress = Annotated[bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar. [on a terminal]")]
OfShard = Annotated[int | None, typer.Option("--shard", metavar="N", min=0, help="Of several shards this one alone. [all]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
EventForm = Annotated[
    str,
    typer.Option("--format", metavar="lines|cloudevents", help="Of each line: our own, or a CloudEvent in its JSON format."),
]
After = Annotated[
    str,
    typer.Option("--after", metavar="SEQUENCE", help="Only events after this sequence, or position; of shards a position."),
]
AtPosition = Annotated[
    bool, typer.Option("--position", help="At the end print the position to standard error: --after continues there.")
]
Types = Annotated[
    list[str] | None, typer.Option("--type", metavar="TYPE", help="Only events of this type; may be given several times.")
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="Only events with this tag; repeat it for all of several."),
]
Prefix = Annotated[str | None, typer.Option("--prefix", metavar="TEXT", help="Only aggregates whose id begins with this text.")]
Aggregate = Annotated[str | None, typer.Option("--aggregate", metavar="ID", help="Only this aggregate.")]
FromTime = Annotated[
    str | None, typer.Option("--from-time", metavar="TIME", help="Only events of this time or later; ISO 8601 with a zone.")
]
ToTime = Annotated[
    str | None, typer.Option("--to-time", metavar="TIME", help="Only events of this time or earlier; ISO 8601 with a zone.")
]
DataFolder = Annotated[Path, typer.Argument(metavar="DATA", help="The data folder of a store.")]


def parse_place(option: str, text: str) -> int | Position:
    """Reads a sequence or a position. Raises InvalidArgument."""
    from eventstore.position import Position

    sequence = read_number(text)
    if sequence is not None:
        return sequence
    if not text.startswith("p"):
        raise InvalidArgument(
            f"{option} is {text!r:.80}, expected a sequence, such as 0, or a position, as --position prints it",
            field=option.removeprefix("--"),
        )
    return Position.parse(text)


def last_sequence(store: BlockingStore, begin: int = 0) -> int:
    """Returns the sequence that a store ends at; 0 of several shards. Raises Diverged if a reader is to begin after it."""
    from eventstore.event_identity import check_start

    last = store.stats().get("events")
    if not isinstance(last, int):
        return 0
    check_start(begin, last)
    return last


def event_filters(
    types: list[str] | None,
    prefix: str | None,
    aggregate: str | None,
    from_time: str | None,
    to_time: str | None,
    tags: list[str] | None = None,
) -> dict[str, Any]:
    """Returns the options as the filters that `read_all` and `subscribe` take. Raises InvalidArgument."""
    from eventstore.query import Query

    first = None if from_time is None else parse_time("--from-time", from_time)
    last = None if to_time is None else parse_time("--to-time", to_time)
    if first is not None and last is not None and first > last:
        raise InvalidArgument(f"--from-time {from_time} is after --to-time {to_time}: no event is", field="from_time")
    return {
        "types": None if tags else types or None,
        "query": Query(types or (), tags) if tags else None,
        "aggregate_prefix": prefix,
        "aggregate_id": aggregate,
        "from_time": first,
        "to_time": last,
    }


def shard_member(store: BlockingStore, aggregate_id: str) -> dict[str, int]:
    """Returns the member for JSON that says in which of several shards the sequences of an aggregate count; none of one."""
    return {"shard": store.cluster_map().owner_of(aggregate_id)} if store.shards else {}


def parse_time(option: str, text: str) -> datetime:
    """Reads a time in ISO 8601 with a zone. Raises InvalidArgument."""
    from datetime import datetime

    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{option} is {text!r}, expected ISO 8601 such as 2026-01-31T12:00:00Z", field=option, value=text
        ) from None
    if time.tzinfo is None:
        raise InvalidArgument(f"{option} {text!r} has no time zone, such as Z or +01:00", field=option, value=text)
    return time
