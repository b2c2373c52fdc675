"""Where the checkpoint of a new shard begins in a table: where the one stands whose events it has, or at the last common event.

A shard's row is new as long as it names no store. It gets its place before anything reads the other by its new slots, and the
other's row gets a new generation: a projector that still reads that one as it was before is fenced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from eventstore.domain.projections.projection import CHECKPOINTS, PARKED
from eventstore.domain.projections.targets.base import row_of
from eventstore.following.checkpoint import Checkpoint, Origin

Execute: TypeAlias = Callable[[str, tuple[object, ...]], Any]
"""Executes a statement, with `?` for each value, in the transaction that opens the target."""


def inherit(execute: Execute, name: str, shard: int, origin: Origin | None, store: str | None, *, parks: bool) -> None:
    """Gives a row that is new its place. `store`: of the shard; `parks`: there is a table of parked keys."""
    row, tables = row_of(name, shard), (CHECKPOINTS, *((PARKED,) if parks else ()))
    new = execute(f"SELECT generation FROM {CHECKPOINTS} WHERE projection = ? AND store IS NULL", (row,)).fetchone()
    if new is None:
        return
    if execute(f"SELECT 1 FROM {CHECKPOINTS} WHERE projection = ? AND store = ?", (name, store)).fetchone():
        for table in tables:  # the row of what was the only shard
            execute(f"DELETE FROM {table} WHERE projection = ?", (row,))
            execute(f"UPDATE {table} SET projection = ? WHERE projection = ?", (row, name))
        return

    def place_of(part: int | None) -> Checkpoint | None:
        if part is None:
            return None  # its row would have been this one's
        query = f"SELECT sequence, identity FROM {CHECKPOINTS} WHERE projection = ?"
        found = execute(query, (row_of(name, part),)).fetchone()
        return None if found is None else Checkpoint(*found)

    begins = None if origin is None else origin.begins(place_of)
    if origin is None or begins is None:
        return
    before = row_of(name, origin.part)
    execute(
        f"UPDATE {CHECKPOINTS} SET sequence = ?, identity = ?, version = (SELECT version FROM {CHECKPOINTS} WHERE "
        "projection = ?) WHERE projection = ?",
        (*begins, before, row),
    )
    if parks:
        execute(
            f"INSERT INTO {PARKED} (projection, key, sequence, error, generation) SELECT ?, key, sequence, error, ? "
            f"FROM {PARKED} WHERE projection = ? AND sequence <= ?",
            (row, new[0], before, origin.through),
        )


def in_postgres(execute: Callable[[Any, tuple[object, ...]], Any]) -> Execute:
    """Returns what executes the same statements in PostgreSQL."""
    return lambda statement, values: execute(statement.replace("?", "%s"), values)
