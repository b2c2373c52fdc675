"""`eventstore import`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.cli.output import counted, meter, print_error, print_json, print_line

if TYPE_CHECKING:
    from eventstore.cli.import_run import Summary

_REFUSALS_SHOWN = 10


def import_(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Lines of JSON, packed (.gz) or not; - is standard input.")
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first line that is refused.")] = False,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar. [on a terminal]")
    ] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Import events from files, one JSON object a line.

    Each has aggregate_id, command_id, event_type, timestamp (ISO 8601 with zone), data (any JSON) and perhaps metadata.
    Consecutive lines with the same aggregate and command id form one commit. Times are kept. Importing again writes
    nothing, so an import that was interrupted is simply run again. The exit code is 1 if anything was refused.

    \b
    Example:
      eventstore import events.jsonl.gz more.jsonl
    """
    import time

    import trio

    from eventstore.cli.import_run import Summary, run_import
    from eventstore.cli.line_source import Source
    from eventstore.errors import EventStoreError

    started = time.perf_counter()
    summary, source = Summary(), Source(files)
    failed: EventStoreError | OSError | None = None
    with meter("import", progress) as bar:

        def on_progress() -> None:
            rate = summary.events / (time.perf_counter() - started)
            bar.update(source.done_bytes, source.total_bytes, f"{counted(summary.events, 'event')}, {rate:,.0f}/s")

        try:
            trio.run(lambda: run_import(store, source, summary, strict=strict, on_progress=on_progress))
        except (EventStoreError, OSError) as error:
            failed = error
    if failed is not None and not summary.events:
        raise failed
    _print_summary(summary, time.perf_counter() - started, as_json)
    if failed is not None:
        raise failed
    if summary.refused:
        print_error(f"{summary.refused} events were refused; correct these lines and import the file again")
        raise typer.Exit(1)


def _print_summary(summary: Summary, seconds: float, as_json: bool) -> None:
    shown = summary.refusals[:_REFUSALS_SHOWN]
    if as_json:
        print_json(
            {
                "events": summary.events, "new": summary.new, "repeated": summary.repeated, "refused": summary.refused,
                "commits": summary.commits, "seconds": round(seconds, 3), "events_per_second": round(summary.events / seconds),
                "refusals": [{"file": item.file, "line": item.line, "events": item.events, "why": item.why} for item in shown],
            }
        )  # fmt: skip
        return
    print(f"{counted(summary.events, 'event')} in {seconds:.1f} s ({summary.events / seconds:,.0f} events/s)")
    print(f"  new       {summary.new:>12,}")
    print(f"  repeated  {summary.repeated:>12,}")
    print(f"  refused   {summary.refused:>12,}")
    for item in shown:
        print_line(f"    {item.file}, line {item.line}: {item.why}")
    if len(summary.refusals) > len(shown):
        print("    …")
