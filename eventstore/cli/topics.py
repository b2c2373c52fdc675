"""`eventstore topic …` and `eventstore queue …`."""

from __future__ import annotations

from typing import Annotated

import typer

from eventstore.cli.broker_connection import connect_to_broker
from eventstore.cli.options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.cli.output import counted, print_json, print_line, print_note, print_table
from eventstore.cli.usage import Command, group_of_commands
from eventstore.errors import InvalidArgument, Unconsumed

topic = group_of_commands("topic")
queue = group_of_commands("queue")
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]


@topic.command("create", cls=Command)
def create(
    name: TopicName,
    queues: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many. [as the server is set, 4]")] = None,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="One that is there already is as good.")] = False,
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
        count = len(connected.broker.queues(name))
    if as_json:
        print_json({"topic": name, "queues": count, "created": created})
        return
    print_line(f"topic {name} {'has' if created else 'was there; it has'} {counted(count, 'queue')}")
    if queues not in (None, count):
        print_note(f"not {queues:,}: `eventstore queue add` and `eventstore queue remove` change that")


@topic.command("list", cls=Command)
def list_(as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """List the topics, also those of retries and dead letters.

    \b
    Example:
      eventstore topic list --json
    """
    with connect_to_broker(store, "topic list") as connected:
        topics = connected.broker.topics()
    if as_json:
        print_json([{"topic": each.name, "queues": each.queues, "open_queues": each.open_queues} for each in topics])
    elif topics:
        print_table(None, ("topic", "queues", "open"), [(each.name, each.queues, each.open_queues) for each in topics])
    else:
        print_line("no topics; `eventstore topic create NAME` makes one")


@topic.command("show", cls=Command)
def show(name: TopicName, as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """Show the queues of a topic.

    What they hold, and how much is written and read a second.

    \b
    Example:
      eventstore topic show orders
    """
    with connect_to_broker(store, "topic show") as connected:
        queues = connected.broker.queues(name)
    if as_json:
        print_json({"topic": name, "queues": [each._asdict() for each in queues]})
        return
    columns = ("queue", "state", "begin", "end", "messages", "written/s", "bytes/s", "read/s", "bytes/s")
    rows = [(*each[:4], each.end - each.begin, *each[4:]) for each in queues]
    print_table(None, columns, rows)


@topic.command("delete", cls=Command)
def delete(
    name: TopicName,
    ignore_unconsumed: Annotated[
        bool, typer.Option("--ignore-unconsumed", help="Also what consumer groups have not consumed.")
    ] = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Delete a topic and all that is in it.

    \b
    Example:
      eventstore topic delete orders
    """
    with connect_to_broker(store, "topic delete") as connected:
        try:
            connected.broker.delete_topic(name, ignore_unconsumed=ignore_unconsumed)
        except Unconsumed as error:
            error.message += "; nothing was deleted. Let it consume them, or give --ignore-unconsumed"
            raise
    if as_json:
        print_json({"topic": name, "deleted": True})
    else:
        print_line(f"topic {name} is deleted")


@queue.command("add", cls=Command, context_settings={"allow_extra_args": True})
def add(
    context: typer.Context,
    name: TopicName,
    count: Annotated[int, typer.Option(metavar="N", min=1, help="How many.")] = 1,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Give a topic more queues. Keys lead to other queues from then on.

    \b
    Example:
      eventstore queue add orders --count 4
    """
    if context.args:  # a count, most likely
        raise InvalidArgument(
            f"{context.args[0]!r} is one word too many: new queues get the next numbers, and --count N says how many",
            field="count",
        )
    with connect_to_broker(store, "queue add") as connected:
        added = connected.broker.add_queues(name, count)
    if as_json:
        print_json({"topic": name, "added": added})
    else:
        print_line(f"topic {name} has {counted(len(added), 'queue')} more: {', '.join(map(str, added))}")


@queue.command("remove", cls=Command)
def remove(
    name: TopicName,
    number: Annotated[int, typer.Argument(metavar="QUEUE", min=0, help="The number of the queue.")],
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Remove a queue that every group has consumed.

    It is closed for producers first. Where a group has not consumed it, it stays closed; run the command again later.

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
                "; it takes no more messages. Run this again when they are consumed (`eventstore group show` tells)"
            )
            raise
    if as_json:
        print_json({"topic": name, "queue": number, "removed": True})
    else:
        print_line(f"queue {number} of topic {name} is removed")
