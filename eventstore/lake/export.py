"""Exports what has come up since the last time: reads record batches, makes the columns of each class, appends to its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventstore.domain.domain import Domain
from eventstore.domain.event_columns import EventColumns
from eventstore.fields import check_int
from eventstore.lake.progress import LakeProgress, TypeGroup
from eventstore.lake.tables import LakeTables
from eventstore.position import Position

if TYPE_CHECKING:
    import pyarrow as pa

    from eventstore.client.blocking.store import BlockingStore

CHUNK_EVENTS: Final = 250_000
_CHUNK_EVENTS_MAX: Final = 10_000_000


class Exported(NamedTuple):
    """`events`: added to tables; `tables`: that have been added to."""

    events: int
    tables: int


def export_events(
    store: BlockingStore,
    domain: Domain,
    progress: LakeProgress,
    tables: LakeTables,
    *,
    chunk_events: int = CHUNK_EVENTS,
    on_chunk: Callable[[int], object] = lambda events: None,
) -> Exported:
    """Adds all events of the domain's classes that the tables lack, up to the last one there is, each exactly once, whatever
    has ended earlier exports. Memory holds a chunk: at least `chunk_events` events, and at most a page more.

    Raises:
        PayloadInvalid: an event does not fit into the columns of its class; names both. Nothing of its chunk is in a table that
            was not there before.
        Diverged: the store does not have the event that the lake is at.
        FolderRefused: a table does not take the columns of its class.
    """
    check_int("chunk_events", chunk_events, 1, _CHUNK_EVENTS_MAX)
    columns = {name: EventColumns(each.cls) for name, each in domain.event_types.items()}
    progress.begin(columns)
    added = _Added(tables, on_chunk)
    for place, group in enumerate(progress.groups):
        known = {name: columns[name] for name in group.types if name in columns}
        if not known:
            continue  # the code no longer has these classes
        _finish(store, group, known, added)
        _continue(store, place, progress, known, added, chunk_events)
    return Exported(added.events, len(added.tables))


class _Added:
    """Adds chunks to tables, and counts."""

    def __init__(self, tables: LakeTables, on_chunk: Callable[[int], object]) -> None:
        self._tables, self._on_chunk = tables, on_chunk
        self.events, self.tables = 0, set[str]()

    def has(self, type_: str, chunk: int) -> bool:
        """Returns whether the table has this chunk."""
        return self._tables.chunk(type_) >= chunk

    def add(self, chunk: int, rows: Mapping[str, list[pa.RecordBatch]]) -> None:
        """Adds to each table what it has of a chunk."""
        import pyarrow as pa

        for type_, batches in rows.items():
            if batches:
                table = pa.Table.from_batches(batches)
                self._tables.append(type_, chunk, table)
                self.events += len(table)
                self.tables.add(type_)
        self._on_chunk(self.events)


def _finish(store: BlockingStore, group: TypeGroup, columns: Mapping[str, EventColumns[Any]], added: _Added) -> None:
    """Adds the last chunk to the tables that lack it: the export was interrupted. Those that have no event in it lack it for
    ever, and get nothing.
    """
    if group.end is None or group == group.complete:
        return
    lacking = {name: each for name, each in columns.items() if not added.has(name, group.chunk)}
    if not lacking:
        return
    ends = {shard: place[0] for shard, place in _translated(store, group.end).items()}
    left, rows = group.events, _Rows(lacking)
    for shard, batch in _batches(store, group.begin, group.types):
        whole = batch.filter(_up_to(batch, ends.get(shard, 0)))
        rows.add(whole)
        left -= len(whole)
        if left <= 0:
            break
    added.add(group.chunk, rows.by_type)


def _up_to(batch: pa.RecordBatch, sequence: int) -> Any:
    import pyarrow.compute as pc

    return pc.less_equal(batch["sequence"], sequence)


def _translated(store: BlockingStore, position: Position) -> Mapping[int, tuple[int, str]]:
    """Returns a position by the shards that there are now."""
    stream = store.read_all_arrow(position)
    try:
        return stream.position.shards
    finally:
        stream.close()


def _continue(
    store: BlockingStore,
    place: int,
    progress: LakeProgress,
    columns: Mapping[str, EventColumns[Any]],
    added: _Added,
    chunk_events: int,
) -> None:
    """Adds chunks until there is nothing more."""
    group = progress.groups[place]
    stream = store.read_all_arrow(group.end or 0, group.types)
    rows, count = _Rows(columns), 0
    try:
        for batch in stream:
            rows.add(batch)
            count += len(batch)
            if count >= chunk_events:
                group = _write(place, progress, group, stream.position, rows, count, added)
                rows, count = _Rows(columns), 0
        if count or stream.position != group.end:
            group = _write(place, progress, group, stream.position, rows, count, added)
        if group != group.complete:
            progress.save(place, group.complete)
    finally:
        stream.close()


def _write(
    place: int, progress: LakeProgress, group: TypeGroup, end: Position, rows: _Rows, count: int, added: _Added
) -> TypeGroup:
    """Adds a chunk: first where it ends is durable, then the tables get it."""
    group = group.after(end, count)
    progress.save(place, group)
    added.add(group.chunk, rows.by_type)
    return group


class _Rows:
    """The rows of a chunk, by type."""

    def __init__(self, columns: Mapping[str, EventColumns[Any]]) -> None:
        self._columns = columns
        self.by_type: dict[str, list[pa.RecordBatch]] = {name: [] for name in columns}

    def add(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        for name in pc.unique(batch["type"]).to_pylist():
            if name in self._columns and len(rows := self._columns[name].of(batch)):
                self.by_type[name].append(rows)


def _batches(store: BlockingStore, after: Position | None, types: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Returns the batches, each with its shard."""
    stream = store.read_all_arrow(after or 0, types)
    try:
        for batch in stream:
            yield getattr(stream, "shard", 0), batch
    finally:
        stream.close()
