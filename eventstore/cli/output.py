"""How results reach people and programs: lines, JSON, tables, a progress bar. Errors are one line on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from eventstore.model import Event

_REDRAW_SECONDS: Final = 0.1
_WIDE: Final = 250


def print_error(message: str) -> None:
    """One line, whatever the message looks like."""
    print("error:", " ".join(message.split()), file=sys.stderr)


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 file`, `2 files`; `many` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def print_note(message: str) -> None:
    """Something worth knowing that is no result: on standard error, so that it is never taken for one."""
    print(message, file=sys.stderr)


def print_json(value: object) -> None:
    import json

    print(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; numbers to the right. Not cut to the width of anything but a terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=any(columns))
    for place, name in enumerate(columns):
        numbers = bool(cells) and all(isinstance(row[place], int | float) for row in cells)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(shown(value)) for value in row))
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().rstrip().splitlines():
        print(line.rstrip())


def shown(value: object) -> str:
    """A value for people: numbers with separators, "–" for nothing."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def print_event(event: Event, *, with_aggregate: bool) -> None:
    """One line for people."""
    from eventstore.model import METADATA_IS_JSON

    data = event.data.decode(errors="replace") if event.is_json else repr(event.data)
    parts = [f"#{event.sequence}", f"v{event.version}", _time(event), event.type, data]
    if with_aggregate:
        parts.insert(1, event.aggregate_id)
    if event.metadata is not None:
        as_json = bool(event[8] & METADATA_IS_JSON)
        parts.append("metadata " + (event.metadata.decode(errors="replace") if as_json else repr(event.metadata)))
    print("  ".join(" ".join(part.split("\n")) for part in parts))


def _time(event: Event) -> str:
    try:
        return event.time.isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{event.timestamp} µs"


class Meter(Protocol):
    """Told how far something is: `done` of `total`, and a few words beside it."""

    def update(self, done: int, total: int | None, words: str) -> None: ...


class _NoMeter:
    def update(self, done: int, total: int | None, words: str) -> None:
        """Nobody looks."""


@contextmanager
def meter(title: str, shown_if: bool | None) -> Iterator[Meter]:
    """A progress bar on standard error; None: only where that is a terminal."""
    if not (sys.stderr.isatty() if shown_if is None else shown_if):
        yield _NoMeter()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task(title, total=None, words="")

        class Bar:
            redrawn = 0.0

            def update(self, done: int, total: int | None, words: str) -> None:
                now = time.monotonic()
                progress.update(task, completed=done, total=total, words=words)
                if now - self.redrawn >= _REDRAW_SECONDS or done == total:
                    self.redrawn = now
                    progress.refresh()

        yield Bar()
        progress.refresh()
