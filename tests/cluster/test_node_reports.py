"""The text of Prometheus of several shards becomes one, in which each line names its shard."""

from __future__ import annotations

import pytest

from eventstore_cluster.node_reports import labelled, merged


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
