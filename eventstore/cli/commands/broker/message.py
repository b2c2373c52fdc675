"""Looks up, follows and sends messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from eventstore.cli.terminal.broker_connection import connect_to_broker
from eventstore.cli.terminal.output import print_error, print_json, print_line, print_note
from eventstore.cli.terminal.program import PlainCommand, command_group
from eventstore.cli.terminal.shard_rows import members_of, of_shard
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.errors import InvalidArgument
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.client.session.message_rows import SendResult

message = command_group("message", "Messages: look one up, follow a topic, send some.")
_BATCH: Final = 512


@message.command("get", cls=PlainCommand)
def get(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message id, 20 hexadecimal digits.")],
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Print the message with this id.

    Its body goes to standard output, the rest to standard error.

    \b
    Example:
      eventstore message get 3f2a0000000100001a40 --json
    """
    from eventstore.cli.transfer.message_lines import format_message, print_whole_message

    with connect_to_broker(store, "message get") as connected:
        found = connected.broker.message(message_id)
    if found is None:
        print_error(f"there is no message {message_id}; it was deleted by retention, or belongs to another broker")
        raise typer.Exit(1)
    print(format_message(found)) if as_json else print_whole_message(found)


@message.command("tail", cls=PlainCommand)
def tail(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the first message.")] = False,
    tags: Annotated[str | None, typer.Option(metavar="A|B", help="Only messages with one of these tags.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for new messages, or end at the last one.")] = True,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Print the messages of a topic as they arrive.

    Messages of a queue are printed in order, beginning with its last 10; `orders@1/0@7` is on shard 1.
    The command does not affect any consumer group.

    \b
    Example:
      eventstore message tail orders --tags 'paid|cancelled'
    """
    import sys

    from eventstore.cli.transfer.message_lines import format_message, print_message
    from eventstore.cli.transfer.topic_walk import walk_topic

    with connect_to_broker(store, "message tail") as connected:
        for item in walk_topic(connected, topic, tags, from_start=from_start, follow=follow):
            if item is None:
                sys.stdout.flush()
                print_note("caught up; waiting for more (Ctrl-C ends)")
            elif as_json:
                print(format_message(item[1], item[0]), flush=follow)
            else:
                print_message(item[1], item[0])
                sys.stdout.flush() if follow else None


@message.command("send", cls=PlainCommand)
def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    body: Annotated[str, typer.Argument(metavar="BODY|-", help="The body; - reads it from standard input.")] = "-",
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="Messages of one key stay in order.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="TEXT", help="A tag that consumers may select by.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property; may be given several times.")
    ] = None,
    queue: Annotated[int | None, typer.Option(metavar="N", min=0, help="The queue. [by the key, or in turn]")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a message.")] = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Send a message to a topic. It is stored when the command ends.

    \b
    Example:
      eventstore message send orders '{"order": 42}' --key order-42 --tag paid
    """
    from eventstore.client.session.message_rows import NewMessage

    if lines and body != "-":
        raise InvalidArgument("--lines reads standard input; give no BODY", field="lines")
    named = _properties(properties or [])
    sent: list[SendResult] = []
    with connect_to_broker(store, "message send") as connected:
        target = connected.topic(topic)
        for group in _bodies(body, lines):
            for outcome in target.send_many([NewMessage(each, key, tag, named, queue) for each in group]):
                if isinstance(outcome, Exception):
                    print_note(f"{counted(len(sent), 'message')} sent before") if lines else None
                    raise outcome
                sent.append(outcome)
    if as_json:
        print_json([members_of(each) for each in sent] if lines else members_of(sent[0]))
    elif lines:
        print_line(f"{counted(len(sent), 'message')} sent to {topic}")
    else:
        (one,) = sent
        print_line(f"{one.message_id} is at offset {one.queue_offset} of queue {one.queue} of {topic}{of_shard(one.shard)}")


def _bodies(body: str, lines: bool) -> Iterator[list[bytes]]:
    """Sends the messages in batches."""
    import sys
    from itertools import islice

    if not lines:
        yield [sys.stdin.buffer.read() if body == "-" else body.encode()]
        return
    stripped = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    while group := list(islice(stripped, _BATCH)):
        yield group


def _properties(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidArgument(f"--property {text!r} is not of the form NAME=VALUE", field="property", value=text)
        found[name] = value
    return found
