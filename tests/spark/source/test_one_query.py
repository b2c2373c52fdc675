"""A query that names a view more than once has the rows of each branch, with options that select what is read, and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from eventstore.model import NewEvent
from tests.spark.loading import load
from tests.spark.made import MadeStore

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

QUERIES = {
    "orders without a payment": """SELECT count(*) FROM {ev} a WHERE type = 'Placed'
        AND NOT EXISTS (SELECT 1 FROM {ev} b WHERE b.type = 'Paid' AND a.aggregate_id = b.aggregate_id)""",
    "orders with a payment": """SELECT count(*) FROM {ev} a WHERE type = 'Placed'
        AND EXISTS (SELECT 1 FROM {ev} b WHERE b.type = 'Paid' AND a.aggregate_id = b.aggregate_id)""",
    "share of a total": "SELECT count(*) / (SELECT count(*) FROM {ev}) FROM {ev} WHERE type = 'Paid'",
    "union": """SELECT 'Placed', count(*) FROM {ev} WHERE type = 'Placed'
        UNION ALL SELECT 'Paid', count(*) FROM {ev} WHERE type = 'Paid'""",
    "two CTEs": """WITH p AS (SELECT * FROM {ev} WHERE type = 'Placed'), q AS (SELECT * FROM {ev} WHERE type = 'Paid')
        SELECT (SELECT count(*) FROM p) AS placed, (SELECT count(*) FROM q) AS paid""",
    "all events of paid orders": """SELECT count(*) FROM {ev}
        WHERE aggregate_id IN (SELECT aggregate_id FROM {ev} WHERE type = 'Paid')""",
    "self-join": """SELECT a.aggregate_id, b.version - a.version FROM {ev} a JOIN {ev} b USING (aggregate_id)
        WHERE a.type = 'Placed' AND b.type = 'Paid'""",
    "difference": """SELECT aggregate_id FROM {ev} WHERE version = 1
        EXCEPT SELECT aggregate_id FROM {ev} WHERE type = 'Paid'""",
}
EXPECTED = {
    "orders without a payment": [(7,)], "orders with a payment": [(3,)], "share of a total": [(3 / 13,)],
    "union": [("Paid", 3), ("Placed", 10)], "two CTEs": [(10, 3)], "all events of paid orders": [(6,)],
    "self-join": [("o-0", 1), ("o-1", 1), ("o-2", 1)], "difference": [(f"o-{n}",) for n in range(3, 10)],
}  # fmt: skip


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten orders, three of them paid, among other events; half of the files sorted."""
    store = MadeStore(tmp_path_factory.mktemp("orders") / "shard", file_size_bytes=4096)
    for n in range(10):
        store.append(f"o-{n}", NewEvent("Placed", b"x" * 300), command_id="p")
        if n < 3:
            store.append(f"o-{n}", NewEvent("Paid", b"x" * 300), command_id="q")
        store.append(f"o-{n}", NewEvent("Noted", b"x" * 300), command_id="r")
        store.append(f"stock-{n}", NewEvent("Paid", b"x" * 300), command_id="s")
        if n == 6:
            store.sort()
    assert {"sorted", "completed", "ongoing"} <= set(store.states())
    store.close()
    return store.path


SCHEMA = "aggregate_id string, version bigint, sequence bigint, type string, data_json string, file string"
FILTERED = "(SELECT * FROM everything WHERE type IN ('Placed', 'Paid') AND aggregate_id LIKE 'o-%')"


@pytest.fixture(scope="module")
def views(spark: SparkSession, orders: Path) -> Iterator[None]:
    """`selected` reads orders and payments alone, by options; `FILTERED` has the same rows of a view of everything, by filters.

    With the setting of Spark that hands filters to a source that takes them.
    """
    spark.conf.set(PUSHDOWN, "true")
    everything = load(spark, orders, schema=SCHEMA)
    everything.createOrReplaceTempView("everything")
    load(spark, orders, schema=SCHEMA, types="Placed,Paid", aggregate_prefix="o-").createOrReplaceTempView("selected")
    yield
    spark.conf.unset(PUSHDOWN)
    spark.catalog.dropTempView("everything")
    spark.catalog.dropTempView("selected")


def told(spark: SparkSession, query: str, view: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in spark.sql(query.format(ev=view)).collect()]


@pytest.mark.heavy
@pytest.mark.usefixtures("views")
def test_eight_queries_have_the_same_rows_with_and_without_options(spark: SparkSession) -> None:
    """In one, since each costs Spark a second."""
    parts = [f"SELECT '{name}', to_json(struct(*)) FROM ({query})" for name, query in QUERIES.items()]
    for view in ("selected", FILTERED):
        found: dict[object, list[tuple[object, ...]]] = {name: [] for name in QUERIES}
        for name, row in told(spark, " UNION ALL ".join(parts), view):
            found[name].append(tuple(json.loads(str(row)).values()))
        assert {name: sorted(rows) for name, rows in found.items()} == EXPECTED


CONDITIONS = st.sampled_from(
    ["true", "type = 'Paid'", "type <> 'Paid'", "version > 1", "aggregate_id = 'o-1'", "aggregate_id LIKE 'o-%'",
     "aggregate_id IN ('o-2', 'o-9')", "sequence < 8", "file = '0000000001.events'", "data_json IS NULL AND type = 'Placed'"]
)  # fmt: skip
SHAPES = st.sampled_from(
    [
        "(SELECT count(*) FROM {ev} WHERE %s) - (SELECT count(*) FROM {ev} WHERE %s)",
        "(SELECT count(*) FROM {ev} WHERE %s AND aggregate_id IN (SELECT aggregate_id FROM {ev} WHERE %s))",
        "(SELECT count(*) FROM (SELECT * FROM {ev} WHERE %s) a JOIN (SELECT * FROM {ev} WHERE %s) b USING (aggregate_id))",
        "(SELECT sum(sequence) FROM (SELECT * FROM {ev} WHERE %s UNION ALL SELECT * FROM {ev} WHERE %s))",
        "(SELECT count(*) FROM (SELECT aggregate_id FROM {ev} WHERE %s EXCEPT SELECT aggregate_id FROM {ev} WHERE %s))",
    ]
)
MADE = st.tuples(SHAPES, CONDITIONS, CONDITIONS).map(lambda made: made[0] % made[1:])


@pytest.fixture(scope="module")
def in_memory(spark: SparkSession, views: None) -> Iterator[None]:
    """The rows of `selected` as a view that no source reads any more."""
    rows = spark.sql(f"SELECT * FROM {FILTERED}").collect()
    spark.createDataFrame(rows, SCHEMA).createOrReplaceTempView("in_memory")
    yield
    spark.catalog.dropTempView("in_memory")


@pytest.mark.long
@pytest.mark.usefixtures("in_memory")
@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])  # a shrunk one is found in minutes only
@given(queries=st.lists(MADE, min_size=4, max_size=4, unique=True))
def test_made_up_queries_have_the_same_rows_as_of_a_table_in_memory(spark: SparkSession, queries: list[str]) -> None:
    query = f"SELECT {', '.join(queries)}"
    assert told(spark, query, "selected") == told(spark, query, "in_memory")
