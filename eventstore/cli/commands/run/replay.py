"""Replays kept commands with code before it is deployed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import meter, print_error, print_json, print_line, print_note
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, ShowProgress, StoreAddress, parse_time
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.domain.kept_commands import KeptCommand
    from eventstore.domain.what_if import WhatIf


def replay(
    domain: Annotated[str, typer.Option(metavar="MODULE:NAME", help="The domain, such as bank:app.")],
    commands: Annotated[str, typer.Option(metavar="TOPIC", help="Where a server keeps its commands (keep_commands).")],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only commands answered from this time on (ISO 8601).")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only commands answered up to this time.")] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="Replay the first N of them at most; they are held in memory.")
    ] = 1_000_000,
    run_async: Annotated[
        bool, typer.Option("--run-async", help="Also run async handlers, which may do more than decide.")
    ] = False,
    values: Annotated[bool, typer.Option("--values", help="In JSON, also show the fields of events.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Report in Markdown, for a pull request.")] = False,
    progress: ShowProgress = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Replay commands with code before it is deployed.

    Each command is decided on the events that were stored before it, in memory: nothing is written. Reported are other outcomes
    and other events. Commands of async handlers are left out and counted. The exit code is 1 if anything differs.

    \b
    Example:
      eventstore replay --domain bank:app --commands commands --from 2026-11-01T00:00:00Z
      eventstore replay --domain bank:app --commands commands --markdown > report.md
    """
    import trio

    from eventstore.client.aio.store import connect
    from eventstore.domain.import_path import load
    from eventstore.domain.what_if import what_if

    loaded = load(domain)
    kept = list(islice(_kept(store, commands, from_, to), limit))
    if len(kept) == limit:
        print_note(f"these are the first {limit:,} commands; --from and --to choose others, --limit allows more")

    async def run() -> WhatIf:
        async with connect(store, name="eventstore replay") as connected:
            return await what_if(connected, loaded, kept, run_async=run_async, on_progress=on_progress)

    with meter("replay", progress) as bar:

        def on_progress(done: int) -> None:
            bar.update(done, len(kept), counted(done, "command"))

        found = trio.run(run)
    if as_json:
        counts = [{"type": type, "what": what, "commands": count} for (type, what), count in found.counts.most_common()]
        totals = {"commands": len(kept), "same": found.same, "different": found.different, "skipped": dict(found.skipped)}
        print_json({**totals, "counts": counts, "samples": [each.as_json(values=values) for each in found.samples]})
    else:
        for line in (_markdown if markdown else _text)(found, domain):
            print_line(line)
    if found.different:
        print_error(f"{counted(found.different, 'command is', 'commands are')} decided otherwise")
        raise typer.Exit(1)


def _kept(store: str, topic: str, from_: str | None, to: str | None) -> Iterator[KeptCommand]:
    from eventstore.cli.terminal.broker_connection import connect_to_broker
    from eventstore.cli.transfer.topic_walk import walk_topic
    from eventstore.domain.kept_commands import decode_kept
    from eventstore.model import micros

    first = None if from_ is None else micros(parse_time("--from", from_))
    last = None if to is None else micros(parse_time("--to", to))
    with connect_to_broker(store, "replay") as connected:
        for item in walk_topic(connected, topic, None, from_start=True, follow=False):
            if item is not None:
                time = item[1].timestamp
                if (first is None or time >= first) and (last is None or time <= last):
                    yield decode_kept(item[1].body)


def _totals(found: WhatIf) -> str:
    return f"{counted(found.different + found.same, 'command')} replayed, {found.different:,} decided otherwise"


def _text(found: WhatIf, _: str) -> Iterator[str]:
    yield _totals(found)
    yield from (f"{counted(count, 'command')} not replayed: {why}" for why, count in found.skipped.most_common())
    for (type, what), count in found.counts.most_common():
        yield f"{type}: {what}: {counted(count, 'command')}"
        for each in found.samples:
            if (each.command.type, each.what) == (type, what):
                error = "" if each.error is None else f": {each.error}"
                yield f"  {each.command.aggregate_id}  {each.command.command_id}{error}"


def _markdown(found: WhatIf, domain: str) -> Iterator[str]:
    yield f"### What if: `{domain}`"
    yield ""
    yield f"{_totals(found)}."
    yield from (f"- {counted(count, 'command')} not replayed: {why}" for why, count in found.skipped.most_common())
    if not found.counts:
        return
    yield ""
    yield "| command | what | commands | such as |"
    yield "| --- | --- | ---: | --- |"
    for (type, what), count in found.counts.most_common():
        such = [each.command for each in found.samples if (each.command.type, each.what) == (type, what)]
        named = ", ".join(_code(each.aggregate_id) for each in such[:3])
        yield f"| {_code(type)} | {_cell(what)} | {count:,} | {named} |"


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    return f"`{text.replace('`', ' ').replace('|', ' ')}`"
