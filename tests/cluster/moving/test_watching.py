"""What an operator sees of plans: why each change is chosen, how far it is, and what Ctrl-C ends."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import IO

import pytest
import trio

from eventstore.cli.terminal.plan_table import UnderWayTable, copied_text
from eventstore_cluster.nodes.moving.plans import start_draining
from eventstore_cluster.nodes.moving.progress import Copy, UnderWay
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.failing import Failing
from eventstore_cluster.registry.node_keys import NodeKey
from eventstore_cluster.registry.replicated_keys import read_shard
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.moving.commands import run_cluster
from tests.logged_process import EVENTSTORE


async def run(etcd: Etcd, cluster: str, *words: str) -> str:
    return (await trio.to_thread.run_sync(partial(run_cluster, etcd, cluster, *words))).stdout


@pytest.mark.long
async def test_a_plan_is_shown_with_the_reason_of_each_change(registry: EtcdRegistry, etcd: Etcd, cluster: str) -> None:
    before = await registry.read()
    said = await run(etcd, cluster, "rebalance", "--dry-run")
    (row,) = [line for line in said.splitlines() if "→ n3 " in line]
    assert row.split()[0] in ("0", "1")
    assert "has 2 replicas, n3 has 0 replicas" in row
    assert "Shards 0, 1 do not say how large they are, and count as empty: whether nodes have space" in said
    tree = json.loads(await run(etcd, cluster, "rebalance", "--dry-run", "--json"))
    assert tree["asked"] == []
    assert [each["why"] for each in tree["changes"]] == ["n2 has 2 replicas, n3 has 0 replicas"]
    drained = json.loads(await run(etcd, cluster, "drain", "n1", "--dry-run", "--json"))
    assert [each["why"] for each in drained["changes"]] == [
        "n1 is drained, and n3 has 0 of the 4 replicas of 3 nodes",
        "n1 is drained, and n3 has 1 of the 4 replicas of 3 nodes",
    ]
    more = await run(etcd, cluster, "replicas", "3", "--shard", "1", "--dry-run")
    assert "is to have 3 replicas, and n3 has 0 of the 4 replicas of 3 nodes" in more
    assert (await registry.read()).revision == before.revision
    tree = json.loads(await run(etcd, cluster, "rebalance", "--json"))
    assert tree["asked"] == [each["shard"] for each in tree["changes"]] != []


async def test_nodes_are_listed_with_what_they_keep(registry: EtcdRegistry, etcd: Etcd, cluster: str) -> None:
    failing = (Failing(1, 0, "its process ended with exit code 3"),)
    n3 = NodeKey("127.0.0.1:3", "run", "0", zone="east", free_bytes=3_000_000_000, failing=failing)
    assert await registry.transact({}, {"node/n1": None, "node/n3": n3.value(), "leader/0": {"node": "n2"}})
    await trio.to_thread.run_sync(start_draining, EtcdOptions((etcd.url,)), cluster, "n2")
    rows = json.loads(await run(etcd, cluster, "nodes", "--json"))
    found = [
        [row[name] for name in ("node", "state", "address", "zone", "replicas", "leaders", "free_bytes", "failing")]
        for row in rows
    ]
    assert found == [
        ["n1", "does not run", "", "", 2, 0, None, []],
        ["n2", "is drained", "127.0.0.1:2", "", 2, 1, None, []],
        ["n3", "runs", "127.0.0.1:3", "east", 0, 0, 3_000_000_000, [1]],
    ]
    said = await run(etcd, cluster, "nodes")
    assert "is drained" in said
    assert "On n3 the replicas of shards 1 cannot run: see its /health." in said


@contextmanager
def started(etcd: Etcd, cluster: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a command that is asked at a terminal."""
    ours, theirs = pty.openpty()
    command = [*EVENTSTORE, "cluster", *words, "--etcd", etcd.url, "--cluster", cluster]
    try:
        with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(stream: IO[str] | None, text: str) -> None:
    assert stream is not None
    seen = ""
    while text not in seen:
        more = stream.read(1)
        assert more, f"it ended after {seen}"
        seen += more


def interrupted(etcd: Etcd, cluster: str, until: str, *words: str) -> str:
    """Returns what a command says that is interrupted once it has said `until`."""
    with started(etcd, cluster, *words) as process:
        read_until(process.stdout, until)
        said = None
        while said is None:  # one that comes just before a read from the terminal begins is noticed when that ends
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, said = process.communicate(timeout=5)
        assert process.returncode == 130
        return said


@pytest.mark.long
async def test_ctrl_c_ends_the_watching_and_nothing_else(registry: EtcdRegistry, etcd: Etcd, cluster: str) -> None:
    async def ends(until: str, *words: str) -> str:
        return await trio.to_thread.run_sync(partial(interrupted, etcd, cluster, until, *words))

    before = await registry.read()
    assert "Nothing was asked for." in await ends("Do this?", "rebalance")
    assert (await registry.read()).revision == before.revision
    said = await ends("is to be kept by n3, n2", "move", "0", "--from", "n1", "--to", "n3")
    assert "The move continues; `eventstore cluster cancel 0` takes it back." in said
    said = await ends("waits for a leader", "plans", "--watch")
    assert "moves that are under way continue; `eventstore cluster cancel` cancels them." in said
    key = read_shard(0, (await registry.read()).value("shard/0") or {})
    assert key.state.wanted == ("n3", "n2")


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
    UnderWayTable().show([UnderWay(0, ("n1",), ("n3",), "n1", (Copy("n3", 1_000, 4_000),), (), "copies to n3")])
    said = capsys.readouterr().out
    assert "75 %, 3.0 kB of 4.0 kB" in said
    assert "█" not in said


def test_what_is_watched_is_printed_when_it_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    table, found = UnderWayTable(), [UnderWay(0, ("n1",), ("n3",), "n1", (Copy("n3", 1_000, 4_000),), (), "copies to n3")]
    moved = [replace(found[0], copies=(Copy("n3", 0, 4_000),))]
    printed = []
    for each in (found, found, moved, moved, [], []):
        table.show(each)
        printed.append(capsys.readouterr().out)
    assert ["75 %" in printed[0], printed[1], "100 %" in printed[2], printed[3]] == [True, "", True, ""]
    assert printed[4:] == ["Nothing is under way.\n", ""]
