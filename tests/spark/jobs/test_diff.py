"""`eventstore-spark diff`: two projections, compared on the same events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_eventstore.folds.distribution import ProjectionReference
from pyspark_eventstore.jobs.diff import diff_once
from tests.spark.made import MadeStore, three_states

ROOT = Path(__file__).parents[3]


def place(name: str) -> ProjectionReference:
    return ProjectionReference(f"tests.spark.balances:{name}", str(ROOT))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeStore]:
    made = three_states(tmp_path_factory.mktemp("diff"))
    yield made
    made.close()


def test_the_same_projection_makes_the_same_rows(spark: SparkSession, store: MadeStore) -> None:
    found, events = diff_once(spark, [str(store.path)], place("Balances"), place("Balances"))
    assert not found.differs
    assert found.rows == 10
    assert events == {}


def test_rows_that_are_missing_or_changed_are_counted_by_kind_and_shown_with_their_events(
    spark: SparkSession, store: MadeStore
) -> None:  # fmt: skip
    found, events = diff_once(spark, [str(store.path)], place("Balances"), place("OtherBalances"))
    kinds = set(found.counts)
    only, changed = "only in tests.spark.balances:Balances", "changed: amount"
    assert kinds == {only, changed}
    assert found.counts[only] == 1
    assert found.counts.total() < found.rows
    assert sum(row.kind == changed for row in found.samples) == min(3, found.counts[changed])
    by_key = {row.key: row for row in found.samples}
    gone = by_key["acc-002"]
    assert gone.after is None
    for row in found.samples:
        latest = events[row.key]
        assert {event.aggregate_id for event in latest} == {row.key}
        assert [event.sequence for event in latest] == sorted(event.sequence for event in latest)
        assert 1 <= len(latest) <= 5
    assert found.columns == []
    lines = list(found.told(events))
    assert any(line.startswith("    acc-002: ") for line in lines)


def test_rows_by_another_key_have_events_of_several_aggregates(spark: SparkSession, store: MadeStore) -> None:
    found, events = diff_once(spark, [str(store.path)], place("ByType"), place("TwiceByType"))
    assert set(found.counts) == {"changed: events"}
    assert {event.type for latest in events.values() for event in latest} == {row.key for row in found.samples}
