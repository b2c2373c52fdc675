"""Shows the audit trail, and checks that it was not changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import moment, print_json, print_line, print_note
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.client.blocking.store import BlockingStore


def audit(
    verify: Annotated[bool, typer.Option("--verify", help="Only check the chain, and print its head.")] = False,
    known: Annotated[
        str | None,
        typer.Option("--head", metavar="VERSION:HASH", help="A head that was noted before; it must be part of the chain."),
    ] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Show who did what that matters.

    Refused logins, changes of access, and every request that changes topics, groups, reactions or alarms, from before it was
    carried out. Each record holds the hash of the one before it: note the head of the chain elsewhere, and give it the next
    time. Each shard of a cluster has a trail of its own, at its address, also of what is done to it through etcd; that of
    shard 0 has what was asked of nodes and of all moves. It is read with the permission read:$audit.

    \b
    Example:
      eventstore audit --verify --head 17:9f2c…
    """
    from eventstore import blocking
    from eventstore.security.audit import Head, verified

    expected = None if known is None else Head.parse(known)
    head = Head(0, "")
    with blocking.connect(store, name="eventstore audit") as connected:
        for head, values in verified(_records(connected), expected):  # the last one is printed
            if verify:
                continue
            if as_json:
                print_json(dict(values))
            else:
                details = ", ".join(f"{name}={value}" for name, value in values["details"].items() if value is not None)
                origin = values["origin"] and f"({values['origin']})"  # a change of access has none
                parts = (str(head.version), moment(values.get("time")), values["what"], values["who"] or "–", origin, details)
                print_line("  ".join(part for part in parts if part))
    if verify:
        print_line(str(head) if head.version else "there are no records")
    else:
        print_note(f"the chain is whole: {head.version} records")


def _records(store: BlockingStore) -> Iterator[tuple[int, bytes]]:
    from eventstore.security.audit import AUDIT

    for event in store.read(AUDIT):
        yield event.version, event.data
