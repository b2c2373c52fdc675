"""Adds the slot to rows of aggregates: the work of a task that compares stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from eventstore.records.slots import slot_of


def with_slots(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches with one more column, `slot`; it is LOCAL for events that each shard keeps for itself."""
    for batch in batches:
        slots = [slot_of(aggregate_id) for aggregate_id in batch.column("aggregate_id").to_pylist()]
        yield batch.append_column("slot", pa.array(slots, pa.int64()))
