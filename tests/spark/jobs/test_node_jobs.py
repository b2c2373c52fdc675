"""verify and export over the folder of a node."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_eventstore.jobs.export import export_once
from pyspark_eventstore.jobs.verify import verify_shards
from tests.spark.source.test_node_folder_slots import append_to, node_of_three


@pytest.mark.heavy
def test_a_node_is_verified_and_exported_run_by_run(spark: SparkSession, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    shards, events = node_of_three(data)
    assert verify_shards(spark, [str(data)]) == (len(events), [])
    export_once(spark, [str(data)], str(out))
    after = [row for shard in shards for row in append_to(shard, 20, 1_000)]
    export_once(spark, [str(data)], str(out))
    rows = spark.read.parquet(str(out)).select("shard", "sequence", "aggregate_id", "version").collect()
    assert sorted(tuple(row) for row in rows) == sorted(after)  # type: ignore[type-var]
