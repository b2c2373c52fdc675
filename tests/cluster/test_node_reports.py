"""The text of Prometheus of several shards becomes one, in which each line names its shard; and which shards are waited for."""

from __future__ import annotations

import uuid
from typing import NoReturn

import pytest

from eventstore.records.cluster_map import ALL_SLOTS
from eventstore.store.data_folder import ShardIdentity
from eventstore_cluster.node_reports import NodeReports, labelled, merged
from eventstore_cluster.processes.starter import ShardStarter
from eventstore_cluster.shard_runner import ShardRunner


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ("events_total 3.0", 'events_total{shard="2"} 3.0'),
        ('backlog{group="a b",topic="{x}"} 1', 'backlog{shard="2",group="a b",topic="{x}"} 1'),
        ("empty{} 1", 'empty{shard="2"} 1'),
    ],
)
def test_the_shard_is_the_first_label(sample: str, expected: str) -> None:
    assert labelled(sample, 2) == expected


def test_a_family_is_described_once_and_has_the_lines_of_all_shards_together() -> None:
    one = "# HELP a first\n# TYPE a counter\na_total 1\n# HELP b second\n# TYPE b gauge\nb 2\n"
    other = '# HELP a first\n# TYPE a counter\na_total 3\n# HELP c third\n# TYPE c gauge\nc{x="y"} 4\n# EOF\n'
    assert merged([(0, one), (1, other)]).splitlines() == [
        "# HELP a first", "# TYPE a counter", 'a_total{shard="0"} 1', 'a_total{shard="1"} 3',
        "# HELP b second", "# TYPE b gauge", 'b{shard="0"} 2',
        "# HELP c third", "# TYPE c gauge", 'c{shard="1",x="y"} 4',
    ]  # fmt: skip


def test_who_waits_for_a_node_does_not_wait_for_a_shard_that_has_no_slots_yet() -> None:
    def never(_: str | None) -> NoReturn:
        raise AssertionError("no process is started")

    def runner(number: int) -> ShardRunner:
        identity = ShardIdentity(uuid.UUID(int=1), number, ALL_SLOTS if number == 0 else (), uuid.UUID(int=2))
        return ShardRunner(identity, ShardStarter(), never, lambda: None, lambda: None)

    stats = NodeReports([runner(0), runner(1)], lambda: False).stats()
    assert (stats["shards"], stats["shards_up"]) == (2, 1), "its split may be waited for for days"
