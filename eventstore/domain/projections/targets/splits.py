"""Where the checkpoint of a new shard begins in a table: at its parent's, or at the last event that both have.

A shard's row is new as long as it names no store. It gets its place before anything reads the parent by its new slots, and the
parent's row gets a new generation: a projector that still reads the parent as it was before is fenced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from eventstore.domain.projections.projection import CHECKPOINTS, PARKED
from eventstore.domain.projections.targets.base import row_of
from eventstore.records.splits import Split

Execute: TypeAlias = Callable[[str, tuple[object, ...]], Any]
"""Executes a statement, with `?` for each value, in the transaction that opens the target."""


def take_over(
    execute: Execute, name: str, shard: int, born: Split | None, store: str | None, smaller: str, *, parks: bool
) -> None:
    """Gives a row that is new its place. `store`: of the shard; `smaller`: the function for the smaller of two numbers;
    `parks`: there is a table of parked keys.
    """
    row = row_of(name, shard)
    new = execute(f"SELECT generation FROM {CHECKPOINTS} WHERE projection = ? AND store IS NULL", (row,)).fetchone()
    if new is None:
        return
    if execute(f"SELECT 1 FROM {CHECKPOINTS} WHERE projection = ? AND store = ?", (name, store)).fetchone():
        for table in (CHECKPOINTS, *((PARKED,) if parks else ())):  # the row of what was the only shard
            execute(f"DELETE FROM {table} WHERE projection = ?", (row,))
            execute(f"UPDATE {table} SET projection = ? WHERE projection = ?", (row, name))
    elif born is not None:
        _begin_as_parent(execute, row, row_of(name, born.parent), born.through, new[0], smaller, parks=parks)


def in_postgres(execute: Callable[[Any, tuple[object, ...]], Any]) -> Execute:
    """Returns what executes the same statements in PostgreSQL."""
    return lambda statement, values: execute(statement.replace("?", "%s"), values)


def _begin_as_parent(
    execute: Execute, row: str, parent: str, through: int, generation: int, smaller: str, *, parks: bool
) -> None:
    execute(
        f"UPDATE {CHECKPOINTS} SET sequence = {smaller}(p.sequence, ?), version = p.version, "
        f"identity = CASE WHEN p.sequence <= ? THEN p.identity END "
        f"FROM (SELECT sequence, identity, version FROM {CHECKPOINTS} WHERE projection = ?) AS p WHERE projection = ?",
        (through, through, parent, row),
    )
    if parks:
        execute(
            f"INSERT INTO {PARKED} (projection, key, sequence, error, generation) SELECT ?, key, sequence, error, ? "
            f"FROM {PARKED} WHERE projection = ? AND sequence <= ?",
            (row, generation, parent, through),
        )
