"""What differs between the rows of two tables of a projection: how many rows, in which columns, and some of them.

States are left out: readers do not see them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from eventstore.domain.projections.projection import KEY_COLUMN, STATE_COLUMN, Projection, keys_of, wanted_by
from eventstore.errors import InvalidArgument
from eventstore.fields import counted, shown
from eventstore.model import Event

KeyedRow: TypeAlias = Sequence[Any]
"""The key, and the values of the columns that both tables have."""

SAMPLES_OF_KIND: Final = 3
SAMPLES_MAX: Final = 30
_KINDS_MAX: Final = 100
_OTHER_COLUMNS: Final = "other columns"
EVENTS_OF_SAMPLE: Final = 5


class DifferentRow(NamedTuple):
    """A row that differs. `before`, `after`: its columns; None: the table has no such row."""

    key: str
    kind: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    def told(self) -> str:
        """Returns the line that a command prints."""
        if self.before is None or self.after is None:
            row = self.before if self.after is None else self.after
            return f"{self.key}: {', '.join(f'{name} {shown(value)}' for name, value in (row or {}).items())}"
        changes = (
            f"{name} {shown(self.before[name])} → {shown(self.after[name])}"
            for name in self.before
            if self.before[name] != self.after[name]
        )
        return f"{self.key}: {', '.join(changes)}"


@dataclass
class TableDifference:
    """`counts`: rows by kind of difference: `only in TABLE`, or `changed: COLUMNS`. `samples`: up to 3 rows of each kind, 30 in
    all. `columns`: those that only one of the tables has, as `COLUMN only in TABLE`. `places`: up to where each table is
    complete, by table and, over shards, by shard.
    """

    before: str
    after: str
    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    samples: list[DifferentRow] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    _sampled: Counter[str] = field(default_factory=Counter)

    @property
    def differs(self) -> bool:
        return bool(self.counts or self.columns)

    def told(self, events: dict[str, list[Event]] | None = None) -> Iterator[str]:
        """Returns the lines that a command prints. `events`: the latest of the rows in `samples`."""
        if not self.counts:
            yield f"{self.before} and {self.after}: no row differs of {self.rows:,}"
        else:
            differing = counted(self.counts.total(), "row differs", "rows differ")
            yield f"{self.before} and {self.after}: {differing} of {self.rows:,}"
        one, other = self._places(self.before), self._places(self.after)
        if one != other:
            places = ", ".join(f"{table} {sequence:,}" for table, sequence in sorted(self.places.items()))
            yield f"  complete up to: {places}; rows of the events between differ for that alone"
        yield from (f"  column {each}" for each in self.columns)
        for kind, count in self.counts.most_common():
            yield f"  {count:,} {kind}"
            for row in self.samples:
                if row.kind == kind:
                    yield f"    {row.told()}"
                    yield from (f"      {_told(event)}" for event in (events or {}).get(row.key, ()))

    def _places(self, table: str) -> dict[str, int]:
        """Returns up to where a table is complete, by what its checkpoints are called beside its name."""
        rows = {row: row.removeprefix(table) for row in self.places if row == table or row.startswith(f"{table}@")}
        return {part: self.places[row] for row, part in rows.items()}

    def as_json(self, events: dict[str, list[Event]]) -> dict[str, Any]:
        """Returns what a command prints as JSON. `events`: as `told`."""
        samples = [
            {**row._asdict(), "events": [_event_fields(event) for event in events.get(row.key, ())]} for row in self.samples
        ]
        counted_kinds = {"rows": self.rows, "differ": self.counts.total(), "counts": dict(self.counts.most_common())}
        tables = {"before": self.before, "after": self.after, "columns": self.columns, "places": self.places}
        return {**tables, **counted_kinds, "samples": samples}


def _event_fields(event: Event) -> dict[str, Any]:
    return {"sequence": event.sequence, "aggregate_id": event.aggregate_id, "version": event.version, "type": event.type}


def _told(event: Event) -> str:
    return f"sequence {event.sequence}, {event.aggregate_id} v{event.version}, {event.type} {shown(event.data)}"


def between(before: str, after: str, columns: Sequence[str], columns_after: Sequence[str]) -> tuple[TableDifference, list[str]]:
    """Returns a comparison of two tables with these columns that is to be made, and the columns of both that readers see.

    Raises:
        InvalidArgument: there is no such table: it has no columns.
    """
    for table, names in ((before, columns), (after, columns_after)):
        if not names:
            raise InvalidArgument(
                f"there is no table {table!r}: `eventstore project --beside` makes that of another version",
                field="table",
                value=table,
            )
    found = TableDifference(before, after)
    found.columns = [f"{name} only in {before}" for name in columns if name not in columns_after]
    found.columns += [f"{name} only in {after}" for name in columns_after if name not in columns]
    return found, [name for name in columns if name in columns_after and name not in (KEY_COLUMN, STATE_COLUMN)]


def compare(
    found: TableDifference, columns: Sequence[str], before: Iterable[KeyedRow], after: Iterable[KeyedRow]
) -> TableDifference:  # fmt: skip
    """Counts what differs between two tables, whose rows come in the order of their keys, by code points."""
    one, other = iter(before), iter(after)
    left, right = next(one, None), next(other, None)
    while left is not None or right is not None:
        found.rows += 1
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            note(found, columns, f"only in {found.before}", left, None)
            left = next(one, None)
        elif left is None or right[0] < left[0]:
            note(found, columns, f"only in {found.after}", None, right)
            right = next(other, None)
        else:
            changed = [name for at, name in enumerate(columns, 1) if left[at] != right[at]]
            if changed:
                note(found, columns, f"changed: {', '.join(changed)}", left, right)
            left, right = next(one, None), next(other, None)
    return found


def note(
    found: TableDifference, columns: Sequence[str], kind: str, before: KeyedRow | None, after: KeyedRow | None, rows: int = 1
) -> None:
    """Counts rows that differ in this way, and keeps this one if there is room."""
    if kind not in found.counts and len(found.counts) >= _KINDS_MAX:
        kind = f"changed: {_OTHER_COLUMNS}"
    found.counts[kind] += rows
    if found._sampled[kind] < SAMPLES_OF_KIND and len(found.samples) < SAMPLES_MAX:
        found._sampled[kind] += 1
        one, other = (None if each is None else dict(zip(columns, each[1:], strict=True)) for each in (before, after))
        row = before or after
        assert row is not None
        found.samples.append(DifferentRow(row[0], kind, one, other))


class _Readable(Protocol):
    def read(self, aggregate_id: str) -> AsyncIterator[Event]: ...

    def read_all(self, after: Any = 0, types: Any = None, aggregate_prefix: Any = None) -> Any: ...


async def events_of(store: _Readable, projection: Projection[Any], keys: Iterable[str]) -> dict[str, list[Event]]:
    """Returns the latest events of these rows. Rows by aggregate are read as aggregates; for others, the projection's events
    are looked through once.
    """
    latest = {key: deque[Event](maxlen=EVENTS_OF_SAMPLE) for key in keys}
    wanted = wanted_by(projection)
    if type(projection).key is Projection.key:
        for key, events in latest.items():
            async for event in store.read(key):
                if wanted.types is None or event.type in wanted.types:
                    events.append(event)
    elif latest:
        async for event in store.read_all(0, *wanted):
            (key,) = keys_of(projection, [event])
            if key in latest:
                latest[key].append(event)
    return {key: list(events) for key, events in latest.items()}
