"""Rows about queues: a row says which shard it is about if there are several, and nothing of shards if there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventstore.cli.terminal.output import print_table


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], shards: Sequence[int | None]) -> None:
    """Prints a table; `shards`: that of each row."""
    print_table(None, *by_shard(columns, rows, shards))


def by_shard(
    columns: Sequence[str], rows: Sequence[Sequence[object]], shards: Sequence[int | None]
) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Returns columns and rows, with the shard of each row in front if it has one."""
    if all(each is None for each in shards):
        return columns, rows
    return ("shard", *columns), [(shard, *row) for shard, row in zip(shards, rows, strict=True)]


def members_of(row: Any) -> dict[str, Any]:
    """Returns the fields of a row (a NamedTuple) for JSON."""
    return {name: value for name, value in row._asdict().items() if name != "shard" or value is not None}


def of_shard(shard: int | None) -> str:
    """Returns the words that follow the number of a queue, or the name of a reaction."""
    return "" if shard is None else f" on shard {shard}"
