"""Writes events as an object-centric event log, OCEL 2.0, in JSON or SQLite: what tools of process mining read.

The objects of an event are its aggregate and its tags. The type of an aggregate is the letters that its id begins with
(`declaration` of `declaration-42`), that of a tag what is before its colon (`course` of `course:c1`). Attributes of an event
are the members of its data: text, numbers, true and false as they are, anything else as JSON text.

Events are written one by one; in memory are the ids of the objects, and the types.
"""

from __future__ import annotations

import json
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TextIO

from eventstore.chunks.files import open_private
from eventstore.json_values import json_text
from eventstore.model import Event

_LETTERS: Final = re.compile(r"[^\W\d_]+")
_OTHER_TYPE: Final = "object"
_BEGIN: Final = "1970-01-01T00:00:00+00:00"
"""When the objects have the attributes that they begin with: that of the standard."""
_TYPES: Final = {bool: "boolean", int: "integer", float: "float"}
_FIXED: Final = {'"event_object"', '"object_object"', '"event_map_type"', '"object_map_type"'}
"""Tables that are no type's."""
_COLUMNS: Final = {"boolean": "BOOLEAN", "integer": "INTEGER", "float": "REAL", "string": "TEXT"}

Value = str | int | float | bool


class LoggedObject(NamedTuple):
    """`qualifier`: what it is to the event."""

    id: str
    type: str
    qualifier: str


def objects_of(event: Event) -> list[LoggedObject]:
    """Returns the aggregate of an event, and its tags."""
    found = _LETTERS.search(event.aggregate_id)
    objects = [LoggedObject(event.aggregate_id, found[0] if found else _OTHER_TYPE, "aggregate")]
    for tag in event.tags:
        name, colon, _ = tag.partition(":")
        if tag != event.aggregate_id:
            objects.append(LoggedObject(tag, name if colon and name else "tag", "tag"))
    return objects


def attributes_of(event: Event) -> dict[str, Value]:
    """Returns the members of the data of an event; none of data that are no JSON object. A null is left out."""
    if not event.is_json:
        return {}
    try:
        data = event.json()
    except Exception:  # flagged as JSON by its client, which is not checked
        return {}
    if not isinstance(data, dict):
        return {}
    return {
        name: value if isinstance(value, str | int | float | bool) else json_text(value)
        for name, value in data.items()
        if value is not None
    }


def type_of(value: Value) -> str:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # SQLite would make a float of it
        return "string"
    return _TYPES.get(type(value), "string")


class ObjectLog(ABC):
    """A log under construction. `events`, `objects`: how many it has."""

    def __init__(self) -> None:
        self.events = 0
        self._objects: dict[str, str] = {}
        self._attributes: dict[str, dict[str, str]] = {}

    @property
    def objects(self) -> int:
        return len(self._objects)

    def add(self, event: Event) -> None:
        """Adds an event and its objects."""
        attributes, objects = attributes_of(event), objects_of(event)
        known = self._attributes.setdefault(event.type, {})
        for name, value in attributes.items():
            kind = type_of(value)
            before = known.setdefault(name, kind)
            if before != kind:
                known[name] = "float" if {before, kind} == {"integer", "float"} else "string"
        new = [each for each in objects if each.id not in self._objects]
        self._objects.update((each.id, each.type) for each in new)
        self._write(event, attributes, objects, new)
        self.events += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._close()

    @abstractmethod
    def _write(
        self, event: Event, attributes: Mapping[str, Value], objects: list[LoggedObject], new: list[LoggedObject]
    ) -> None:
        """Writes an event. `new`: those of its objects that no event had before."""

    @abstractmethod
    def _finish(self) -> None:
        """Writes what is known once there are no more events."""

    @abstractmethod
    def _close(self) -> None: ...


def id_of(event: Event) -> str:
    return f"{event.aggregate_id}/{event.version}"


class JsonObjectLog(ObjectLog):
    """A log in JSON: the events first, then what follows from them."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file
        file.write('{"events":[')

    def _write(
        self, event: Event, attributes: Mapping[str, Value], objects: list[LoggedObject], new: list[LoggedObject]
    ) -> None:
        written = {
            "id": id_of(event),
            "type": event.type,
            "time": event.time.isoformat(),
            "attributes": [{"name": name, "value": _text(value)} for name, value in attributes.items()],
            "relationships": [{"objectId": each.id, "qualifier": each.qualifier} for each in objects],
        }
        self._file.write(f"{',' if self.events else ''}\n{json_text(written)}")

    def _finish(self) -> None:
        self._file.write('\n],"objects":[')
        for place, (name, kind) in enumerate(self._objects.items()):
            self._file.write(f"{',' if place else ''}\n{json_text({'id': name, 'type': kind, 'attributes': []})}")
        types = [
            {"name": name, "attributes": [{"name": each, "type": kind} for each, kind in attributes.items()]}
            for name, attributes in self._attributes.items()
        ]
        kinds = [{"name": name, "attributes": []} for name in sorted(set(self._objects.values()))]
        self._file.write(f'\n],"eventTypes":{json_text(types)},"objectTypes":{json_text(kinds)}}}\n')

    def _close(self) -> None:
        pass  # its file is the caller's


def _text(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class SqliteObjectLog(ObjectLog):
    """A log in a new file of SQLite: a table for each type of events, and of objects."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        open(path, "xb", opener=open_private).close()
        self._database = sqlite3.connect(path, isolation_level=None)
        self._tables: dict[tuple[str, str], str] = {}
        self._columns: dict[str, dict[str, str]] = {}
        run = self._database.execute
        run("PRAGMA journal_mode = OFF")  # the file gets its name once it is complete
        run("BEGIN")
        for kind in ("event", "object"):
            run(f"CREATE TABLE {kind}_map_type (ocel_type TEXT PRIMARY KEY, ocel_type_map TEXT)")
            typed = f"FOREIGN KEY (ocel_type) REFERENCES {kind}_map_type (ocel_type)"
            run(f"CREATE TABLE {kind} (ocel_id TEXT PRIMARY KEY, ocel_type TEXT, {typed})")
        run(
            "CREATE TABLE event_object (ocel_event_id TEXT, ocel_object_id TEXT, ocel_qualifier TEXT, "
            "PRIMARY KEY (ocel_event_id, ocel_object_id, ocel_qualifier), "
            "FOREIGN KEY (ocel_event_id) REFERENCES event (ocel_id), FOREIGN KEY (ocel_object_id) REFERENCES object (ocel_id))"
        )
        run(
            "CREATE TABLE object_object (ocel_source_id TEXT, ocel_target_id TEXT, ocel_qualifier TEXT, "
            "PRIMARY KEY (ocel_source_id, ocel_target_id, ocel_qualifier), "
            "FOREIGN KEY (ocel_source_id) REFERENCES object (ocel_id), "
            "FOREIGN KEY (ocel_target_id) REFERENCES object (ocel_id))"
        )

    def _write(
        self, event: Event, attributes: Mapping[str, Value], objects: list[LoggedObject], new: list[LoggedObject]
    ) -> None:
        run, name = self._database.execute, id_of(event)
        for each in new:
            run("INSERT INTO object VALUES (?, ?)", (each.id, each.type))
            table = self._table("object", each.type)
            run(f"INSERT INTO {table} (ocel_id, ocel_time) VALUES (?, ?)", (each.id, _BEGIN))
        run("INSERT INTO event VALUES (?, ?)", (name, event.type))
        table = self._table("event", event.type)
        columns = ["ocel_id", "ocel_time", *(self._column(table, each, value) for each, value in attributes.items())]
        values = [name, event.time.isoformat(), *map(_storable, attributes.values())]
        places = ", ".join("?" * len(values))
        run(f"INSERT INTO {table} ({', '.join(map(_quoted, columns))}) VALUES ({places})", values)
        rows = [(name, each.id, each.qualifier) for each in objects]
        self._database.executemany("INSERT INTO event_object VALUES (?, ?, ?)", rows)

    def _table(self, kind: str, type_: str) -> str:
        """Returns the table of a type, as SQL names it; makes it."""
        table = self._tables.get((kind, type_))
        if table is None:
            short = re.sub(r"\W", "", type_)[:80] or "Type"
            taken = _FIXED | {each.casefold() for each in self._tables.values()}
            names = (f"{short}{number or ''}" for number in range(len(taken) + 2))
            named = next(name for name in names if _quoted(f"{kind}_{name}").casefold() not in taken)
            table = self._tables[kind, type_] = _quoted(f"{kind}_{named}")
            key, changed = (" PRIMARY KEY", "") if kind == "event" else ("", ", ocel_changed_field TEXT")
            of_kind = f"FOREIGN KEY (ocel_id) REFERENCES {kind} (ocel_id)"
            self._database.execute(f"CREATE TABLE {table} (ocel_id TEXT{key}, ocel_time TIMESTAMP{changed}, {of_kind})")
            self._database.execute(f"INSERT INTO {kind}_map_type VALUES (?, ?)", (type_, named))
            self._columns[table] = {"ocel_id": "ocel_id", "ocel_time": "ocel_time"}
        return table

    def _column(self, table: str, attribute: str, value: Value) -> str:
        """Returns the column of an attribute; makes it. SQLite does not tell columns apart by their case."""
        columns = self._columns[table]
        name = columns.get(f"={attribute}")
        if name is None:
            name, taken = attribute.replace("\0", "") or "value", {each.casefold() for each in columns.values()}
            while name.casefold() in taken:
                name += "_"
            columns[f"={attribute}"] = name
            self._database.execute(f"ALTER TABLE {table} ADD COLUMN {_quoted(name)} {_COLUMNS[type_of(value)]}")
        return name

    def _finish(self) -> None:
        self._database.execute("COMMIT")

    def _close(self) -> None:
        self._database.close()


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _storable(value: Value) -> Value:
    return str(value) if isinstance(value, int) and type_of(value) == "string" else value
