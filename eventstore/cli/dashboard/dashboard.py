"""Draws a snapshot of a server as tables, on a terminal or as lines of text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from eventstore.cli.terminal.cluster_table import SPLIT_NOTE
from eventstore.cli.terminal.shard_rows import by_shard, of_shard
from eventstore.fields import escaped, for_people

if TYPE_CHECKING:
    from eventstore.cli.dashboard.server_snapshot import ServerSnapshot

_WIDE: Final = 160
_KIB: Final = 1024


def dashboard(snapshot: ServerSnapshot, address: str, *, with_queues: bool) -> RenderableType:
    """Returns the snapshot as something rich can draw."""
    parts: list[RenderableType] = _headlines(snapshot, address)
    if snapshot.missing is not None:
        return Group(*parts)
    if snapshot.reactions:
        parts.append(_reactions(snapshot))
    parts.append(_topics(snapshot))
    if with_queues:
        parts.append(_queues(snapshot))
    parts += [_groups(snapshot), _chunks(snapshot)]
    return Group(*parts)


def print_dashboard(snapshot: ServerSnapshot, address: str, *, with_queues: bool) -> None:
    """Prints the snapshot as lines, cut to the width of a terminal only."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    with console.capture() as captured:
        console.print(dashboard(snapshot, address, with_queues=with_queues))
    for line in captured.get().rstrip().splitlines():
        print(line.rstrip())


def _headlines(snapshot: ServerSnapshot, address: str) -> list[RenderableType]:
    stats = snapshot.stats
    lines = [
        f"{address}  events: {for_people(stats.get('events'))}  events/s: {_rate(snapshot.events_a_second)}  "
        f"requests/s: {_rate(snapshot.requests_a_second)}  connections: {for_people(stats.get('connections'))}  "
        f"subscriptions: {for_people(stats.get('subscriptions'))}"
    ]
    if stats.get("published_sequence") or stats.get("publish_backlog"):
        lag = stats.get("publish_lag_microseconds")
        lines.append(
            f"published up to sequence {for_people(stats['published_sequence'])}, "
            f"{for_people(stats.get('publish_backlog'))} to go"
            + (f", the oldest for {lag / 1e6:.1f} s" if isinstance(lag, int) and lag else "")
        )
    if snapshot.layout > 1:
        lines.append(SPLIT_NOTE)
    lines += [f"attention: {stats[name]!s}" for name in ("attention", "broker_attention") if stats.get(name)]
    if snapshot.missing is not None:
        lines.append(f"reactions and messages are not known: {snapshot.missing}")
    return [Text(escaped(line)) for line in lines]


def _reactions(snapshot: ServerSnapshot) -> Table:
    rows = [
        (
            each.name + of_shard(each.shard),
            each.state,
            each.error,
            each.position,
            each.lag_events,
            f"{each.lag_microseconds / 1e6:.1f} s",
            each.parked,
        )
        for each in snapshot.reactions
    ]
    return _table("Reactions", ("reaction", "state", "last error", "position", "lag", "age", "parked"), rows, 3)


def _topics(snapshot: ServerSnapshot) -> Table:
    rows = [
        (row.topic, row.queues, row.messages, row.written, _bytes(row.written_bytes), row.read, _bytes(row.read_bytes))
        for row in snapshot.topics
    ]
    title = _title("Topics", len(snapshot.topics), snapshot.topics_total)
    return _table(title, ("topic", "queues", "messages", "written/s", "bytes/s", "read/s", "bytes/s"), rows, 1)


def _queues(snapshot: ServerSnapshot) -> Table:
    rows = [(row.topic, row.state, row.queue, row.begin, row.end, row.written, row.read) for row in snapshot.queues]
    columns = ("topic", "state", "queue", "begin", "end", "written/s", "read/s")
    return _table_by_shard("Queues", columns, rows, 2, [row.shard for row in snapshot.queues])


def _groups(snapshot: ServerSnapshot) -> Table:
    rows = [(row.group, row.members, row.generation, row.backlog, row.dead) for row in snapshot.groups]
    title = _title("Consumer groups", len(snapshot.groups), snapshot.groups_total)
    return _table(title, ("group", "members", "generation", "backlog", "dead letters"), rows, 1)


def _chunks(snapshot: ServerSnapshot) -> Table:
    rows = [
        (each.state, each.number, _bytes(each.size_bytes), each.mapped, each.written, each.read) for each in snapshot.chunks
    ]
    columns = ("state", "chunk", "size", "mapped", "written/s", "read/s")
    return _table_by_shard("Last chunks", columns, rows, 1, [each.shard for each in snapshot.chunks])


def _title(what: str, looked_at: int, total: int) -> str:
    return what if looked_at >= total else f"{what} (the first {looked_at} of {total})"


def _table_by_shard(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], names: int, shards: Sequence[int | None]
) -> Table:
    return _table(title, *by_shard(columns, rows, shards), names + any(each is not None for each in shards))


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], names: int) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < names else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(escaped(for_people(value))) for value in row))
    return table


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _bytes(count: int) -> str:
    """Formats a size with a unit, to keep columns narrow."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIB or unit == "GiB":
            break
        size /= _KIB
    return f"{count:,} B" if unit == "B" else f"{size:,.1f} {unit}"
