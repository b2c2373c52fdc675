"""Lists, shows, resets and deletes consumer groups, and sets how they retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from eventstore.cli.terminal.broker_connection import check_is_one, connect_to_broker
from eventstore.cli.terminal.output import moment, print_json, print_line, print_note, print_table
from eventstore.cli.terminal.program import PlainCommand, command_group
from eventstore.cli.terminal.shard_rows import members_of, of_shard, print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, OfShard, StoreAddress, parse_time
from eventstore.errors import InvalidArgument
from eventstore.fields import counted

if TYPE_CHECKING:
    from datetime import datetime

    from eventstore.client.blocking.broker import BlockingBroker
    from eventstore.protocol.broker_info import MessageInHand

_HOW: Final = {"left": "left", "expired": "its heartbeats ended", "lost": "not back since the broker was started"}
HELD_MS_MAX: Final = 60_000  # as the consumers' own `warn_after`

group = command_group("group", "Consumer groups and their progress.")
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


@group.command("list", cls=PlainCommand)
def list_(as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """List the consumer groups with their backlogs.

    "In hand" is how long a consumer has had the same message, the longest of the group.

    \b
    Example:
      eventstore group list
    """
    from eventstore.errors import UnknownGroup

    rows: list[tuple[str, int, int, int, int | None]] = []
    with connect_to_broker(store, "group list") as connected:
        held_ms = {each.group: each.held_ms for each in connected.broker.in_hand()}
        for name, generation, members in connected.broker.groups():
            try:
                rows.append((name, members, generation, connected.broker.group(name).backlog, held_ms.get(name)))
            except UnknownGroup:  # deleted meanwhile
                continue
    if as_json:
        print_json([dict(zip(("group", "members", "generation", "backlog", "in_hand_ms"), row, strict=True)) for row in rows])
    elif rows:
        print_table(None, ("group", "members", "generation", "backlog", "in hand"), [(*row[:4], _time(row[4])) for row in rows])
    else:
        print_line("no consumer groups; the first consumer to join creates one")


@group.command("show", cls=PlainCommand)
def show(name: GroupName, as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """Show the progress of a group, its members, and those that are gone.

    \b
    Example:
      eventstore group show billing
    """
    with connect_to_broker(store, "group show") as connected:
        progress, members = connected.broker.group(name), connected.broker.members(name)
        in_hand, gone = connected.broker.in_hand(name), connected.broker.departures(name)
    if as_json:
        queues = [{**members_of(each), "backlog": each.backlog} for each in progress.queues]
        found = {"group": name, "generation": progress.generation, "backlog": progress.backlog, "queues": queues}
        held = {"oldest_in_hand": members_of(in_hand[0]) if in_hand else None}
        print_json(
            {
                **found,
                **held,
                "members": [each._asdict() for each in members],
                "departures": [members_of(each) for each in gone],
            }
        )
        return
    print_line(f"{name}: generation {progress.generation}, {counted(progress.backlog, 'message')} to consume")
    held_ms = {(each.shard, each.topic, each.queue): each.held_ms for each in in_hand}
    columns = ("topic", "queue", "offset", "begin", "end", "backlog", "member", "oldest in hand")
    rows = [(*each[:5], each.backlog, each.member, _time(held_ms.get((each.shard, *each[:2])))) for each in progress.queues]
    print_rows(columns, rows, [each.shard for each in progress.queues])
    for each in in_hand:
        if each.held_ms >= HELD_MS_MAX:
            print_note(_hangs(each))
    if members:
        silent = [(each.name, each.queues, f"{each.silent_ms / 1000:.1f} s ago") for each in members]
        print_table(None, ("member", "queues", "last heard"), silent)
    if gone:
        print_table(None, ("gone", "how", "when"), [(each.name, _HOW[each.how], moment(each.time)) for each in gone])


@group.command("reset", cls=PlainCommand)
def reset(
    name: GroupName,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic it reads.")],
    queue: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only in this queue. [all]")] = None,
    to_start: Annotated[bool, typer.Option("--to-start", help="To the first message.")] = False,
    to_end: Annotated[bool, typer.Option("--to-end", help="After the last message.")] = False,
    to_offset: Annotated[int | None, typer.Option(metavar="N", min=0, help="To this offset.")] = None,
    to_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="To the first message of this time or later, as 2026-01-31T12:00:00Z.")
    ] = None,
    shard: OfShard = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Set the offsets of a group in a topic.

    Its members continue from there.

    \b
    Example:
      eventstore group reset billing orders --to-time 2026-01-31T12:00:00+01:00
    """
    to = _target(to_start, to_end, to_offset, to_time)
    with connect_to_broker(store, "group reset", shard) as connected:
        if queue is not None or to_offset is not None:
            check_is_one(connected, "queues and offsets")
        consumed = _topics_of(connected.broker, name)
        done = connected.broker.reset(name, topic, to, queue=queue)
    if topic not in consumed:
        print_note(
            f"{name} did not read {topic} before: from now on messages are kept until it has consumed them, "
            f"until `eventstore group delete {name} --topic {topic}`"
        )
    if as_json:
        print_json({"group": name, "topic": topic, "queues": [members_of(each) for each in done]})
        return
    for each in done:
        note = " (the queue does not hold the offset that was asked for)" if each.clamped else ""
        print_line(f"{name} is at offset {each.offset} of queue {each.queue} of {topic}{of_shard(each.shard)}{note}")


@group.command("retries", cls=PlainCommand)
def retries(
    name: GroupName,
    delays: Annotated[
        str | None,
        typer.Option(metavar="SECONDS,…", help="Delays before the second, third … attempt at a message."),
    ] = None,
    attempts: Annotated[int | None, typer.Option(metavar="N", min=1, help="Attempts. [one more than delays]")] = None,
    dead_letters: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Topic for messages whose last attempt failed. [dead:GROUP]")
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Use the server's setting again.")] = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Show or set how a group retries messages that failed.

    \b
    Example:
      eventstore group retries billing --delays 1,30,600 --attempts 10
    """
    from eventstore.records.consumer_groups import Retries

    changed = delays is not None or attempts is not None or dead_letters is not None
    if changed and (default or delays is None):
        raise InvalidArgument("give --default alone, or --delays and what else is to be set", field="delays")
    with connect_to_broker(store, "group retries") as connected:
        if default:
            connected.broker.set_retries(name, None)
        elif delays is not None:
            connected.broker.set_retries(name, Retries(_seconds(delays), attempts, dead_letters))
        found = connected.broker.retries(name)
    count = len(found.delays) + 1 if found.attempts is None else found.attempts
    where = found.dead_letters or f"dead:{name}"
    if as_json:
        print_json({"group": name, "delays": list(found.delays), "attempts": count, "dead_letters": where})
        return
    waits = ", ".join(f"{each:g} s" for each in found.delays) or "none"
    print_line(f"{name}: {counted(count, 'attempt')}, delays {waits}; dead letters go to {where}")


def _hangs(held: MessageInHand) -> str:
    from datetime import UTC, datetime, timedelta

    since = datetime.now(UTC) - timedelta(milliseconds=held.held_ms)
    shard = "" if held.shard is None else f" --shard {held.shard}"
    skip = f"group reset {held.group} {held.topic} --queue {held.queue} --to-offset {held.offset + 1}{shard}"
    return (
        f"message {held.offset} of queue {held.queue} of {held.topic} is in hand at {held.member} since "
        f"{since:%Y-%m-%d %H:%M:%S} UTC. Its queue waits for it, and if consumers have died of a message before, all queues of "
        f"this consumer do. Look at its handler's log, then restart that consumer; if it hangs again, skip the message: "
        f"eventstore {skip}"
    )


def _time(milliseconds: int | None) -> str:
    return "" if milliseconds is None else f"{milliseconds / 1000:.0f} s"


def _seconds(text: str) -> tuple[float, ...]:
    from eventstore.protocol.limits import DELAY_MS_MAX

    try:
        seconds = tuple(float(each) for each in text.split(",") if each.strip())
    except ValueError:
        seconds = (-1.0,)
    if not all(0 <= each <= DELAY_MS_MAX / 1000 for each in seconds):
        raise InvalidArgument(
            f"--delays is {text!r:.80}; it takes seconds, 0 to {DELAY_MS_MAX // 1000:,} each, as 1,30,600", field="delays"
        )
    return seconds


def _topics_of(broker: BlockingBroker, group: str) -> set[str]:
    """Returns the queues in which the group has offsets."""
    return {each.topic for each in broker.group(group).queues}


def _target(to_start: bool, to_end: bool, to_offset: int | None, to_time: str | None) -> str | int | datetime:
    given: list[str | int | datetime] = []
    if to_start:
        given.append("start")
    if to_end:
        given.append("end")
    if to_offset is not None:
        given.append(to_offset)
    if to_time is not None:
        given.append(parse_time("--to-time", to_time))
    if len(given) != 1:
        raise InvalidArgument("give one of --to-start, --to-end, --to-offset N and --to-time TIME", field="to")
    return given[0]


@group.command("delete", cls=PlainCommand)
def delete(
    name: GroupName,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only its offsets in this topic, which it no longer reads.")
    ] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Delete a group that has no consumers.

    The command deletes the offsets, the pending retries and the dead letters of the group.

    \b
    Example:
      eventstore group delete billing
    """
    with connect_to_broker(store, "group delete") as connected:
        if topic is None:
            connected.broker.delete_group(name)
        else:
            consumed = _topics_of(connected.broker, name)
            if topic not in consumed:
                raise InvalidArgument(
                    f"group {name} does not read {topic}; it reads {', '.join(sorted(consumed)) or 'nothing'}", field="topic"
                )
            connected.broker.forget_topic(name, topic)
    if as_json:
        print_json({"group": name, "topic": topic, "deleted": True})
    else:
        print_line(f"group {name} is deleted" if topic is None else f"group {name} no longer reads topic {topic}")
