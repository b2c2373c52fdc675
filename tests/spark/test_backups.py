"""A backup in a folder is read in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from pyspark.sql import SparkSession

import eventstore as es
from tests.cli.conftest import SMALL_FILES
from tests.cli.processes import output

pytestmark = pytest.mark.heavy


def test_a_backup_is_read_as_the_store_that_it_is_of(spark: SparkSession, tmp_path: Path) -> None:
    async def fill() -> list[es.Event]:
        async with es.open_store(tmp_path / "data", SMALL_FILES) as store:
            for number in range(900):
                await store.append(f"a-{number % 9}", [es.NewEvent("Happened", b"x" * 300)], es.ANY)
            await store.maintenance.wait_until_sorted()
            return [event async for event in store.read_all()]

    events = trio.run(fill)
    output("backup", tmp_path / "place", "--data", tmp_path / "data")
    rows = spark.read.format("eventstore").load(str(tmp_path / "place" / "current")).collect()
    assert sorted((row.sequence, row.aggregate_id) for row in rows) == [(each.sequence, each.aggregate_id) for each in events]
