"""Tables of PostgreSQL and SQLite, of which each row is an event; what the columns mean is said by a `Layout`.

Rows of PostgreSQL have serial numbers that are given out when a transaction inserts, not when it commits: a smaller number may
appear later. So a run first notes the greatest number that it sees, then waits for every transaction that holds the lock of a
writer on the table, and then reads up to that number: who had drawn a smaller one had that lock already, and now its row is
there, or never will be. Nobody is held up. This needs numbers that the insert itself draws, from the table's own sequence and
without a cache; of others (numbers that a program draws ahead) nothing can be known, and the source has to be paused.

SQLite has one writer at a time, so its numbers appear in order.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

from eventstore.cli.transfer.event_lines import ParsedLine, with_tags
from eventstore.cli.transfer.migration.source import SourceRefused, SourceRow
from eventstore.errors import InvalidArgument
from eventstore.extras import advice
from eventstore.fields import shown
from eventstore.import_marks import with_members
from eventstore.json_values import json_text, parsed
from eventstore.model import DATA_IS_JSON, METADATA_IS_JSON, NewEvent, micros
from eventstore.tags import checked_tags

ROWS: Final = 2_000
"""Read at a time."""
WRITERS_S: Final = 60.0
"""How long a run waits for transactions that write."""
_LOOK_S: Final = 0.05
_WRITES: Final = ("RowExclusiveLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(?:\.[A-Za-z_][A-Za-z0-9_$]*)?")
_JSON_KINDS: Final = frozenset({"json", "jsonb"})
_BYTE_KINDS: Final = frozenset({"bytea", "blob"})
_WHOLE_NUMBERS: Final = frozenset({"smallint", "integer", "bigint"})
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MEANINGS: Final = ("position", "aggregate_id", "version", "type", "id", "time", "data", "metadata", "tags")
"""What a column may be; `position`, `aggregate_id`, `type`, `id` and `data` must be there."""
_REQUIRED: Final = ("position", "aggregate_id", "type", "id", "data")


@dataclass(frozen=True)
class Layout:
    """What the columns of a table mean.

    Attributes:
        columns: the name of a column by what it is, see `MEANINGS`.
        first_version: of an aggregate's first event.
        draws_ahead: whether programs draw numbers ahead of their inserts: only a paused source is in order.
        data_is_json: of columns of text: whether they hold JSON; None: it is not said.
        id_prefix: before the id of each event, where it is a mere number.
        aggregate_prefix: before the id of each aggregate; the value of a column, whose name is in angle brackets.
        more: columns that become members of the metadata, by name of the member.
        time_in_data: finds the time in the data.
        id_type: of `eventsourcing`: uuid or text, what the application's ids are; None: of another source.
    """

    table: str
    columns: Mapping[str, str]
    first_version: int = 1
    draws_ahead: bool = False
    data_is_json: bool | None = None
    id_prefix: str = ""
    aggregate_prefix: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    time_in_data: re.Pattern[bytes] | None = None
    id_type: str | None = None

    def checked(self) -> Layout:
        """Raises InvalidArgument: a name is none of a column or table, or a column is missing."""
        missing = [name for name in _REQUIRED if name not in self.columns]
        if missing:
            what = f"it is not said which column is {missing[0]}; give --column {missing[0]}=NAME"
            raise InvalidArgument(what, field="column")
        named = re.findall(r"<([^>]*)>", self.aggregate_prefix)
        for name in (self.table, *self.columns.values(), *self.more.values(), *named):
            if not _NAME.fullmatch(name):
                raise InvalidArgument(f"{shown(name)} is no name of a table or column", field="column", value=shown(name))
        return self


_STATE_TIME: Final = re.compile(rb'"timestamp":\{"_type_":"datetime_iso","_data_":"([^"]{1,40})"\}')
LAYOUTS: Final[Mapping[str, Layout]] = {
    "table": Layout("events", {}),
    "message-db": Layout(
        "message_store.messages",
        {
            "position": "global_position",
            "aggregate_id": "stream_name",
            "version": "position",
            "type": "type",
            "id": "id",
            "time": "time",
            "data": "data",
            "metadata": "metadata",
        },
        first_version=0,
    ),
    "eventsourcing": Layout(
        "stored_events",
        {
            "position": "notification_id",
            "aggregate_id": "originator_id",
            "version": "originator_version",
            "type": "topic",
            "id": "notification_id",
            "data": "state",
        },
        id_prefix="notification-",
        time_in_data=_STATE_TIME,
        id_type="uuid",
    ),
    "debezium": Layout(
        "outboxevent",
        {"aggregate_id": "aggregateid", "type": "type", "id": "id", "data": "payload"},
        aggregate_prefix="<aggregatetype>-",
    ),
    "axon": Layout(
        "domain_event_entry",
        {
            "position": "global_index",
            "aggregate_id": "aggregate_identifier",
            "version": "sequence_number",
            "type": "payload_type",
            "id": "event_identifier",
            "time": "time_stamp",
            "data": "payload",
            "metadata": "meta_data",
        },
        first_version=0,
        draws_ahead=True,
        more={"aggregate_type": "type", "payload_revision": "payload_revision"},
    ),
    "marten": Layout(
        "mt_events",
        {
            "position": "seq_id",
            "aggregate_id": "stream_id",
            "version": "version",
            "type": "type",
            "id": "id",
            "time": "timestamp",
            "data": "data",
        },
        draws_ahead=True,
        more={"dotnet_type": "mt_dotnet_type", "tenant_id": "tenant_id"},
    ),
}
"""Sources that are tables, by their names on the command line."""


def with_options(
    layout: Layout,
    table: str | None,
    columns: Mapping[str, str],
    first_version: int | None,
    data: str | None,
    prefix: str | None,
    id_type: str | None,
) -> Layout:
    """Returns the layout with what was said on the command line. Raises InvalidArgument."""
    unknown = columns.keys() - set(MEANINGS)
    if unknown:
        what = f"--column {min(unknown)}: a column is one of {', '.join(MEANINGS)}"
        raise InvalidArgument(what, field="column", value=min(unknown))
    if data not in (None, "json", "bytes"):
        raise InvalidArgument(f"--data is {shown(data)}, allowed are json and bytes", field="data", value=shown(data))
    if id_type is not None and (layout.id_type is None or id_type not in ("uuid", "text")):
        raise InvalidArgument(f"--id-type is {shown(id_type)}, allowed are, of eventsourcing, uuid and text", field="id-type")
    return replace(
        layout,
        id_type=id_type or layout.id_type,
        table=table or layout.table,
        columns={**layout.columns, **columns},
        first_version=layout.first_version if first_version is None else first_version,
        data_is_json=None if data is None else data == "json",
        aggregate_prefix=layout.aggregate_prefix if prefix is None else prefix,
    ).checked()


class TableSource:
    """What the tables of both databases have in common. `select` returns columns by their meaning, then those of `more`."""

    first_place: int | None = 1

    def __init__(self, name: str, layout: Layout, kinds: Mapping[str, str]) -> None:
        """`kinds`: the types of the table's columns. Raises SourceRefused: a column is not there."""
        self.name = name
        self.layout = layout
        self._prefix_columns = re.findall(r"<([^>]*)>", layout.aggregate_prefix)
        self._kinds = kinds
        if not kinds:
            raise SourceRefused(f"{name}: there is no table {layout.table}; name it with --table")
        self._meanings = [each for each in MEANINGS if each in layout.columns]
        self._more = [each for each in layout.more if layout.more[each].lower() in kinds]
        for column in (*layout.columns.values(), *self._prefix_columns):
            if column.lower() not in kinds:
                what = f"{name}: table {layout.table} has no column {column}; it has {', '.join(kinds)}"
                raise SourceRefused(what)
        self._json = {each: self._is_json(each) for each in ("data", "metadata") if each in layout.columns}

    def form(self) -> Mapping[str, str]:
        """Returns the columns that are read, their types, and what else says which event a row becomes."""
        columns = [*self.layout.columns.values(), *(self.layout.more[each] for each in self._more), *self._prefix_columns]
        layout = self.layout
        found = {f"{layout.table}.{column}": self._kinds[column.lower()] for column in columns}
        ids = {} if layout.id_type is None else {"--id-type": layout.id_type}
        ways = {"--prefix": repr(layout.aggregate_prefix), "--first-version": str(layout.first_version), **ids}
        return {**found, **ways, "--data": "json" if self._json["data"] else "bytes"}

    def _is_json(self, meaning: str) -> bool:
        """Returns whether a column holds JSON. Raises SourceRefused: its type does not say, and nobody has."""
        column = self.layout.columns[meaning]
        kind = self._kinds[column.lower()]
        if kind in _JSON_KINDS:
            return True
        if kind == "oid":
            raise SourceRefused(
                f"{self.name}: column {column} has the numbers of large objects, which are not read; copy them into "
                "a column of type bytea (lo_get), and name that"
            )
        if self.layout.data_is_json is not None:
            return self.layout.data_is_json
        if kind in _BYTE_KINDS:
            return False
        raise SourceRefused(
            f"{self.name}: column {column} is of type {kind}, which may be JSON or not; give --data json or bytes"
        )

    def _columns(self, value: Callable[[str, str], str]) -> str:
        """Returns what is selected. `value`: returns an expression for a meaning and a column."""
        layout = self.layout
        wanted = [(each, layout.columns[each]) for each in self._meanings]
        wanted += [("more", layout.more[each]) for each in self._more]
        wanted += [("more", each) for each in self._prefix_columns]
        return ", ".join(value(meaning, column) for meaning, column in wanted)

    def _rows(self, found: list[tuple[Any, ...]]) -> list[SourceRow]:
        """Makes rows of what was selected. Raises SourceRefused."""
        layout, meanings, rows = self.layout, self._meanings, []
        first = 1 - layout.first_version
        more_at = len(meanings)
        prefix_at = more_at + len(self._more)
        at = {name: place for place, name in enumerate(meanings)}
        position, aggregate, type_, id_, data_ = (at[name] for name in _REQUIRED)
        version_, time_, metadata_, tags_ = (at.get(name) for name in ("version", "time", "metadata", "tags"))
        data_is_json, metadata_is_json = self._json["data"], self._json.get("metadata", False)
        for values in found:
            try:
                data, data_format = _payload(values[data_], data_is_json, DATA_IS_JSON)
                metadata, format_ = None, data_format
                if metadata_ is not None and values[metadata_] is not None:
                    metadata, more_format = _payload(values[metadata_], metadata_is_json, METADATA_IS_JSON)
                    format_ |= more_format
                event: NewEvent = tuple.__new__(NewEvent, (format_, _text(values[type_], "type"), data, metadata))
                if self._more:
                    event = self._with_more(event, values[more_at:prefix_at])
                if tags_ is not None and values[tags_] is not None:
                    event = with_tags(event, _tags(values[tags_]))
                at_time = self._time_of(data) if time_ is None else _micros(values[time_])
                name = _text(values[aggregate], "aggregate_id")
                if layout.id_type is not None:
                    name = _originator(name, layout.id_type)
                if layout.aggregate_prefix:
                    name = self._prefix(values[prefix_at:]) + name
                command_id = f"{layout.id_prefix}{_text(values[id_], 'id')}"
                version = 0 if version_ is None else int(values[version_]) + first
                if version_ is not None and version < 1:
                    raise ValueError(f"version {values[version_]} is below {layout.first_version}; see --first-version")
                rows.append(SourceRow(int(values[position]), ParsedLine(name, command_id, at_time, event, version)))
            except (ValueError, TypeError, InvalidArgument) as error:
                why = error.message if isinstance(error, InvalidArgument) else error
                raise SourceRefused(f"{self.name}: the row at position {values[position]} is no event: {why}") from None
        return rows

    def _prefix(self, values: tuple[Any, ...]) -> str:
        text = self.layout.aggregate_prefix
        for column, value in zip(self._prefix_columns, values, strict=True):
            text = text.replace(f"<{column}>", _text(value, column))
        return text

    def _with_more(self, event: NewEvent, values: tuple[Any, ...]) -> NewEvent:
        given = {name: value for name, value in zip(self._more, values, strict=True) if value is not None}
        return with_members(event, given) if given else event

    def _check_positions(self, is_outside: object) -> None:
        """Raises SourceRefused if there are rows that `rows` would pass over."""
        if is_outside:
            position = self.layout.columns["position"]
            raise SourceRefused(f"{self.name}: rows have no {position}, or one below 0, and so no place; name another column")

    def _time_of(self, data: bytes) -> int | None:
        pattern = self.layout.time_in_data
        found = None if pattern is None else pattern.search(data)
        return None if found is None else _micros(found[1].decode())


def _payload(value: object, is_json: bool, flag: int) -> tuple[bytes, int]:
    if value is None:
        return b"", 0
    if isinstance(value, str):
        raw = value.encode()
    elif isinstance(value, bytes):
        raw = value
    elif is_json:  # a number in SQLite, whose columns hold any type
        raw = json_text(value).encode()
    else:
        raise ValueError(f"{shown(value)} is neither text nor bytes")
    if is_json:
        parsed(raw)
    return raw, flag if is_json else 0


def _text(value: object, what: str) -> str:
    if value is None or value == "":
        raise ValueError(f"{what} is empty")
    if isinstance(value, bytes):
        raise ValueError(f"{what} is bytes, and not text")
    return str(value)


def _originator(name: str, id_type: str) -> str:
    """Returns an id as `eventstore.adapters.eventsourcing` has it: a text that reads as a UUID has a mark."""
    if id_type == "uuid":
        try:
            return str(UUID(name))  # SQLite has it without dashes
        except ValueError:
            raise ValueError(f"its id {shown(name)} is no UUID; give --id-type text") from None
    return f"={name}" if name[0] == "=" or _UUID.fullmatch(name) else name


def _tags(value: object) -> tuple[str, ...]:
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, list):
        raise ValueError("its tags are no list")
    return checked_tags(found)


def _micros(value: object) -> int | None:
    """Returns microseconds since 1970, of a number of them or of ISO 8601 with a zone."""
    if value is None or isinstance(value, int):
        return value
    at = datetime.fromisoformat(str(value))
    return micros(at if at.tzinfo is not None else at.replace(tzinfo=UTC))


class SqliteTable(TableSource):
    """A table in a file of SQLite, which is not changed."""

    def __init__(self, name: str, path: str, layout: Layout) -> None:
        try:
            self._connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False)
            found = self._connection.execute(f"PRAGMA table_info({layout.table})").fetchall()
            kinds = {str(row[1]).lower(): str(row[2]).lower() for row in found}
            if kinds and layout.columns.get("position") == "notification_id" and "notification_id" not in kinds:
                columns = {**layout.columns, "position": "rowid", "id": "rowid"}  # where `eventsourcing` has it
                layout, kinds = replace(layout, columns=columns), {**kinds, "rowid": "integer"}
            super().__init__(name, layout, kinds)
            if re.search("char|clob|text", kind := kinds[layout.columns["position"].lower()]) and "int" not in kind:
                raise SourceRefused(
                    f"{name}: position is of type {kind}, which has 10 before 9; name a column of whole numbers"
                )
            self._connection.execute(f"SELECT {self._columns(lambda _, column: column)} FROM {layout.table} LIMIT 0")
        except sqlite3.Error as error:
            raise SourceRefused(f"{name}: {error}") from None

    def head(self, *, paused: bool) -> int:
        """Returns the last position."""
        position, table = self.layout.columns["position"], self.layout.table
        outside = f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {position} IS NULL OR {position} < 0)"
        self._check_positions(self._connection.execute(outside).fetchone()[0])
        found = self._connection.execute(f"SELECT max({position}) FROM {table}").fetchone()
        return int(found[0] or 0)

    def rows(self, after: int, upto: int) -> Iterator[list[SourceRow]]:
        """Yields rows in order of position."""
        position = self.layout.columns["position"]
        select = (
            f"SELECT {self._columns(lambda _, column: column)} FROM {self.layout.table} "
            f"WHERE {position} > ? AND {position} <= ? ORDER BY {position}"
        )
        with closing(self._connection.execute(select, (after, upto))) as cursor:
            while found := cursor.fetchmany(ROWS):
                yield self._rows(found)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()


class PostgresTable(TableSource):
    """A table in PostgreSQL, which is not changed."""

    def __init__(self, name: str, conninfo: str, layout: Layout) -> None:
        try:
            import psycopg
        except ImportError:
            raise SourceRefused(f"a source in PostgreSQL needs psycopg; {advice('postgres')}") from None
        self._error = psycopg.Error
        try:
            self._connection = psycopg.connect(conninfo, autocommit=True, connect_timeout=10)
            schema, _, table = layout.table.rpartition(".")
            found = self._connection.execute(
                "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns "
                "WHERE lower(table_name) = lower(%s) "
                "AND lower(table_schema) = lower(coalesce(nullif(%s, ''), current_schema())) "
                "ORDER BY table_name = %s, table_name, ordinal_position",
                (table, schema, table),
            ).fetchall()
        except psycopg.Error as error:
            raise SourceRefused(f"{name}: {str(error).strip()}") from None
        here = [row for row in found if row[:2] == found[-1][:2]]  # of two whose names differ in case, the one that is named
        self._names = {str(column).lower(): str(column) for _, _, column, _ in here}
        self._from = f'"{found[-1][0]}"."{found[-1][1]}"' if found else ""
        kinds = {str(column).lower(): str(kind) for _, _, column, kind in here}
        if layout.id_type is not None:  # the type of the column says it
            layout = replace(layout, id_type=None if kinds.get(layout.columns["aggregate_id"].lower()) == "uuid" else "text")
        try:
            super().__init__(name, layout, kinds)
        except SourceRefused:
            self._connection.close()
            raise

    def head(self, *, paused: bool) -> int:
        """Returns the last position before which nothing will appear: see the top of this module."""
        try:
            if not paused:
                self._check_sequence()
            head = self._last()
            if not paused:
                self._wait_for_writers()
            return head
        except self._error as error:
            raise SourceRefused(f"{self.name}: {str(error).strip()}") from None

    def _last(self) -> int:
        position = self._quoted(self.layout.columns["position"])
        self._check_positions(
            self._one(f"SELECT EXISTS (SELECT 1 FROM {self._from} WHERE {position} IS NULL OR {position} < 0)")
        )
        found = self._one(f"SELECT max({position}) FROM {self._from}")
        return int(found or 0)

    def _one(self, query: str, *values: object) -> Any:
        found = self._connection.execute(query.encode(), values or None).fetchone()
        return None if found is None else found[0]

    def _check_sequence(self) -> None:
        """Raises SourceRefused unless the position of a row is drawn by its insert, one by one."""
        position = self._names[self.layout.columns["position"].lower()]
        advise = "stop what writes there, and run with --paused"
        if self._one("SELECT pg_is_in_recovery()"):
            raise SourceRefused(f"{self.name}: a replica does not say who writes at its primary; ask that, or {advise}")
        if self.layout.draws_ahead:
            raise SourceRefused(
                f"{self.name}: programs draw positions ahead of their inserts, so a smaller one may appear later; {advise}"
            )
        cached = self._one(
            "SELECT seqcache FROM pg_sequence WHERE seqrelid = pg_get_serial_sequence(%s, %s)::regclass",
            self._from,
            position,
        )
        if cached != 1:
            why = f"its sequence has a cache of {cached}" if cached else "no sequence of the table gives them out"
            raise SourceRefused(f"{self.name}: smaller values of {position} may appear later, since {why}; {advise}")

    def _wait_for_writers(self) -> None:
        """Returns when no transaction goes on that may have drawn a position by now."""
        query = (
            "SELECT DISTINCT virtualtransaction, pid FROM pg_locks WHERE locktype = 'relation' AND granted "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
            "AND relation = %s::regclass AND mode = ANY(%s) AND pid IS DISTINCT FROM pg_backend_pid()"
        )
        holders = set(self._connection.execute(query, (self._from, list(_WRITES))).fetchall())
        until = time.monotonic() + WRITERS_S
        while holders:
            if time.monotonic() > until:
                pids = ", ".join(sorted(str(pid or "a prepared transaction") for _, pid in holders))
                raise SourceRefused(
                    f"{self.name}: transactions write to {self.layout.table} for more than {WRITERS_S:.0f} s (process {pids}); "
                    "end them, or run again later"
                )
            time.sleep(_LOOK_S)
            holders &= set(self._connection.execute(query, (self._from, list(_WRITES))).fetchall())

    def rows(self, after: int, upto: int) -> Iterator[list[SourceRow]]:
        """Yields rows in order of position, all of one snapshot."""
        position = f"source.{self._quoted(self.layout.columns['position'])}"
        select = (
            f"SELECT {self._columns(self._value)} FROM {self._from} AS source "
            f"WHERE {position} > %s AND {position} <= %s ORDER BY {position}"
        )
        try:
            with self._connection.transaction(), self._connection.cursor("migration", binary=True) as cursor:
                cursor.execute(select.encode(), (after, upto))
                while found := cursor.fetchmany(ROWS):
                    yield self._rows(found)
        except self._error as error:
            raise SourceRefused(f"{self.name}: {str(error).strip()}") from None

    def _value(self, meaning: str, column: str) -> str:
        """Returns an expression of text, a number or bytes: reading others costs more."""
        kind, column = self._kinds[column.lower()], self._quoted(column)
        if kind.startswith("timestamp"):
            return f"round(extract(epoch FROM {column}) * 1000000)::bigint"
        if meaning in ("position", "version") or (meaning == "time" and kind in _WHOLE_NUMBERS):
            return f"{column}::bigint"
        if meaning == "tags" and kind == "ARRAY":
            return column
        return column if kind == "bytea" else f"{column}::text"

    def _quoted(self, column: str) -> str:
        return f'"{self._names[column.lower()]}"'

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()
