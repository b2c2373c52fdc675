"""Lists, silences and tests alarms."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from eventstore.cli.terminal.output import moment, print_json, print_line, print_note, print_table
from eventstore.cli.terminal.paging import all_rows
from eventstore.cli.terminal.program import PlainCommand, command_group
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.errors import EventStoreError, InvalidArgument

if TYPE_CHECKING:
    from eventstore.client.blocking.store import BlockingStore

alarms = command_group("alarms", "Alarms, silencing and testing them.")

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@alarms.command("list", cls=PlainCommand)
def list_(
    every: Annotated[bool, typer.Option("--all", help="List quiet alarms, too.")] = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """List the raised alarms, and the alarms that will be raised if their cause continues, and since when.

    The exit code is 1 if an alarm is raised, or a server does not answer. --all lists quiet alarms, too, and so all rules.
    Each node and shard of a cluster has its own alarms: name the addresses of all nodes.

    \b
    Example:
      eventstore alarms list --all
    """
    silent: list[str] = []
    rows = [
        {"server": address, **each._asdict()}
        for address, connected in _servers(store, silent)
        for each in all_rows(connected.alarms.list)
        if every or each.state != "quiet" or each.silenced_until is not None
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(None, ("server", "alarm", "of", "state", "since", "what", "silenced"), map(_shown, rows))
    else:
        print_line("no alarm is raised" + (" where it was asked" if silent else ""))
    if silent or any(row["state"] == "raised" for row in rows):
        raise typer.Exit(1)


@alarms.command("test", cls=PlainCommand)
def send_test(store: StoreAddress = DEFAULT_STORE) -> None:
    """Send a test by mail and webhook, like an alarm.

    The server sends it. `alarm_sends_failed` in `eventstore stats`, and the server's log, say if that fails.

    \b
    Example:
      eventstore alarms test
    """
    none, silent = False, list[str]()
    for address, connected in _servers(store, silent):
        ways = connected.alarms.test(who=getpass.getuser())
        print_line(
            f"{address}: a test is sent by {' and '.join(ways)}; if it does not arrive, the server's log says why"
            if ways
            else f"{address}: alarms are sent nowhere"
        )
        none = none or not ways
    if none:
        print_note("the settings alarm_mail_server and alarm_webhook say where; `eventstore settings` shows them")
    if none or silent:
        raise typer.Exit(1)


@alarms.command("silence", cls=PlainCommand)
def silence(
    alarm: Annotated[str, typer.Argument(metavar="NAME", help="The name of the alarm.")],
    because: Annotated[str, typer.Option("--because", metavar="TEXT", help="Why; it is kept.")],
    length: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long, such as 30m, 8h or 2d; 0: end its silence.")
    ] = "1h",
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Send nothing about an alarm for some time. The alarm is still shown. It is sent afterwards if it is still raised.

    The log, and the audit trail of a server with identities, say who silenced it, why, and for how long.

    \b
    Example:
      eventstore alarms silence group_behind --for 8h --because "billing is migrated"
    """
    seconds, silent = _seconds(length), list[str]()
    for address, connected in _servers(store, silent):
        connected.alarms.silence(alarm, seconds, who=getpass.getuser(), why=because)
        print_line(f"{address}: {alarm} is {f'silenced for {length}' if seconds else 'not silenced'}")
    if silent:
        raise typer.Exit(1)


def _servers(store: str, silent: list[str]) -> Iterator[tuple[str, BlockingStore]]:
    """Yields a connection to each server: the one at the address; of a cluster all nodes that were named, and all its shards.

    `silent` gets those that do not answer, and shards without a leader; each is named on standard error.

    Raises:
        EventStoreError: none of those named answers.
    """
    from eventstore.client.address import Address, parse_addresses
    from eventstore_cluster.status import address_of

    asked, failed, shards = parse_addresses(store), list[EventStoreError](), dict[int, Address | None]()
    named = [str(each) for each in asked.in_turn()]
    for address in named:
        try:
            with _connected(address) as connected:
                known = connected.cluster_map()
                for each in known.shards if known.cluster is not None else ():
                    shards[each.shard] = address_of(known, each, asked.first) or shards.get(each.shard)
                yield address, connected
        except EventStoreError as error:
            failed.append(_unless_wrong(error))
            silent.append(address)
            print_note(f"{address}: {error.message}")
    if len(failed) == len(named):
        raise failed[0]
    for shard in sorted(shard for shard, found in shards.items() if found is None):
        silent.append(f"shard {shard}")
        print_note(f"shard {shard} is left out: no process serves it; `eventstore cluster status` says why")
    for address in dict.fromkeys(str(each) for each in shards.values() if each is not None):
        if address not in named:
            try:
                with _connected(address) as connected:
                    yield address, connected
            except EventStoreError as error:
                silent.append(address)
                print_note(f"{address}: {_unless_wrong(error).message}")


def _unless_wrong(error: EventStoreError) -> EventStoreError:
    if isinstance(error, InvalidArgument):
        raise error
    return error


@contextmanager
def _connected(address: str) -> Iterator[BlockingStore]:
    from eventstore import blocking

    with blocking.connect(address, name="eventstore alarms", reconnect_timeout=0, timeout=None) as connected:
        yield connected


def _shown(row: dict[str, Any]) -> tuple[object, ...]:
    until = row["silenced_until"]
    silenced = None if until is None else f"until {moment(until)} by {row['silenced_by']}: {row['silenced_because']}"
    what = row["text"] or row["rule"]
    return row["server"], row["name"], row["subject"], row["state"], moment(row["since"]), what, silenced


def _seconds(text: str) -> int:
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    if not (number.isdecimal() and number.isascii() and len(number) < 10):
        raise InvalidArgument(f"--for is {text!r}, expected a duration such as 90s, 30m, 8h or 2d", field="for", value=text)
    return int(number) * _UNITS[unit]
