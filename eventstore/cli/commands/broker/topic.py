"""Creates, lists, shows and deletes topics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.broker_connection import connect_to_broker
from eventstore.cli.terminal.output import print_json, print_line, print_note, print_table
from eventstore.cli.terminal.program import PlainCommand, command_group
from eventstore.cli.terminal.shard_rows import members_of, print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.errors import Unconsumed
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.protocol.broker_info import QueueInfo

topic = command_group("topic", "Topics of the broker.")
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]


@topic.command("create", cls=PlainCommand)
def create(
    name: TopicName,
    queues: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The number of queues, on each shard. [broker_default_queues of the server]"),
    ] = None,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Succeed if the topic exists.")] = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Create a topic.

    \b
    Example:
      eventstore topic create orders --queues 8
    """
    with connect_to_broker(store, "topic create") as connected:
        created = connected.broker.create_topic(name, queues, if_missing=if_missing)
        counts = _counts(connected.broker.queues(name))
    if as_json:
        several = {"shards": len(counts)} if len(counts) > 1 else {}
        print_json({"topic": name, "queues": max(counts), "created": created, **several})
        return
    print_line(f"topic {name} {'has' if created else 'already exists; it has'} {_queues(counts)}")
    if queues is not None and {*counts} != {queues}:
        print_note(f"not {queues:,}: `eventstore queue add` and `eventstore queue remove` change that")


@topic.command("list", cls=PlainCommand)
def list_(as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """List the topics, including the topics of retries and dead letters.

    \b
    Example:
      eventstore topic list --json
    """
    with connect_to_broker(store, "topic list") as connected:
        topics, shards = connected.broker.topics(), len(connected.shards)
    if as_json:
        several = {"shards": shards} if shards > 1 else {}
        print_json([{"topic": each.name, "queues": each.queues, "open_queues": each.open_queues, **several} for each in topics])
    elif topics:
        queues = f"queues of {shards} shards" if shards > 1 else "queues"
        print_table(None, ("topic", queues, "open"), [(each.name, each.queues, each.open_queues) for each in topics])
    else:
        print_line("no topics; `eventstore topic create NAME` creates one")


@topic.command("show", cls=PlainCommand)
def show(name: TopicName, as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """Show the queues of a topic with their messages and rates.

    \b
    Example:
      eventstore topic show orders
    """
    with connect_to_broker(store, "topic show") as connected:
        queues = connected.broker.queues(name)
    if as_json:
        print_json({"topic": name, "queues": [members_of(each) for each in queues]})
        return
    columns = ("queue", "state", "begin", "end", "durable", "messages", "written/s", "bytes/s", "read/s", "bytes/s")
    rows = [(*each[:4], each.durable, each.end - each.begin, *each[6:10]) for each in queues]
    print_rows(columns, rows, [each.shard for each in queues])


@topic.command("delete", cls=PlainCommand)
def delete(
    name: TopicName,
    ignore_unconsumed: Annotated[
        bool, typer.Option("--ignore-unconsumed", help="Also delete messages that groups have not consumed.")
    ] = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Delete a topic with all its messages.

    \b
    Example:
      eventstore topic delete orders
    """
    with connect_to_broker(store, "topic delete") as connected:
        try:
            connected.broker.delete_topic(name, ignore_unconsumed=ignore_unconsumed)
        except Unconsumed as error:
            error.message += "; nothing was deleted. Let it consume them, or use --ignore-unconsumed"
            raise
    if as_json:
        print_json({"topic": name, "deleted": True})
    else:
        print_line(f"topic {name} is deleted")


def _counts(queues: list[QueueInfo]) -> list[int]:
    """Returns the number of queues on each shard."""
    return [*Counter(each.shard for each in queues).values()]


def _queues(counts: list[int]) -> str:
    if len({*counts}) > 1:  # a change reached some shards alone; it says so when it is made again
        return f"{counted(sum(counts), 'queue')} on {len(counts)} shards, {min(counts)} to {max(counts)} on each"
    return counted(counts[0], "queue") + (f" on each of {len(counts)} shards" if len(counts) > 1 else "")
