"""The tables of a lake: what the export asks of them, and those of Delta and Iceberg in a folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote

from eventstore.errors import FolderRefused, InvalidArgument
from eventstore.extras import advice
from eventstore.fields import shown

if TYPE_CHECKING:
    import pyarrow as pa

_NAMESPACE: Final = "eventstore"
_CLOCK_NS: Final = 10**9  # a file system may round the times of files


def folder_name(type_: str) -> str:
    """Returns the name of a table's folder: its type; of what is neither an ASCII letter, a digit, `-`, `_` nor `.`, and of a
    `_` or `.` at the beginning, each byte is written as `~XX`. Not as `%XX`: Delta would not find the folder again.
    """
    return "".join(_written(each, first=not place) for place, each in enumerate(type_))


def _written(character: str, *, first: bool) -> str:
    if character.isascii() and (character.isalnum() or (character in "-_." and not (first and character in "_."))):
        return character
    return "".join(f"~{byte:02X}" for byte in character.encode())


class LakeTables(Protocol):
    """Tables by the type of their events. `kind`: what they are, in the name of a lake."""

    kind: str

    def chunk(self, type_: str) -> int:
        """Returns the number of the last chunk that the table has; 0: none, or there is no table."""

    def append(self, type_: str, chunk: int, rows: pa.Table) -> None:
        """Adds the rows of a chunk and its number, both or neither; durable on return. A column that is new is added.

        Raises:
            FolderRefused: the table has other columns of these names.
        """

    def close(self) -> None:
        """Call it at the end."""


class DeltaTables:
    """A folder with a Delta table for each type. The chunk is a transaction of the lake, in the commit that adds its rows."""

    kind = "delta"

    def __init__(self, folder: Path, lake: str) -> None:
        """`lake`: see `LakeProgress`. Raises ModuleNotFoundError: deltalake is not installed."""
        try:
            import deltalake  # noqa: F401
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"Delta tables need {error.name}; {advice('delta')}", name=error.name) from None
        self._folder, self._lake = folder, f"eventstore-{lake}"

    def path(self, type_: str) -> Path:
        """Returns the folder of a table."""
        return self._folder / folder_name(type_)

    def types(self) -> list[str]:
        """Returns the types that have a table."""
        return sorted(unquote(path.name.replace("~", "%")) for path in self._folder.iterdir() if (path / "_delta_log").is_dir())

    def close(self) -> None:
        """There is nothing to close."""

    def chunk(self, type_: str) -> int:
        from deltalake import DeltaTable

        path = self.path(type_)
        if not DeltaTable.is_deltatable(str(path)):
            return 0
        return DeltaTable(path).transaction_version(self._lake) or 0

    def append(self, type_: str, chunk: int, rows: pa.Table) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
        from deltalake.exceptions import DeltaError

        path = self.path(type_)
        if DeltaTable.is_deltatable(str(path)):
            _check_types(path, _arrow_schema(DeltaTable(path).schema()), rows.schema)
        try:
            write_deltalake(
                path,
                rows,
                mode="append",
                schema_mode="merge",
                name=type_,
                commit_properties=CommitProperties(app_transactions=[Transaction(self._lake, chunk)]),
            )
        except DeltaError as error:
            raise FolderRefused(str(path), f"the Delta table takes no events: {error}") from None
        log = path / "_delta_log"
        written = log / f"{DeltaTable(path).version():020}.json"
        added = [json.loads(line).get("add") for line in written.read_text(encoding="utf-8").splitlines()]
        _sync([*(path / unquote(each["path"]) for each in added if each), written, log, path, self._folder])


class IcebergTables:
    """A folder with an Iceberg table for each type, in a catalog of SQLite beside them. The chunk is a property of the table,
    in the commit that adds its rows.
    """

    kind = "iceberg"

    def __init__(self, folder: Path, lake: str) -> None:
        """`lake`: see `LakeProgress`. Raises ModuleNotFoundError: pyiceberg is not installed."""
        try:
            from pyiceberg.catalog.sql import SqlCatalog
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"Iceberg tables need {error.name}; {advice('iceberg')}", name=error.name) from None
        self._folder, self._property = folder, f"eventstore.{lake}"
        place = folder.resolve()
        self._catalog: Any = SqlCatalog(_NAMESPACE, uri=f"sqlite:///{place / 'catalog.db'}", warehouse=place.as_uri())
        self._catalog.create_namespace_if_not_exists(_NAMESPACE)

    def close(self) -> None:
        """Closes the catalog."""
        self._catalog.close()

    def table(self, type_: str) -> Any:
        """Returns a table, as pyiceberg has it."""
        return self._catalog.load_table((_NAMESPACE, type_))

    def types(self) -> list[str]:
        """Returns the types that have a table."""
        return sorted(name for _, name in self._catalog.list_tables(_NAMESPACE))

    def chunk(self, type_: str) -> int:
        if not self._catalog.table_exists((_NAMESPACE, type_)):
            return 0
        return int(self.table(type_).properties.get(self._property, 0))

    def append(self, type_: str, chunk: int, rows: pa.Table) -> None:
        from pyiceberg.exceptions import ResolveError, ValidationError

        begun = time.time_ns() - _CLOCK_NS
        fields = [each.with_nullable(True) for each in rows.schema]  # a column that comes later is null in the rows before
        rows = rows.cast(_schema_of(fields))
        place = self._folder.resolve() / folder_name(type_)
        name = (_NAMESPACE, type_)
        table = self._catalog.create_table_if_not_exists(name, rows.schema, location=place.as_uri())
        try:
            with table.transaction() as transaction:
                with transaction.update_schema() as update:
                    update.union_by_name(rows.schema)
                transaction.append(rows)
                transaction.set_properties({self._property: str(chunk)})
        except (ValueError, TypeError, ValidationError, ResolveError) as error:
            raise FolderRefused(str(place), f"the Iceberg table takes no events: {error}") from None
        written = [each for each in place.rglob("*") if each.stat().st_mtime_ns >= begun]
        _sync([*written, place, self._folder / "catalog.db", self._folder])


def _arrow_schema(schema: Any) -> Any:
    import pyarrow as pa

    return pa.schema(schema)


def _check_types(path: Path, there: Any, given: Any) -> None:
    """Raises FolderRefused if a column has another type than before: Delta would cast what it can, and refuse the rest late."""
    for field in given:
        place = there.get_field_index(field.name)
        if place >= 0 and _plain(before := there.field(place).type) != _plain(field.type):
            raise FolderRefused(
                str(path), f"the Delta table takes no events: its column {field.name} has {before}, the class {field.type} now"
            )


def _plain(kind: Any) -> Any:
    """Returns a type without the names that lists have for their items."""
    import pyarrow as pa

    return ("list", kind.value_type) if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind


def _schema_of(fields: Iterable[Any]) -> Any:
    import pyarrow as pa

    return pa.schema(fields)


def _sync(paths: Iterable[Path]) -> None:
    """Makes files and folders durable: the libraries leave that to the system."""
    for each in paths:
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def tables_at(place: str) -> tuple[type[DeltaTables | IcebergTables], Path]:
    """Returns what tables `delta:FOLDER` or `iceberg:FOLDER` has, and the folder. Raises InvalidArgument."""
    kind, colon, folder = place.partition(":")
    if not colon or not folder or kind not in _KINDS:
        raise InvalidArgument(
            f"{shown(place)} is no lake: name delta:FOLDER or iceberg:FOLDER", field="lake", value=shown(place)
        )
    return _KINDS[kind], Path(folder)


_KINDS: Final[dict[str, type[DeltaTables | IcebergTables]]] = {each.kind: each for each in (DeltaTables, IcebergTables)}
