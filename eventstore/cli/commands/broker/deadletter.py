"""Lists, replays and purges dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from eventstore.cli.terminal.broker_connection import check_is_one, connect_to_broker, each_shard
from eventstore.cli.terminal.output import print_json, print_line, print_note, print_table
from eventstore.cli.terminal.program import PlainCommand, command_group
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, OfShard, StoreAddress
from eventstore.errors import EventStoreError, InvalidArgument, UnknownTopic
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.client.blocking.broker import BlockingBroker

deadletter = command_group("deadletter", "Messages that a consumer group could not handle.")
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
_REPLAYED_AT_ONCE: Final = 256
_PAGE: Final = 1_000


@deadletter.command("list", cls=PlainCommand)
def list_(
    name: GroupName,
    from_offset: Annotated[int, typer.Option(metavar="N", min=0, help="Begin at this offset among the dead letters.")] = 0,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="List at most this many of a shard.")] = 64,
    shard: OfShard = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """List dead letters, each with its origin, failures and reason.

    \b
    Example:
      eventstore deadletter list billing
    """
    from eventstore.cli.transfer.message_lines import format_message

    with connect_to_broker(store, "deadletter list", shard) as connected:
        connected.broker.members(name)  # raises if the group does not exist
        found = {number: each.broker.dead_letters(name, from_offset, limit) for number, each in each_shard(connected)}
        replayed = {number: _replayed(each.broker, name) for number, each in each_shard(connected)}
    letters = [(number, each) for number, page in found.items() for each in page]
    if as_json:
        for number, each in letters:
            print(format_message(each, number, replayed=each.queue_offset in replayed[number]))
        return
    several = ("shard",) if len(found) > 1 else ()
    rows: list[tuple[object, ...]] = []
    for number, each in letters:
        properties = each.properties
        origin = f"{properties.get(':origin-topic')}/{properties.get(':origin-queue')}@{properties.get(':origin-offset')}"
        rows.append(
            (
                *([number] if several else []),
                each.queue_offset,
                origin,
                each.key,
                each.tag,
                "yes" if each.queue_offset in replayed[number] else "no",
                properties.get(":failures"),
                properties.get(":reason"),
            )
        )
    if rows:
        print_table(None, (*several, "dead letter", "from", "key", "tag", "replayed", "failures", "reason"), rows)
        for number, page in found.items():
            if len(page) == limit:
                of = f"--shard {number} " if several else ""
                print_note(f"there may be more: {of}--from-offset {page[-1].queue_offset + 1}")
    else:
        print_line(f"group {name} has no dead letters" + (f" from offset {from_offset} on" if from_offset else ""))


@deadletter.command("replay", cls=PlainCommand)
def replay(
    name: GroupName,
    offsets: Annotated[list[int] | None, typer.Argument(metavar="OFFSET", help="The offsets of the dead letters.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters that were not replayed.")] = False,
    shard: OfShard = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Deliver dead letters to their group again.

    The group gets them as if they had never failed. They stay in the list, marked as replayed. One that you name by its offset
    is delivered again also if it was replayed before.

    \b
    Example:
      eventstore deadletter replay billing 0 3 4
    """
    if bool(offsets) == everything:
        raise InvalidArgument(
            f"give the offsets of dead letters (`eventstore deadletter list {name}` shows them), or --all", field="offsets"
        )
    with connect_to_broker(store, "deadletter replay", shard) as connected:
        if not everything:
            check_is_one(connected, "dead letters")
        connected.broker.members(name)
        count = 0
        try:
            for _, each in each_shard(connected):
                wanted = _offsets(each.broker, name) if everything else sorted(set(offsets or []))
                for start in range(0, len(wanted), _REPLAYED_AT_ONCE):
                    count += each.broker.replay(name, wanted[start : start + _REPLAYED_AT_ONCE])
        except EventStoreError as error:
            error.message += f" ({counted(count, 'dead letter')} before these are being delivered)" if count else ""
            raise
    if as_json:
        print_json({"group": name, "replayed": count})
        return
    print_line(f"{counted(count, 'dead letter')} being delivered to group {name} again")
    if count:
        print_note(f"They stay in the list, marked as replayed; `eventstore deadletter purge {name}` empties it")


@deadletter.command("purge", cls=PlainCommand)
def purge(name: GroupName, as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """Delete all dead letters of a group.

    The command also deletes dead letters that arrive meanwhile. A deleted dead letter cannot be replayed.

    \b
    Example:
      eventstore deadletter purge billing
    """
    with connect_to_broker(store, "deadletter purge") as connected:
        connected.broker.members(name)
        topic, count = f"dead:{name}", 0
        try:
            count = sum(queue.end - queue.begin for queue in connected.broker.queues(topic))
            connected.broker.delete_topic(topic)
        except UnknownTopic:  # there is no dead letter yet, or another purge was faster
            pass
    if as_json:
        print_json({"group": name, "purged": count})
    else:
        print_line(f"deleted {counted(count, 'dead letter')} of group {name}")


def _offsets(broker: BlockingBroker, name: str) -> list[int]:
    """Returns the offsets of all dead letters that were not replayed."""
    replayed, found, after = _replayed(broker, name), list[int](), 0
    while page := broker.dead_letters(name, after, _PAGE):
        found += [each.queue_offset for each in page if each.queue_offset not in replayed]
        after = page[-1].queue_offset + 1
    return found


def _replayed(broker: BlockingBroker, name: str) -> set[int]:
    """Returns the offsets of dead letters that were replayed."""
    return {offset for first, end in broker.replayed(name) for offset in range(first, end)}
