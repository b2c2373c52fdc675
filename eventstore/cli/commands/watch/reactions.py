"""Lists reactions, shows what they have parked, and has it handled, skipped or replayed."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.broker_connection import check_is_one, one_shard
from eventstore.cli.terminal.output import moment, print_json, print_line, print_note
from eventstore.cli.terminal.paging import all_rows
from eventstore.cli.terminal.program import PlainCommand, command_group
from eventstore.cli.terminal.shard_rows import members_of, print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, OfShard, StoreAddress
from eventstore.fields import counted, shown

if TYPE_CHECKING:
    from eventstore.client.blocking.store import BlockingStore
    from eventstore.protocol.reaction_info import ParkedEvent, ParkedHandled

reactions = command_group("reactions", "Reactions, and the events they failed on.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The reaction.")]
Because = Annotated[str, typer.Option("--because", metavar="TEXT", help="Why; it is kept, with who and when.")]


@reactions.command("list", cls=PlainCommand)
def list_(as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """List the reactions of a server or worker: state, position, lag, parked events, last error.

    \b
    Example:
      eventstore reactions list
    """
    with _connect(store, "list") as connected:
        found = connected.reactions.progress()
    if as_json:
        print_json([members_of(each) for each in found])
    elif found:
        rows = [(*each[:5], f"{each.lag_microseconds / 1e6:.1f} s", each.parked, each.error) for each in found]
        columns = ("reaction", "event", "state", "position", "lag", "age", "parked", "last error")
        print_rows(columns, rows, [each.shard for each in found])
    else:
        print_line("no reactions run here; name the server or worker that has the domain with --store")


@reactions.command("show", cls=PlainCommand)
def show(name: Name, as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """Show the events that a reaction has parked. An event with 0 attempts waits for an earlier event of its aggregate.

    \b
    Example:
      eventstore reactions show notify
    """
    with _connect(store, "show") as connected:
        parked = _parked(connected, name)
    if as_json:
        print_json([members_of(each) for each in parked])
        return
    rows = [(*each[:4], each.attempts, moment(each.when), each.why) for each in parked]
    if rows:
        columns = ("aggregate", "version", "sequence", "type", "attempts", "parked", "why")
        print_rows(columns, rows, [each.shard for each in parked])
    else:
        print_line(f"{name} has nothing parked")


@reactions.command("retry", cls=PlainCommand)
def retry(
    name: Name,
    aggregate: Annotated[str | None, typer.Option(metavar="ID", help="Only of this aggregate. [all]")] = None,
    because: Because = "retried",
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Handle parked events again: of each aggregate in order, until an event fails.

    \b
    Example:
      eventstore reactions retry notify --because "customer created"
    """
    with _connect(store, "retry") as connected:
        _report(connected, name, aggregate, connected.reactions.retry(name, aggregate, who=getpass.getuser(), why=because))


@reactions.command("skip", cls=PlainCommand)
def skip(
    name: Name,
    aggregate: Annotated[str, typer.Argument(metavar="ID", help="The aggregate.")],
    because: Because,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Give up the first parked event of an aggregate, and handle the events after it.

    \b
    Example:
      eventstore reactions skip notify acc-1 --because "sent by hand"
    """
    with _connect(store, "skip") as connected:
        _report(connected, name, aggregate, connected.reactions.skip(name, aggregate, who=getpass.getuser(), why=because))


@reactions.command("replay", cls=PlainCommand)
def replay(
    name: Name,
    because: Because,
    from_: Annotated[int, typer.Option("--from", metavar="SEQUENCE", min=1, help="The first event that it gets.")],
    shard: OfShard = None,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Set a reaction back, or forward, to an event. Commands that are in the store take effect only once.

    Each of several shards has its own sequences: --from 1 is the first event of each shard; any other number needs --shard.

    \b
    Example:
      eventstore reactions replay notify --from 1 --because "restored from a copy"
    """
    with _connect(store, "replay") as connected:
        if shard is not None:
            connected = one_shard(connected, shard)
        elif from_ != 1:
            check_is_one(connected, "sequences")
        after = connected.reactions.replay(name, from_, who=getpass.getuser(), why=because)
    print_line(f"{name} continues after sequence {after}")


def _connect(store: str, command: str) -> BlockingStore:
    from eventstore import blocking

    return blocking.connect(store, name=f"eventstore reactions {command}", timeout=None)


def _parked(connected: BlockingStore, name: str) -> list[ParkedEvent]:
    return list(all_rows(lambda skip: connected.reactions.parked(name, skip)))


def _report(connected: BlockingStore, name: str, aggregate: str | None, handled: ParkedHandled) -> None:
    left = f"{counted(handled.left, 'event')} of {name} still parked" if handled.left else f"{name} has nothing parked"
    print_line(f"{counted(handled.done, 'event')} done; {left}")
    if not handled.left or handled.done:
        return
    if aggregate is None or any(each.aggregate_id == aggregate for each in _parked(connected, name)):
        print_note(f"`eventstore reactions show {name}` says why, `eventstore reactions skip` takes the first one off")
    else:
        print_note(f"nothing of {shown(aggregate)} is parked; `eventstore reactions show {name}` lists the parked events")
    raise typer.Exit(1)
