"""Compares what a migration has copied with its source: the number of events, their order, and everything they hold.

Both are read from the begin, side by side. The target may have events of others between those of the source; those are counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from eventstore.cli.transfer.event_lines import ParsedLine
from eventstore.cli.transfer.migration.run import MigrationRules, checkpoint_id, load_checkpoint, named
from eventstore.cli.transfer.migration.source import Source, SourceRefused, SourceRow
from eventstore.client.aio.store import NetworkStore
from eventstore.fields import RESERVED
from eventstore.model import Event
from eventstore.records.cluster_map import ClusterMap

_SLICE = 500


@dataclass
class Comparison:
    """`source`, `target`: events that were compared; the checksums are those of these. `others`: of the target. `difference`:
    the first; None: there is none.
    """

    source: int = 0
    target: int = 0
    others: int = 0
    source_checksum: str = ""
    target_checksum: str = ""
    difference: str | None = None


async def verify(
    store: NetworkStore, source: Source, name: str, rules: MigrationRules, compared: Comparison, on_progress: Callable[[], None]
) -> None:
    """Compares up to where the last run came, or to the first difference. Of several shards one after the other, since each has
    an order of its own; the source is read for each.

    Raises:
        SourceRefused: there was no run.
        EventStoreError: one of both cannot be read.
    """
    checkpoint = await load_checkpoint(store, name)
    if checkpoint.place is None:
        raise SourceRefused(f"the target has no checkpoint {checkpoint_id(name)!r}: nothing was copied under this --name")
    sums = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    shards = store.shards
    known = await store.cluster_map() if shards else None
    for shard, part in shards.items() or [(0, store)]:
        is_here = _everything if known is None else partial(_is_of, known, shard)
        rows = _PreparedRows(source.rows(-1, checkpoint.place), rules, is_here)
        comparing = _Comparing(compared, sums, checkpoint_id(name), checks_versions=rules.version_gaps == "refuse")
        await comparing.run(part, rows, on_progress)
        if compared.difference is not None:
            break
    compared.source_checksum, compared.target_checksum = (each.hexdigest() for each in sums)


def _everything(aggregate_id: str) -> bool:
    return True


def _is_of(known: ClusterMap, shard: int, aggregate_id: str) -> bool:
    return known.owner_of(aggregate_id) == shard


class _Comparing:
    """Compares one log with the rows that are to be in it."""

    def __init__(self, compared: Comparison, sums: tuple[Any, Any], own: str, *, checks_versions: bool) -> None:
        """`own`: the aggregate that notes how far the migration came."""
        self._compared, self._sums, self._own, self._checks_versions = compared, sums, own, checks_versions

    async def run(self, store: NetworkStore, rows: _PreparedRows, on_progress: Callable[[], None]) -> None:
        compared, before = self._compared, "the begin"
        row = await rows.next()
        async with store.read_all() as log:
            async for event in log:
                if row is None or compared.difference is not None:
                    return
                place, parsed = row
                if (event.aggregate_id, event.command_id) != (parsed.aggregate_id, parsed.command_id):
                    compared.others += event.aggregate_id[0] != RESERVED and event.aggregate_id != self._own
                    continue
                self._compare(place, parsed, event)
                before = f"that of position {place}"
                row = await rows.next()
                if compared.source % _SLICE == 0:
                    on_progress()
        if row is not None and compared.difference is None:
            compared.source += 1
            compared.difference = (
                f"position {row[0]} of the source, {named(row[1])}: the target does not have it behind {before}"
            )

    def _compare(self, place: int, parsed: ParsedLine, event: Event) -> None:
        wanted, found = _contents(parsed, event, self._checks_versions), _found(event)
        for digest, contents in zip(self._sums, (wanted, found), strict=True):
            digest.update(repr(contents).encode())
        self._compared.source += 1
        self._compared.target += 1
        if wanted != found:
            what = next(part for part in wanted if wanted[part] != found[part])
            self._compared.difference = (
                f"position {place} of the source, {named(parsed)}: its {what} is {wanted[what]!r:.80} there, and "
                f"{found[what]!r:.80} in the target, at sequence {event.sequence}"
            )


def _contents(parsed: ParsedLine, event: Event, checks_versions: bool) -> dict[str, object]:
    format_, type_, data, metadata = parsed.event
    return {
        "type": type_,
        "data": data,
        "metadata": metadata,
        "form": format_,
        "time": event.timestamp if parsed.time is None else parsed.time,
        "version": parsed.version if checks_versions and parsed.version else event.version,
    }


def _found(event: Event) -> dict[str, object]:
    return {
        "type": event.type,
        "data": event.data,
        "metadata": event[4],
        "form": event[8] & 0xFF,
        "time": event.timestamp,
        "version": event.version,
    }


class _PreparedRows:
    """The rows of a source as they are stored, one by one. `is_here`: whether an aggregate is in the log that is looked at."""

    def __init__(self, batches: Iterator[list[SourceRow]], rules: MigrationRules, is_here: Callable[[str], bool]) -> None:
        self._batches, self._rules, self._is_here = batches, rules, is_here
        self._batch: Iterator[SourceRow] = iter(())

    async def next(self) -> tuple[int, ParsedLine] | None:
        while (row := next(self._batch, None)) is None:
            batch = await trio.to_thread.run_sync(lambda: next(self._batches, None))
            if batch is None:
                return None
            self._batch = iter([row for row in batch if self._is_here(row.parsed.aggregate_id)])
        return row.place, self._rules.prepared(row)
