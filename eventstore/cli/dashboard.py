"""What `eventstore top` draws: a snapshot as a few tables, for a terminal or for lines of text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from eventstore.cli.output import escaped, shown

if TYPE_CHECKING:
    from eventstore.cli.snapshot import Snapshot

_WIDE: Final = 160
_KIB: Final = 1024


def dashboard(snapshot: Snapshot, address: str, *, with_queues: bool) -> RenderableType:
    """The snapshot, to be drawn."""
    parts: list[RenderableType] = [*_headlines(snapshot, address), _topics(snapshot)]
    if with_queues:
        parts.append(_queues(snapshot))
    parts += [_groups(snapshot), _chunks(snapshot)]
    return Group(*parts)


def print_dashboard(snapshot: Snapshot, address: str, *, with_queues: bool) -> None:
    """As lines; not cut to the width of anything but a terminal."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    with console.capture() as captured:
        console.print(dashboard(snapshot, address, with_queues=with_queues))
    for line in captured.get().rstrip().splitlines():
        print(line.rstrip())


def _headlines(snapshot: Snapshot, address: str) -> list[Text]:
    figures = snapshot.figures
    lines = [
        f"{address}  {shown(figures.get('events'))} events  {_rate(snapshot.events_a_second)} events/s  "
        f"{_rate(snapshot.requests_a_second)} requests/s  {shown(figures.get('connections'))} connections  "
        f"{shown(figures.get('subscriptions'))} subscriptions"
    ]
    if figures.get("published_sequence"):
        lines.append(f"published up to sequence {shown(figures['published_sequence'])}, "
                     f"{shown(figures.get('publish_backlog'))} to go")  # fmt: skip
    lines += [f"attention: {figures[name]!s}" for name in ("attention", "broker_attention") if figures.get(name)]
    return [Text(escaped(line)) for line in lines]


def _topics(snapshot: Snapshot) -> Table:
    rows = [
        (row.topic, row.queues, row.messages, row.written, _bytes(row.written_bytes), row.read, _bytes(row.read_bytes))
        for row in snapshot.topics
    ]
    title = _title("Topics", len(snapshot.topics), snapshot.topics_total)
    return _table(title, ("topic", "queues", "messages", "written/s", "bytes/s", "read/s", "bytes/s"), rows, 1)


def _queues(snapshot: Snapshot) -> Table:
    rows = [
        (row.topic, row.state, row.queue, row.begin, row.end, row.written, row.read) for row in snapshot.queues
    ]  # fmt: skip
    return _table("Queues", ("topic", "state", "queue", "begin", "end", "written/s", "read/s"), rows, 2)


def _groups(snapshot: Snapshot) -> Table:
    rows = [(row.group, row.members, row.generation, row.backlog, row.dead) for row in snapshot.groups]
    title = _title("Consumer groups", len(snapshot.groups), snapshot.groups_total)
    return _table(title, ("group", "members", "generation", "backlog", "dead letters"), rows, 1)


def _chunks(snapshot: Snapshot) -> Table:
    rows = [
        (each.state, each.number, _bytes(each.size_bytes), each.mapped, each.written, each.read) for each in snapshot.chunks
    ]
    return _table("Last chunks", ("state", "chunk", "size", "mapped", "written/s", "read/s"), rows, 1)


def _title(what: str, looked_at: int, total: int) -> str:
    return what if looked_at >= total else f"{what} (the first {looked_at} of {total})"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], names: int) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < names else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(escaped(shown(value))) for value in row))
    return table


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _bytes(count: int) -> str:
    """With a unit, so that columns stay narrow."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIB or unit == "GiB":
            break
        size /= _KIB
    return f"{count:,} B" if unit == "B" else f"{size:,.1f} {unit}"
