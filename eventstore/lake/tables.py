"""The tables of a lake: what the export asks of them, and the Delta tables of a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote

from eventstore.errors import FolderRefused
from eventstore.extras import advice

if TYPE_CHECKING:
    import pyarrow as pa

_DELTA: Final = "delta:"


def _written(character: str, *, first: bool) -> str:
    if character.isascii() and (character.isalnum() or (character in "-_." and not (first and character in "_."))):
        return character
    return "".join(f"~{byte:02X}" for byte in character.encode())


class LakeTables(Protocol):
    """Tables by the type of their events."""

    def chunk(self, type_: str) -> int:
        """Returns the number of the last chunk that the table has; 0: none, or there is no table."""

    def append(self, type_: str, chunk: int, rows: pa.Table) -> None:
        """Adds the rows of a chunk and its number, both or neither; durable on return. A column that is new is added."""


class DeltaTables:
    """A folder with a Delta table for each type. The chunk is a transaction of the lake, in the commit that adds its rows."""

    def __init__(self, folder: Path, lake: str) -> None:
        """`lake`: see `LakeProgress`. Raises ModuleNotFoundError: deltalake is not installed."""
        try:
            import deltalake  # noqa: F401
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"Delta tables need {error.name}; {advice('delta')}", name=error.name) from None
        self._folder, self._lake = folder, f"eventstore-{lake}"

    def path(self, type_: str) -> Path:
        """Returns the folder of a table. Its name is the type; of what is neither a letter, a digit, `-`, `_` nor `.`, and of a
        `_` or `.` at the beginning, each byte is written as `~XX`. Not as `%XX`: the library would not find the folder again.
        """
        name = "".join(_written(each, first=not place) for place, each in enumerate(type_))
        return self._folder / name

    def types(self) -> list[str]:
        """Returns the types that have a table."""
        return sorted(unquote(path.name.replace("~", "%")) for path in self._folder.iterdir() if (path / "_delta_log").is_dir())

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
        _sync(path, DeltaTable(path).version())


def _sync(table: Path, version: int) -> None:
    """Makes a commit, and the files that it adds, durable: the library leaves that to the system."""
    log = table / "_delta_log"
    written = log / f"{version:020}.json"
    added = [json.loads(line).get("add") for line in written.read_text(encoding="utf-8").splitlines()]
    files: Sequence[Path] = [*(table / unquote(each["path"]) for each in added if each), written]
    for each in (*files, log, table, table.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def tables_at(place: str) -> Path:
    """Returns the folder in `delta:FOLDER`. Raises FolderRefused."""
    if not place.startswith(_DELTA) or not place.removeprefix(_DELTA):
        raise FolderRefused(place, "not a lake: name delta:FOLDER")
    return Path(place.removeprefix(_DELTA))
