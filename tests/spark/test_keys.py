"""Keys of a projection in Spark: from the same payload as in a live projector."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from eventstore.domain.projections.projection import keys_of
from eventstore.model import DATA_IS_JSON, METADATA_IS_JSON, Event
from pyspark_eventstore.files.event_objects import EVENT_COLUMNS
from pyspark_eventstore.folds.fold import KEY_COLUMN, Keys
from pyspark_eventstore.source.table import COLUMNS
from tests.spark.drawers import NAME, ByDrawer

SCHEMA = pa.schema([pa.field(name, COLUMNS[name][1]) for name in EVENT_COLUMNS])
OLD = ("f-1", 1, NAME, b'{"place":"a"}', None, "c-1", 0, 1, DATA_IS_JSON)
NEW = ("f-2", 1, NAME, b'{"drawer":"b"}', b'{"schema":2}', "c-2", 0, 2, DATA_IS_JSON | METADATA_IS_JSON)


def test_a_key_is_that_of_the_upcast_event() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(zip(OLD, NEW, strict=True), SCHEMA, strict=True)], schema=SCHEMA
    )
    (keyed,) = Keys("tests.spark.drawers:ByDrawer", str(Path.cwd()))([batch])
    assert keyed.column(KEY_COLUMN).to_pylist() == ["a", "b"]
    assert keys_of(ByDrawer(), [tuple.__new__(Event, OLD), tuple.__new__(Event, NEW)]) == ["a", "b"]
