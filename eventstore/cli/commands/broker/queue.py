"""Adds queues to a topic and removes them."""

from __future__ import annotations

from typing import Annotated

import typer

from eventstore.cli.terminal.broker_connection import connect_to_broker
from eventstore.cli.terminal.output import print_json, print_line
from eventstore.cli.terminal.program import PlainCommand, command_group
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.errors import InvalidArgument, Unconsumed
from eventstore.fields import counted

queue = command_group("queue", "The queues of a topic.")
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]


@queue.command("add", cls=PlainCommand, context_settings={"allow_extra_args": True})
def add(
    context: typer.Context,
    name: TopicName,
    count: Annotated[int, typer.Option(metavar="N", min=1, help="The number of queues.")] = 1,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Add queues to a topic. Keys map to other queues from then on.

    \b
    Example:
      eventstore queue add orders --count 4
    """
    if context.args:  # probably a count
        raise InvalidArgument(
            f"{context.args[0]!r} is not expected: new queues get the next numbers, and --count N sets how many",
            field="count",
        )
    with connect_to_broker(store, "queue add") as connected:
        added = connected.broker.add_queues(name, count)
        shards = len(connected.shards)
    if as_json:
        print_json({"topic": name, "added": added})
    else:
        where = f" on each of {shards} shards" if shards else ""
        print_line(f"{counted(len(added), 'queue')} added to topic {name}{where}: {', '.join(map(str, added))}")


@queue.command("remove", cls=PlainCommand)
def remove(
    name: TopicName,
    number: Annotated[int, typer.Argument(metavar="QUEUE", min=0, help="The number of the queue.")],
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Remove a queue that every group has consumed.

    It is closed for producers first. If a group has not consumed it, it stays closed; run the command again later.

    \b
    Example:
      eventstore queue remove orders 3
    """
    with connect_to_broker(store, "queue remove") as connected:
        connected.broker.close_queue(name, number)
        try:
            connected.broker.remove_queue(name, number)
        except Unconsumed as error:
            error.message += (
                "; it accepts no more messages. Run this again when they are consumed (see `eventstore group show`)"
            )
            raise
    if as_json:
        print_json({"topic": name, "queue": number, "removed": True})
    else:
        print_line(f"queue {number} of topic {name} is removed")
