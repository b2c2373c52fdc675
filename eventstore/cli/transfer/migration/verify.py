"""Compares what a migration has copied with its source: the number of events, their order, and everything they hold.

Both are read from the begin, side by side. The target may have events of others between those of the source; those are counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import trio

from eventstore.cli.transfer.event_lines import ParsedLine
from eventstore.cli.transfer.migration.run import MigrationRules, checkpoint_id, load_checkpoint, named
from eventstore.cli.transfer.migration.source import Source, SourceRefused, SourceRow
from eventstore.client.aio.store import NetworkStore
from eventstore.fields import RESERVED
from eventstore.model import Event

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
    store: NetworkStore, source: Source, name: str, rules: MigrationRules, verified: Comparison, on_progress: Callable[[], None]
) -> None:
    """Compares up to where the last run came, or to the first difference.

    Raises:
        SourceRefused: there was no run; the target has several shards, which have no common order.
        EventStoreError: one of both cannot be read.
    """
    if store.shards:
        raise SourceRefused("the target has several shards, which have no order in common; compare with a single store")
    checkpoint = await load_checkpoint(store, name)
    if checkpoint.place is None:
        raise SourceRefused(f"the target has no checkpoint {checkpoint_id(name)!r}: nothing was copied under this --name")
    rows = _Rows(source.rows(-1, checkpoint.place), rules)
    here, there = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    checks_versions = rules.version_gaps == "refuse"
    before = "the begin"
    row = await rows.next()
    async with store.read_all() as log:
        async for event in log:
            if row is None:
                break
            place, parsed = row
            if (event.aggregate_id, event.command_id) != (parsed.aggregate_id, parsed.command_id):
                if event.aggregate_id[0] != RESERVED and event.aggregate_id != checkpoint_id(name):
                    verified.others += 1
                continue
            wanted, found = _contents(parsed, event, checks_versions), _found(parsed, event, checks_versions)
            here.update(repr(wanted).encode())
            there.update(repr(found).encode())
            verified.source += 1
            verified.target += 1
            if wanted != found:
                what = next(part for part in wanted if wanted[part] != found[part])
                verified.difference = (
                    f"position {place} of the source, {named(parsed)}: its {what} is {wanted[what]!r:.80} there, and "
                    f"{found[what]!r:.80} in the target, at sequence {event.sequence}"
                )
                break
            before = f"that of position {place}"
            row = await rows.next()
            if verified.source % _SLICE == 0:
                on_progress()
        else:
            if row is not None:
                verified.source += 1
                verified.difference = (
                    f"position {row[0]} of the source, {named(row[1])}: the target does not have it behind {before}"
                )
    verified.source_checksum, verified.target_checksum = here.hexdigest(), there.hexdigest()


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


def _found(parsed: ParsedLine, event: Event, checks_versions: bool) -> dict[str, object]:
    return {
        "type": event.type,
        "data": event.data,
        "metadata": event[4],
        "form": event[8] & 0xFF,
        "time": event.timestamp,
        "version": event.version,
    }


class _Rows:
    """The rows of a source as they are stored, one by one."""

    def __init__(self, batches: Iterator[list[SourceRow]], rules: MigrationRules) -> None:
        self._batches, self._rules = batches, rules
        self._batch: Iterator[SourceRow] = iter(())

    async def next(self) -> tuple[int, ParsedLine] | None:
        while (row := next(self._batch, None)) is None:
            batch = await trio.to_thread.run_sync(lambda: next(self._batches, None))
            if batch is None:
                return None
            self._batch = iter(batch)
        return row.place, self._rules.prepared(row)
