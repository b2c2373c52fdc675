"""Appends one event, or the events of one command to several aggregates."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import print_json, print_line
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress, shard_member
from eventstore.errors import InvalidArgument
from eventstore.fields import shown

if TYPE_CHECKING:
    from eventstore.model import Committed, ExpectedVersion, NewEvent


def append(
    aggregate_id: Annotated[str | None, typer.Argument(metavar="ID", help="The aggregate.")] = None,
    event_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="The type of the event.")] = None,
    data: Annotated[str | None, typer.Option(metavar="JSON|-", help="Its data; - reads it from standard input.")] = None,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="Its metadata.")] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="What it is about, such as course:c1; repeat it for more.")
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(metavar="SUBJECT", help="The person whose data it has, such as customer:c-17: it is stored encrypted."),
    ] = None,
    expected_version: Annotated[
        str | None,
        typer.Option(metavar="N|any|exists|new", help="The version the aggregate must have; new: it must not exist. [any]"),
    ] = None,
    together: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Append the events in these lines of JSON as one commit, of several aggregates."),
    ] = None,
    command_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Repeating a command writes nothing. [a new UUID]")
    ] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Append events to one aggregate or several.

    It is durable when the command ends.

    With --together, each line of the file is an event: aggregate_id, event_type, data, perhaps metadata and tags. All are
    written, or none. The member expected_version of a line has the values of that option. A line of only aggregate_id
    and expected_version is a condition: its aggregate is not written.

    \b
    Example:
      eventstore append order-42 --type OrderPlaced --data '{"total": 12}' --expected-version new --command-id c-1
      eventstore append --together transfer.jsonl --command-id t-1
    """
    from eventstore import blocking
    from eventstore.cli.transfer.event_lines import with_tags
    from eventstore.model import with_subject
    from eventstore.tags import checked_tags

    if together is not None:
        _refuse_beside_together(
            ID=aggregate_id,
            type=event_type,
            data=data,
            metadata=metadata,
            expected_version=expected_version,
            tag=" ".join(tags or ()) or None,
            subject=subject,
        )
        _append_together(together, command_id, as_json, store)
        return
    if aggregate_id is None or event_type is None or data is None:
        missing = next(
            name for name, given in (("ID", aggregate_id), ("--type", event_type), ("--data", data)) if given is None
        )
        raise InvalidArgument(f"{missing} is missing; give ID, --type and --data, or --together FILE", field=missing)
    event = with_tags(_event(event_type, sys.stdin.read() if data == "-" else data, metadata), checked_tags(tags or ()))
    if subject is not None:
        event = with_subject(event, subject)
    expected = _expected("any" if expected_version is None else expected_version)
    with blocking.connect(store, name="eventstore append", timeout=None) as connected:
        done = connected.append(aggregate_id, [event], expected, command_id)
        shard = shard_member(connected, aggregate_id) if as_json else {}
    if as_json:
        print_json(_members(done) | shard)
    elif done.duplicate:
        print_line(f"{aggregate_id}: this command was appended before, up to version {done.version}; nothing was written")
    else:
        print_line(f"{aggregate_id} is at version {done.version} (sequence {done.sequence})")


def _append_together(path: str, command_id: str | None, as_json: bool, store: str) -> None:
    from eventstore import blocking
    from eventstore.cli.transfer.together_lines import read_together

    writes, only_if = read_together(path)
    with blocking.connect(store, name="eventstore append", timeout=None) as connected:
        outcomes = connected.commit(writes, only_if=only_if, command_id=command_id)
        shard = shard_member(connected, writes[0].aggregate_id) if as_json else {}
    if as_json:
        print_json([_members(done) | shard for done in outcomes])
        return
    if outcomes[0].duplicate:
        print_line("this command was appended before; nothing was written")
    for done in outcomes:
        says = "was then at" if done.duplicate else "is at"
        print_line(f"{done.aggregate_id} {says} version {done.version} (sequence {done.sequence})")


def _refuse_beside_together(**given: str | None) -> None:
    for name, value in given.items():
        if value is not None:
            option = name if name == "ID" else f"--{name.replace('_', '-')}"
            what = f"{option} cannot be given with --together, whose lines say it"
            raise InvalidArgument(what, field=name, value=shown(value))


def _members(done: Committed) -> dict[str, object]:
    return {name: getattr(done, name) for name in ("aggregate_id", "version", "sequence", "duplicate")}


def _event(event_type: str, data: str, metadata: str | None) -> NewEvent:
    from eventstore.cli.transfer.event_lines import checked_json, json_event

    for field, text in (("data", data), ("metadata", "null" if metadata is None else metadata)):
        try:
            checked_json(text)
        except ValueError as error:
            hint = f"quote it for the shell, as in --{field} '{{\"total\": 12}}'"
            raise InvalidArgument(f"{field} is not JSON: {error}; {hint}", field=field) from None
    return json_event(event_type, data, metadata)


def _expected(text: str) -> ExpectedVersion:
    from eventstore.cli.transfer.together_lines import expected_version

    found = expected_version(text)
    if found is None:
        raise InvalidArgument(
            f"--expected-version is {shown(text)}, allowed are a number from 0, any, exists and new",
            field="expected_version",
            value=shown(text),
        )
    return found
