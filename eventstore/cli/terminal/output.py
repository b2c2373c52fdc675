"""Prints results for people and programs: lines, JSON, tables, a progress bar. Errors are one line on standard error.

All text for people goes through `escaped`: ids, types and messages come from others, and must neither break their line nor
control the terminal. JSON stays JSON.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

from eventstore.fields import escaped, for_people

if TYPE_CHECKING:
    from rich.table import Table

    from eventstore.model import Event
    from eventstore.position import Position

_REDRAW_SECONDS: Final = 0.1
_WIDE: Final = 250
_ENDS_MAX: Final = 16
_JSON_SPACE: Final = str.maketrans("\t\r\n", "   ")


def print_line(text: str) -> None:
    """Prints a line of a result for people."""
    print(escaped(text))


def print_error(message: str) -> None:
    """Prints an error as one line, even if the message has several."""
    print("error:", escaped(" ".join(message.split())), file=sys.stderr)


def print_note(message: str) -> None:
    """Prints a note that is not part of the result; therefore on standard error."""
    print(escaped(message), file=sys.stderr)


def print_position(position: Position, as_json: bool) -> None:
    """Prints, on standard error, the place from which `--after` continues, or `--before`; after all results."""
    import json

    sys.stdout.flush()  # where both go to one file, it is the last line
    print_note(json.dumps({"position": str(position)}) if as_json else str(position))


def print_json(value: object) -> None:
    import json

    print(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table with numbers aligned right. Cut to the width of a terminal only."""
    from rich.console import Console

    table = make_table(title, columns, rows)
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().rstrip().splitlines():
        print(line.rstrip())


def make_table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Returns what `print_table` prints, for rich to draw."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=any(columns))
    for column, name in enumerate(columns):
        numbers = bool(cells) and all(isinstance(row[column], int | float) for row in cells)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(escaped(for_people(value))) for value in row))
    return table


def print_event(event: Event, shard: int | None = None, *, with_aggregate: bool, as_json: bool = False) -> None:
    """Prints an event as one line, for people or of JSON. `shard`: its shard, if there are several."""
    from eventstore.model import METADATA_IS_JSON

    if as_json:
        from eventstore.cli.transfer.event_lines import format_event

        print(format_event(event, shard))
        return

    parts = [
        f"#{event.sequence}{at_shard(shard)}",
        f"v{event.version}",
        _time(event),
        event.type,
        "erased" if event.erased else "encrypted" if event.encrypted else _payload(event.data, event.is_json),
    ]
    if with_aggregate:
        parts.insert(1, event.aggregate_id)
    if event.metadata is not None:
        parts.append("metadata " + _payload(event.metadata, bool(event[8] & METADATA_IS_JSON)))
    if event.subject is not None:
        parts.append(f"subject {event.subject}")
    if event.tags:
        parts.append("tags " + ", ".join(event.tags))
    print_line("  ".join(parts))


def moment(us: int | None) -> str | None:
    """Returns a time, in microseconds since 1970, to the second; None for none and for 0."""
    return f"{datetime.fromtimestamp(us / 1e6, UTC):%FT%TZ}" if us else None


def at_shard(shard: int | None) -> str:
    """Returns what follows a sequence, which counts within its shard if there are several."""
    return "" if shard is None else f"@{shard}"


def ends_text(sequences: Mapping[int, int]) -> str:
    """Returns where a reader of several shards stands, in words for people."""
    if len(sequences) > _ENDS_MAX:
        return f"the ends of {len(sequences)} shards"
    return " ".join(f"#{sequence}{at_shard(shard)}" for shard, sequence in sorted(sequences.items()))


def _payload(payload: bytes, is_json: bool) -> str:
    """Formats a payload as one line. Line breaks in JSON are only white space, unlike those in an id."""
    return payload.decode(errors="replace").translate(_JSON_SPACE) if is_json else repr(payload)


def _time(event: Event) -> str:
    try:
        return event.time.isoformat(timespec="microseconds")  # to the digit: an option such as --from-time may take it
    except OverflowError:
        return f"{event.timestamp} µs"


class Meter(Protocol):
    """Shows progress: `done` of `total`, and a few words."""

    def update(self, done: int, total: int | None, words: str) -> None: ...


class _NoMeter:
    def update(self, done: int, total: int | None, words: str) -> None:
        """Shows nothing."""


@contextmanager
def meter(title: str, shown_if: bool | None) -> Iterator[Meter]:
    """Opens a progress bar on standard error; with None only if that is a terminal."""
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
