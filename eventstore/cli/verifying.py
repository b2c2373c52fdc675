"""`eventstore verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.options import AsJson, DataFolder
from eventstore.cli.output import counted, meter, print_error, print_json, print_line

if TYPE_CHECKING:
    from eventstore.store.verification import Progress, Verified

_CANNOT_BE_OPENED = 2
_FINDINGS_SHOWN = 50


def verify(
    data: DataFolder,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar. [on a terminal]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a data folder that is not being served.

    Checksums of everything, versions and sequences without gaps, command ids used once, indexes and directory against
    the event files. Changes nothing. The exit code is 0 if all is well, 1 if something was found, 2 if the folder
    cannot be opened.

    \b
    Example:
      eventstore verify ./data
    """
    from eventstore.errors import EventStoreError
    from eventstore.store.verification import verify

    try:
        with meter("verify", progress) as bar:

            def on_progress(step: Progress) -> None:
                bar.update(step.done_bytes, step.total_bytes, step.step)

            verified = verify(data, on_progress)
    except EventStoreError as error:
        print_error(error.message)
        raise typer.Exit(_CANNOT_BE_OPENED) from None
    except OSError as error:
        print_error(f"{error.filename or data}: {error.strerror}")
        raise typer.Exit(_CANNOT_BE_OPENED) from None
    _print_json(verified) if as_json else _print(verified)
    if not verified.sound:
        raise typer.Exit(1)


def _print(verified: Verified) -> None:
    print(
        f"{counted(verified.events, 'event')} in {counted(verified.commits, 'commit')} of "
        f"{counted(verified.aggregates, 'aggregate')}, {counted(verified.event_files, 'event file')} "
        f"({verified.sorted_files:,} sorted)"
    )
    for note in verified.notes:
        print_line(f"  note: {note}")
    for finding in verified.findings[:_FINDINGS_SHOWN]:
        print_line(f"  {finding}")
    if verified.findings_total > _FINDINGS_SHOWN:
        print(f"  … and {verified.findings_total - _FINDINGS_SHOWN} more (--json shows up to {len(verified.findings)})")
    print(counted(verified.findings_total, "fault") if verified.findings_total else "no faults")


def _print_json(verified: Verified) -> None:
    findings = [{"file": item.file, "offset": item.offset, "what": item.what} for item in verified.findings]
    names = ("event_files", "sorted_files", "commits", "events", "aggregates")
    figures = {name: getattr(verified, name) for name in names}
    print_json(
        {"sound": verified.sound, **figures, "faults": verified.findings_total, "findings": findings, "notes": verified.notes}
    )
