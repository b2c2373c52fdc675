"""Exports the schemas of a domain, and compares the domain with an export or a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from eventstore.cli.terminal.output import print_error, print_json, print_line
from eventstore.cli.terminal.program import PlainCommand, command_group
from eventstore.cli.terminal.shared_options import AsJson
from eventstore.errors import DomainRefused, InvalidArgument
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.domain.domain import Domain
    from eventstore.domain.sampled_events import Sampled
    from eventstore.domain.schema import Misfit

schema = command_group("schema", "Schemas of a domain, and whether code still fits them.")

Place: TypeAlias = Annotated[str, typer.Argument(metavar="MODULE:NAME", help="The domain, such as bank:app.")]


@schema.command("export", cls=PlainCommand)
def export(
    domain: Place,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write here; schemas of earlier versions in the file are kept."),
    ] = None,
) -> None:
    """Write JSON Schema of every event and command.

    Keep the file beside the code: it has the schemas of all versions that were exported into it, and `schema check` compares
    the code with it.

    \b
    Example:
      eventstore schema export bank:app -o bank.schema.json
    """
    from eventstore.domain.import_path import load
    from eventstore.domain.schema import exported

    loaded = load(domain)
    made = exported(loaded, _read(out) if out is not None and out.exists() else None)
    _print_or_write(made, out, f"{counted(len(made['events']), 'event')} and {counted(len(made['commands']), 'command')}")


@schema.command("asyncapi", cls=PlainCommand)
def asyncapi(
    domain: Place,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write here. [standard output]")] = None,
    publish: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="The topic that every event is sent to, as by `serve --publish`.")
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Of the document. [the domain]")] = None,
    api_version: Annotated[str, typer.Option("--api-version", metavar="TEXT", help="Of the document.")] = "1.0.0",
) -> None:
    """Write an AsyncAPI 3 document of what a domain publishes.

    It has a channel for each topic, the messages in it, their properties, and the schemas of events that are published as they
    are stored or as CloudEvents. Of a message that a function makes it says which function.

    \b
    Example:
      eventstore schema asyncapi bank:app -o bank.asyncapi.json
    """
    from eventstore.domain.asyncapi import asyncapi as document_of
    from eventstore.domain.import_path import load

    document = document_of(load(domain), title or domain, api_version, publish)
    channels, messages = len(document["channels"]), len(document["components"]["messages"])
    _print_or_write(document, out, f"{counted(channels, 'channel')} with {counted(messages, 'message')}")


def _print_or_write(document: object, out: Path | None, what: str) -> None:
    """Prints a document as JSON, or replaces a file by it and says so. `what`: it has."""
    text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    if out is None:
        print(text, end="")
        return
    written = out.with_name(f"{out.name}.new")
    written.write_text(text, encoding="utf-8")
    written.replace(out)
    print_line(f"{what} written to {out}")


@schema.command("check", cls=PlainCommand)
def check(
    domain: Place,
    against: Annotated[str, typer.Option(metavar="FILE|STORE", help="An export, or the address of a store.")],
    events: Annotated[
        int, typer.Option(min=0, help="Of a store: how many events are read, half of them the newest, half the oldest; 0: all.")
    ] = 10_000,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="TYPE", help="Of a store: events of this type are another domain's. Repeatable.")
    ] = None,
    sarif: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the findings here, as SARIF 2.1.0.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find what stored events and clients have that the code no longer takes.

    Compared with an export: events and commands that are gone, fields that are gone, new without a default, or of another type,
    and versions whose upcasts fail on an event that is made up from their schema. Compared with a store: events that no class
    reads. Nothing is changed. The exit code is 1 if anything is found.

    \b
    Examples:
      eventstore schema check bank:app --against bank.schema.json --sarif schema.sarif
      eventstore schema check bank:app --against tcp://127.0.0.1:7701
    """
    from eventstore.domain.import_path import load
    from eventstore.domain.schema import RULES, Misfit, changes

    found: list[Misfit] = []
    looked = f"the code fits {against}"
    try:
        loaded = load(domain)
    except DomainRefused as error:
        if "schema" not in error.fields:
            raise
        found.append(Misfit("event-upcast", str(error.fields.get("type", "")), error.message))
    else:
        if "://" in against:
            sampled = _sampled(against, loaded, events or None, ignore or [])
            found += sampled.findings
            looked += f": {counted(sampled.events, 'event')} read"
        else:
            found += changes(loaded, _read(Path(against)))
    if sarif is not None:
        from eventstore import __version__
        from eventstore.cli.terminal.sarif import sarif as sarif_of

        sarif.write_text(sarif_of(found, RULES, __version__, Path.cwd()), encoding="utf-8")
    if as_json:
        print_json([{"rule": each.rule, "subject": each.subject, "message": each.message} for each in found])
    else:
        for each in found:
            print_line(f"{each.rule}: {each.message}")
    if found:
        print_error(f"{counted(len(found), 'thing does', 'things do')} not fit {against}")
        raise typer.Exit(1)
    if not as_json:
        print_line(looked)


def _read(path: Path) -> dict[str, Any]:
    from eventstore.domain.schema import checked_export

    try:
        return checked_export(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, InvalidArgument) as error:
        raise InvalidArgument(f"{path}: {error}", field="against") from None


def _sampled(address: str, domain: Domain, events_max: int | None, ignored: list[str]) -> Sampled:
    import trio

    from eventstore.client.aio.store import connect
    from eventstore.domain.sampled_events import unread

    async def run() -> Sampled:
        async with connect(address, name="eventstore schema check") as store:
            return await unread(store, domain, events_max, ignored)

    return trio.run(run)
