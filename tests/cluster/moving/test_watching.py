"""What an operator sees of plans: why each change is chosen, and how far it is."""

from __future__ import annotations

import json
from functools import partial

import pytest
import trio

from eventstore.cli.terminal.plan_table import copied_text, print_under_way
from eventstore_cluster.nodes.moving.progress import Copy, UnderWay
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.moving.commands import run_cluster


async def run(etcd: Etcd, cluster: str, *words: str) -> str:
    return (await trio.to_thread.run_sync(partial(run_cluster, etcd, cluster, *words))).stdout


@pytest.mark.heavy
async def test_a_plan_is_shown_with_the_reason_of_each_change(registry: EtcdRegistry, etcd: Etcd, cluster: str) -> None:
    before = await registry.read()
    said = await run(etcd, cluster, "rebalance", "--dry-run")
    (row,) = [line for line in said.splitlines() if "→ n3 " in line]
    assert row.split()[0] in ("0", "1")
    assert "has 2 replicas, n3 has 0 replicas" in row
    assert "The size of 2 shards is not known" in said
    tree = json.loads(await run(etcd, cluster, "rebalance", "--dry-run", "--json"))
    assert [each["why"] for each in tree["changes"]] == ["n2 has 2 replicas, n3 has 0 replicas"]
    drained = json.loads(await run(etcd, cluster, "drain", "n1", "--dry-run", "--json"))
    assert [each["why"] for each in drained["changes"]] == [
        "n1 is drained, and n3 has 0 of the 4 replicas of 3 nodes",
        "n1 is drained, and n3 has 1 of the 4 replicas of 3 nodes",
    ]
    more = await run(etcd, cluster, "replicas", "3", "--shard", "1", "--dry-run")
    assert "is to have 3 replicas, and n3 has 0 of the 4 replicas of 3 nodes" in more
    assert (await registry.read()).revision == before.revision


@pytest.mark.parametrize(
    ("lacks", "size", "plain", "drawn"),
    [
        (3_000, 4_000, "25 %, 1.0 kB of 4.0 kB", "████░░░░░░░░░░░░ 25 %, 1.0 kB of 4.0 kB"),
        (1, 4_000, "99 %, 4.0 kB of 4.0 kB", "███████████████░ 99 %, 4.0 kB of 4.0 kB"),
        (0, 4_000, "100 %, 4.0 kB of 4.0 kB", "████████████████ 100 %, 4.0 kB of 4.0 kB"),
        (5_000, 4_000, "0 %, 0 B of 4.0 kB", "░░░░░░░░░░░░░░░░ 0 %, 0 B of 4.0 kB"),
        (0, 0, "0 B of 0 B", "0 B of 0 B"),
        (None, 4_000, None, None),
        (0, None, None, None),
    ],
)
def test_a_copy_whose_share_is_known_has_a_bar(
    lacks: int | None, size: int | None, plain: str | None, drawn: str | None
) -> None:
    copy = Copy("n3", lacks, size)
    assert (copied_text(copy, bar=False), copied_text(copy, bar=True)) == (plain, drawn)


def test_what_is_under_way_is_drawn_without_bars_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_under_way([UnderWay(0, ("n1",), ("n3",), "n1", (Copy("n3", 1_000, 4_000),), (), "copies to n3")])
    said = capsys.readouterr().out
    assert "75 %, 3.0 kB of 4.0 kB" in said
    assert "█" not in said
