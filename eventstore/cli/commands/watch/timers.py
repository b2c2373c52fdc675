"""Lists timers, shows what came of them, and has them run now, moved or cancelled."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import moment, print_json, print_line
from eventstore.cli.terminal.paging import all_rows
from eventstore.cli.terminal.program import PlainCommand, command_group
from eventstore.cli.terminal.shard_rows import members_of, print_rows
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from eventstore.client.blocking.store import BlockingStore

timers = command_group("timers", "Timers: commands that are sent when they are due.")
Owner = Annotated[str, typer.Argument(metavar="ID", help="The aggregate that the timer belongs to.")]
Timer = Annotated[str, typer.Argument(metavar="TIMER", help="Its name, or the id that `list` shows.")]
Because = Annotated[str, typer.Option("--because", metavar="TEXT", help="Why; it is kept, with who and when.")]
_OUTCOMES = 10


@timers.command("list", cls=PlainCommand)
def list_(
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """List timers: those that are parked, then those that are pending, the earliest due first.

    \b
    Example:
      eventstore timers list --limit 20
    """
    with _connect(store, "list") as connected:
        found = [each for _, each in zip(range(limit), all_rows(connected.timers), strict=False)]
    if as_json:
        print_json([members_of(each) for each in found])
    elif found:
        rows = [(each[0], each[1], moment(each.due_us), *each[3:6]) for each in found]
        columns = ("aggregate", "timer", "due", "command", "for", "parked because")
        print_rows(columns, rows, [each.shard for each in found])
    else:
        print_line("no timer is pending or parked; name the server or worker that has the domain with --store")


@timers.command("show", cls=PlainCommand)
def show(aggregate: Owner, as_json: AsJson = False, store: StoreAddress = DEFAULT_STORE) -> None:
    """Show the timers of an aggregate, and what came of its last ones.

    \b
    Example:
      eventstore timers show order-1
    """
    from eventstore.records.timer_record import ENDED, timers_id

    with _connect(store, "show") as connected:
        found = connected.timers(aggregate_id=aggregate)
        events = connected.read(timers_id(aggregate), backwards=True, limit=_OUTCOMES)
        ended = [(each.timestamp, json.loads(each.data)) for each in events if each.type == ENDED]
    if as_json:
        print_json({"timers": [members_of(each) for each in found], "ended": [each for _, each in ended]})
        return
    if found:
        rows = [(each[1], moment(each.due_us), *each[3:6]) for each in found]
        print_rows(("timer", "due", "command", "for", "parked because"), rows, [each.shard for each in found])
    else:
        print_line(f"{aggregate} has no timer that is pending or parked")
    if ended:
        shown = [
            (each.get("timer") or each["id"], moment(each["due_us"]), moment(when), each["how"], each.get("why"))
            for when, each in ended
        ]
        print_rows(("timer", "was due", "ended", "outcome", "because"), shown, [None] * len(shown))


@timers.command("run-now", cls=PlainCommand)
def run_now(aggregate: Owner, timer: Timer, because: Because, store: StoreAddress = DEFAULT_STORE) -> None:
    """Send the command of a timer now, whether it is pending or parked.

    \b
    Example:
      eventstore timers run-now order-1 payment --because "the customer asked"
    """
    with _connect(store, "run-now") as connected:
        connected.run_now(aggregate, timer, who=getpass.getuser(), why=because)
    print_line(f"{timer} of {aggregate} is due now; `eventstore timers show {aggregate}` tells what comes of it")


@timers.command("move", cls=PlainCommand)
def move(
    aggregate: Owner,
    timer: Timer,
    because: Because,
    after: Annotated[str, typer.Option(metavar="DURATION", help="How long from now, such as 1h30m.")],
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Send the command of a timer at another time.

    \b
    Example:
      eventstore timers move order-1 payment --after 2h --because "the bank is down"
    """
    with _connect(store, "move") as connected:
        connected.move_later(aggregate, timer, after=after, who=getpass.getuser(), why=because)
    print_line(f"{timer} of {aggregate} is due in {after}")


@timers.command("cancel", cls=PlainCommand)
def cancel(aggregate: Owner, timer: Timer, because: Because, store: StoreAddress = DEFAULT_STORE) -> None:
    """Cancel a timer, whether it is pending or parked.

    \b
    Example:
      eventstore timers cancel order-1 payment --because "paid in cash"
    """
    with _connect(store, "cancel") as connected:
        connected.cancel_later(aggregate, timer, who=getpass.getuser(), why=because)
    print_line(f"{timer} of {aggregate} is cancelled")


@timers.command("confirm-clock", cls=PlainCommand)
def confirm_clock(because: Because, store: StoreAddress = DEFAULT_STORE) -> None:
    """Say that the clock of the machine is right although it has jumped, so that timers are sent again.

    \b
    Example:
      eventstore timers confirm-clock --because "the clock was an hour slow"
    """
    with _connect(store, "confirm-clock") as connected:
        connected.confirm_clock(who=getpass.getuser(), why=because)
    print_line("the clock is confirmed")


def _connect(store: str, command: str) -> BlockingStore:
    from eventstore import blocking

    return blocking.connect(store, name=f"eventstore timers {command}", timeout=None)
