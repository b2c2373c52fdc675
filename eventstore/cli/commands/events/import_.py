"""Imports events from files of JSON lines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import meter, print_error, print_json, print_line, print_note
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, EventForm, ShowProgress, StoreAddress
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.cli.transfer.import_run import Summary
    from eventstore.cli.transfer.line_source import LineSource
    from eventstore.errors import EventStoreError

_REFUSALS_SHOWN = 10


def import_(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Lines of JSON, packed (.gz) or not; - is standard input.")
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first line that is refused.")] = False,
    refusals: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all refusals to this file, one JSON object per line; created with the first."),
    ] = None,
    reactions: Annotated[
        bool,
        typer.Option("--reactions/--no-reactions", help="Mark the events, so that reactions never handle them."),
    ] = True,
    publish: Annotated[
        bool, typer.Option("--publish/--no-publish", help="Mark the events, so that they are never published to topics.")
    ] = True,
    domain: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Store nothing unless all events fit the classes of this domain, such as bank:app.",
        ),
    ] = None,
    form: EventForm = "lines",
    progress: ShowProgress = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Import events from files, one JSON object per line.

    Each has aggregate_id, command_id, event_type, timestamp (ISO 8601 with zone), data (any JSON), perhaps metadata and tags.
    The lines of a file with the same aggregate and command id form one commit; those that an export has marked as a commit
    of several aggregates are stored together. Times are kept. Importing again writes
    nothing, so run an interrupted import again. A refused line holds back what follows of its aggregate, and if its ids cannot
    be read, all that it may belong to; correct it and import the file again. The exit code is 1 if anything was refused.

    Reactions and publishing take imported events as if they happened now, unless you switch that off.

    \b
    Example:
      eventstore import events.jsonl.gz more.jsonl
      eventstore import old.jsonl.gz --no-reactions --no-publish --domain bank:app
      eventstore import events.cloudevents.jsonl --format cloudevents
    """
    import time

    from eventstore.cli.transfer.import_run import Summary
    from eventstore.cli.transfer.refusals import Refusals

    started = time.perf_counter()
    summary = Summary(refusals=Refusals(refusals))
    failed = _run(store, _source(files, reactions, publish, domain, form), summary, strict, progress)
    if summary.interrupted:
        print_note(f"{_imported(summary)}; run it again to continue")
        raise KeyboardInterrupt
    if failed is not None and not summary.events:
        raise failed
    _print_summary(summary, time.perf_counter() - started, as_json)
    if failed is not None:
        why = f"{failed.filename or store}: {failed.strerror}" if isinstance(failed, OSError) else failed.message
        print_error(f"{why}; {_imported(summary)}, run it again to continue")
        raise typer.Exit(1)
    if summary.refused:
        refused, of_any = counted(summary.refused, "event was", "events were"), summary.refusals.of_any
        held = f", {summary.held_back:,} held back because of them" if summary.held_back else ""
        if domain is not None:
            held += ", and nothing was imported: all events have to fit the domain"
        elif of_any is not None:
            held += f" (line {of_any.line} of {of_any.file} may belong to any commit, so nothing was imported)"
        print_error(f"{refused} refused{held}; correct these lines and import the file again")
        raise typer.Exit(1)


def _source(files: list[str], reactions: bool, publish: bool, domain: str | None, form: str) -> LineSource:
    from eventstore.cli.transfer.event_lines import reader
    from eventstore.cli.transfer.line_rules import line_rules
    from eventstore.cli.transfer.line_source import LineSource

    return LineSource(files, line_rules(reactions, publish, domain, reader(form)))


def _run(
    store: str, source: LineSource, summary: Summary, strict: bool, progress: bool | None
) -> EventStoreError | OSError | None:
    """Imports under a progress bar. Returns the error that ended it early, if any."""
    import time
    from contextlib import closing

    import trio

    from eventstore.cli.transfer.import_run import run_import
    from eventstore.errors import EventStoreError

    started = time.perf_counter()
    with meter("import", progress) as bar, closing(summary.refusals):

        def on_progress() -> None:
            rate = summary.events / (time.perf_counter() - started)
            text = f"{counted(summary.events, 'event')}, {rate:,.0f}/s" if source.is_surveyed else "looking for commits"
            bar.update(source.done_bytes, source.total_bytes, text)

        try:
            try:
                trio.run(lambda: run_import(store, source, summary, strict=strict, on_progress=on_progress))
            except* KeyboardInterrupt:
                summary.interrupted = True
        except (EventStoreError, OSError) as error:
            return error
    return None


def _imported(summary: Summary) -> str:
    before = f" ({summary.repeated:,} more were there before)" if summary.repeated else ""
    return f"{counted(summary.new, 'event')} imported{before}"


def _print_summary(summary: Summary, seconds: float, as_json: bool) -> None:
    refusals = summary.refusals
    if as_json:
        print_json(
            {
                "events": summary.events,
                "new": summary.new,
                "repeated": summary.repeated,
                "refused": summary.refused,
                "held_back": summary.held_back,
                "misplaced": summary.misplaced,
                "commits": summary.commits,
                "seconds": round(seconds, 3),
                "events_per_second": round(summary.events / seconds),
                "refusals": [asdict(item) for item in refusals.kept],
                "refusals_not_shown": refusals.count - len(refusals.kept),
            }
        )
        return
    print(f"{counted(summary.events, 'event')} in {seconds:.1f} s ({summary.events / seconds:,.0f} events/s)")
    print(f"  new       {summary.new:>12,}")
    print(f"  repeated  {summary.repeated:>12,}")
    print(f"  refused   {summary.refused:>12,}")
    if summary.held_back:
        print(f"  held back {summary.held_back:>12,}  (because of refused lines)")
    if summary.misplaced:
        print(f"  misplaced {summary.misplaced:>12,}  (repeated; in the store they stand before events that precede them here)")
    for item in refusals.kept[:_REFUSALS_SHOWN]:
        print_line(f"    {item}")
    more = refusals.count - _REFUSALS_SHOWN
    if more > 0:
        where = "--refusals FILE writes all of them" if refusals.path is None else f"all are in {refusals.path}"
        print_line(f"    … and {more:,} more; {where}")
