"""Shows the audit trail, and checks that it was not changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventstore.cli.terminal.broker_connection import one_shard
from eventstore.cli.terminal.output import at_shard, moment, print_json, print_line, print_note
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, OfShard, StoreAddress
from eventstore.errors import EventStoreError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventstore.client.blocking.store import BlockingStore
    from eventstore.security.audit import Head


def audit(
    verify: Annotated[bool, typer.Option("--verify", help="Only check the chain, and print its head.")] = False,
    known: Annotated[
        str | None,
        typer.Option("--head", metavar="VERSION:HASH", help="A head that you noted before; it must be part of the chain."),
    ] = None,
    shard: OfShard = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Show who made changes that matter.

    The trail has refused logins, changes of access, and every request that changes topics, groups, reactions or alarms; a
    request is recorded before it is carried out. Each record holds the hash of the record before it: note the head of the
    chain elsewhere, and give it the next time. Each shard of a cluster has its own trail, which includes changes of the shard
    through etcd; the trail of shard 0 also has the requests to nodes and all moves. 5@1 is record 5 of shard 1. The command
    needs the permission read:$audit, or read on everything, which the role reader has.

    \b
    Example:
      eventstore audit --verify --head 17:9f2c…
    """
    from eventstore import blocking
    from eventstore.security.audit import BrokenChain, Head

    expected = None if known is None else Head.parse(known)
    with blocking.connect(store, name="eventstore audit", timeout=None) as connected:
        trails = _trails(connected, shard)
        if expected is not None and len(trails) > 1:
            raise InvalidArgument(f"each of the {len(trails)} shards has its own head: give --shard N, too", field="shard")
        for which, trail in trails.items():
            try:
                head = _shown(trail, expected, which, verify, as_json)
            except BrokenChain as error:
                raise EventStoreError(f"{_of(which)}{error.message}", **error.fields) from None
            if verify:
                print_line(_of(which) + (str(head) if head.version else "there are no records"))
            else:
                print_note(f"{_of(which)}the chain is whole: {head.version} records")


def _trails(connected: BlockingStore, shard: int | None) -> dict[int | None, BlockingStore]:
    """Returns the store of each shard, or of the one that is wanted; by None if there is no other. Raises InvalidArgument."""
    if shard is not None:
        return {None: one_shard(connected, shard)}
    shards = connected._of_shards() or {0: connected}
    return dict(shards.items()) if len(shards) > 1 else {None: next(iter(shards.values()))}


def _of(shard: int | None) -> str:
    return "" if shard is None else f"shard {shard}: "


def _shown(store: BlockingStore, expected: Head | None, shard: int | None, verify: bool, as_json: bool) -> Head:
    """Checks a trail, and prints its records, unless it is only to be verified. Returns its head. Raises BrokenChain."""
    from eventstore.security.audit import AUDIT, Head, verified

    head = Head(0, "")
    for head, values in verified(((each.version, each.data) for each in store.read(AUDIT)), expected):  # the last is returned
        if verify:
            continue
        if as_json:
            print_json({**values, **({} if shard is None else {"shard": shard})})
        else:
            print_line(_line(head.version, shard, values))
    return head


def _line(version: int, shard: int | None, values: Mapping[str, Any]) -> str:
    details = ", ".join(f"{name}={value}" for name, value in values["details"].items() if value is not None)
    origin = values["origin"] and f"({values['origin']})"  # a change of access has none
    who = values["who"] or "–"
    parts = (f"{version}{at_shard(shard)}", moment(values.get("time")), values["what"], who, origin, details)
    return "  ".join(part for part in parts if part)
