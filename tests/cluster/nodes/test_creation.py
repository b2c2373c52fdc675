"""Creating a cluster in a real etcd: what is refused, what is spread, and what a creation that ended half way leaves."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from eventstore.chunks.documents import Tree
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.records.cluster_map import even_slots
from eventstore_cluster.nodes.cluster_view import ClusterView, cluster_view
from eventstore_cluster.nodes.creation import CREATING, create_cluster, wait_until_served
from eventstore_cluster.nodes.placing.placement import place
from eventstore_cluster.nodes.splitting.asking import ask_to_split, call_off
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.lineage import Birth
from eventstore_cluster.registry.node_keys import NodeKey
from eventstore_cluster.registry.replicated_keys import CLUSTER, NEW, LeftKey, ServingKey, leader_value, read_shard
from eventstore_cluster.replica.registry_state import Leader, Seat
from tests.cli.processes import output, refused, run
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.nodes.named_node import change, keys, registry_of
from tests.ports import free_port


def with_splits(value: Tree, times: int) -> Tree:
    """Returns the key of a shard that was split so often."""
    found = read_shard(1, value)
    return replace(found, state=replace(found.state, splits=times)).value()


def with_nodes(count: int) -> dict[str, Any]:
    """Returns the keys of nodes as they write them."""
    return {f"node/n{number}": NodeKey(f"127.0.0.1:{number}", "run", "0").value() for number in range(1, count + 1)}


async def registered(registry: EtcdRegistry, count: int) -> None:
    assert await registry.transact({}, with_nodes(count))


async def created(registry: EtcdRegistry, *numbers: int) -> ClusterView:
    """Returns what the registry holds after a creation."""
    made = await create_cluster(registry, *numbers)
    assert cluster_view(await registry.read()) == made
    return made


async def test_a_cluster_has_all_its_shards_and_their_replicas_are_in_sync(etcd: Etcd, cluster: str) -> None:
    async with registry_of(etcd, cluster) as (_, registry):
        await registered(registry, 3)
        made = await created(registry, 4, 3)
        assert (made.cluster.layout, made.cluster.replicas, made.cluster.in_sync_min) == (1, 3, 2)
        assert [key.slots for key in made.shards.values()] == even_slots(4)
        assert len({key.store for key in made.shards.values()}) == 4
        for key in made.shards.values():
            state = key.state
            assert sorted(state.replicas) == ["n1", "n2", "n3"]
            assert state.in_sync == {Seat(name, NEW) for name in state.replicas}
            assert (state.epoch, state.in_sync_min, state.leader, state.generation) == (0, 2, None, 1)
        assert CREATING not in (await registry.read()).entries


async def test_more_shards_than_a_transaction_holds_appear_at_once(etcd: Etcd, cluster: str) -> None:
    async with registry_of(etcd, cluster) as (_, registry):
        await registered(registry, 2)
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                seen = await registry.read()
                while (view := cluster_view(seen)) is None:
                    seen = await registry.changed(seen)
                assert len(view.shards) == 300

            nursery.start_soon(look)
            await created(registry, 300, 2, 1)


async def test_what_a_creation_that_ended_half_way_left_is_replaced(etcd: Etcd, cluster: str) -> None:
    async with registry_of(etcd, cluster) as (_, registry):
        await registered(registry, 2)
        await created(registry, 200, 2)
        await registry.transact({}, {CLUSTER: None, CREATING: {"by": "somebody"}})  # as if its last transaction were missing
        assert cluster_view(await registry.read()) is None
        made = await created(registry, 3, 2)
        assert list(made.shards) == [0, 1, 2]


async def test_of_two_that_create_at_the_same_time_the_later_one_goes_on(etcd: Etcd, cluster: str) -> None:
    async with registry_of(etcd, cluster) as (_, registry), registry_of(etcd, cluster) as (_, other):
        await registered(registry, 2)
        made: list[ClusterView] = []
        failed: list[EventStoreError] = []

        async def create(through: EtcdRegistry, shards: int) -> None:
            try:
                made.append(await create_cluster(through, shards, 2))
            except EventStoreError as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, registry, 250)
            nursery.start_soon(create, other, 260)
        assert len(made) == len(failed) == 1
        assert cluster_view(await registry.read()) == made[0]
        assert len(made[0].shards) in (250, 260)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0, 1), "shards is 0, allowed are 1 to 4096"),
        ((4097, 1), "shards is 4097"),
        ((4, 0), "replicas is 0"),
        ((4, 2, 3), "in_sync_min is 3, allowed are 1 to 2"),
        ((4, 2, 0), "in_sync_min is 0"),
        ((4, 3), r"2 nodes of it \(n1, n2\) run, 3 replicas need as many nodes"),
    ],
)
async def test_numbers_that_make_no_cluster_are_refused(etcd: Etcd, cluster: str, numbers: tuple[int, ...], said: str) -> None:
    async with registry_of(etcd, cluster) as (_, registry):
        await registered(registry, 2)
        with pytest.raises(InvalidArgument, match=said):
            await create_cluster(registry, *numbers)
        assert len((await registry.read()).entries) == 2


async def test_a_cluster_that_exists_is_refused(etcd: Etcd, cluster: str) -> None:
    async with registry_of(etcd, cluster) as (_, registry):
        with pytest.raises(InvalidArgument, match="no node of it runs, 1 replicas need"):
            await create_cluster(registry, 1, 1)
        await registered(registry, 1)
        made = await created(registry, 1, 1)
        with pytest.raises(InvalidArgument, match="exists already"):
            await create_cluster(registry, 2, 1)
        assert cluster_view(await registry.read()) == made


async def test_shards_are_waited_for_until_they_serve(etcd: Etcd, cluster: str) -> None:
    async with registry_of(etcd, cluster) as (_, registry):
        await registered(registry, 1)
        await created(registry, 2, 1)
        assert await wait_until_served(registry, 0.1) == [0, 1]
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                assert await wait_until_served(registry, 60) == []

            nursery.start_soon(wait)
            for shard in (0, 1):
                await registry.transact({}, {f"serving/{shard}": ServingKey(f"127.0.0.1:{shard + 1}", 1).value()})


def test_nodes_whose_replicas_would_need_the_same_ports_make_no_cluster(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    port = free_port()
    nodes = {f"node/n{at}": NodeKey(f"127.0.0.1:{port + 10 * at}", "run", "0", ports=True).value() for at in range(3)}
    change(etcd, cluster, lambda _: nodes)
    given = ["--shards", 1, "--replicas", 3, "--cluster", cluster, "--etcd", etcd.url]
    said = refused("cluster", "create", *given, code=2)
    assert f"port {port + 20} of 127.0.0.1 is that of shard 0 on n1 and of node n2" in said
    assert "cluster" not in keys(etcd, cluster).entries
    named = ["--data", tmp_path / "n9", "--name", "n9", "--cluster", cluster, "--etcd", etcd.url, "--listen"]
    change(etcd, cluster, lambda _: {**dict.fromkeys(nodes), "node/n1": nodes["node/n1"], "shard/0": {}})
    assert "is that of node n1 and of shard 0 on n9" in refused("node", *named, f"127.0.0.1:{port}", code=2)


def test_a_creation_says_which_nodes_it_waits_for_before_it_waits(etcd: Etcd, cluster: str) -> None:
    change(etcd, cluster, lambda _: with_nodes(1))
    given = ["--shards", 1, "--replicas", 2, "--wait", 0.1, "--cluster", cluster, "--etcd", etcd.url]
    done = run("cluster", "create", *given)
    said = done.stderr
    assert done.returncode == 2
    assert said.index("waits up to 0.1 seconds for 2 nodes to run; now: n1") < said.index("2 replicas need as many nodes")


def test_the_status_of_a_cluster_is_read_from_etcd_while_nothing_runs(etcd: Etcd, cluster: str) -> None:
    of_cluster = ["--etcd", etcd.url, "--cluster", cluster]
    assert "eventstore cluster create" in refused("cluster", "status", *of_cluster)
    assert "--etcd" in refused("cluster", "create", "--shards", 1, "--replicas", 1, code=2)
    change(etcd, cluster, lambda _: with_nodes(2))
    made = run("cluster", "create", "--shards", 2, "--replicas", 2, "--wait", 0, *of_cluster)
    assert made.returncode == 1
    assert "not served after 0 seconds: shards 0, 1" in made.stderr
    assert "n1 n2" in made.stdout
    leader = Leader(Seat("n2", "i"), "run", "127.0.0.1:9")
    state = {**(keys(etcd, cluster).value("shard/1") or {}), "epoch": 7, "in_sync": [["n2", "i"]]}
    left = LeftKey(6, "n1", "it was stopped").value()
    leads = leader_value(leader, 1_700_000_000)
    change(etcd, cluster, lambda _: {"leader/1": leads, "left/1": left, "shard/1": state, "node/n1": None})
    shown = run("cluster", "status", "--json", "--interval", 0, *of_cluster)
    assert shown.returncode == 1
    assert "shard 0: no process serves it: it has no leader, and of those in sync none runs: n1, n2" in shown.stderr
    found = json.loads(shown.stdout)
    assert found["nodes"] == ["n2"]
    rows = [(row["shard"], row["node"], row["epoch"], row["replicas"], row["in_sync"]) for row in found["shards"]]
    assert rows == [(0, None, 0, ["n1", "n2"], ["n1", "n2"]), (1, "n2", 7, ["n2", "n1"], ["n2"])]
    whys = [(row["leader_since"], row["leader_reason"], row["behind"]) for row in found["shards"]]
    assert whys == [(None, None, None), ("2023-11-14T22:13:20+00:00", "n1: it was stopped", None)]
    looked = output("cluster", "top", "--once", "--interval", 0.1, *of_cluster)
    assert "in sync" in looked


@pytest.mark.parametrize("nodes", range(1, 7))
def test_replicas_and_leaders_are_spread_evenly(nodes: int) -> None:
    names = [f"n{number}" for number in range(nodes)]
    for replicas in range(1, nodes + 1):
        for shards in range(1, 40):
            placed = place(names, shards, replicas)
            assert all(len(set(each)) == replicas for each in placed)
            for counted in (Counter(name for each in placed for name in each), Counter(each[0] for each in placed)):
                assert max(counted.values()) - min(counted[name] for name in names) <= 1


def test_what_a_node_leads_goes_to_all_others_when_it_fails() -> None:
    placed = place(["n1", "n2", "n3", "n4"], 12, 2)
    assert {follower for leader, follower in placed if leader == "n1"} == {"n2", "n3", "n4"}


async def test_a_split_for_which_nodes_of_one_machine_have_no_ports_is_refused(etcd: Etcd, cluster: str) -> None:
    async with registry_of(etcd, cluster) as (_, registry):
        nodes = {f"node/n{place}": NodeKey(f"127.0.0.1:{7701 + 8 * place}", "run", "0", ports=True).value() for place in (0, 1)}
        assert await registry.transact({}, nodes)
        await created(registry, 4, 2)
        before = await registry.read()
        with pytest.raises(InvalidArgument, match=r"port 7719 .* shard 4 on n0 and of shard 0 on n1.* Start n1 with --listen"):
            await ask_to_split(registry, before, 0, 2)
        assert (await registry.read()).revision == before.revision


async def test_a_split_is_not_taken_back_as_a_move_is_and_the_refusal_says_how(etcd: Etcd, cluster: str) -> None:
    async with registry_of(etcd, cluster) as (_, registry):
        await registered(registry, 2)
        await created(registry, 2, 2)
        await ask_to_split(registry, await registry.read(), 1, 2)
        told = "shard 1 is being split, which `eventstore cluster split 1 --call-off` takes back"
        for which in ("1", "--all"):
            command = ("cluster", "cancel", which, "--etcd", etcd.url, "--cluster", cluster)
            assert told in await trio.to_thread.run_sync(lambda command=command: refused(*command, code=2))
        assert await call_off(registry, await registry.read(), 1) == (2,)
        with pytest.raises(InvalidArgument, match=r"shard 1 is not being split$"):
            await call_off(registry, await registry.read(), 1)
        await registry.transact({}, {"shard/1": with_splits((await registry.read()).value("shard/1") or {}, 1)})
        with pytest.raises(InvalidArgument, match="not being split; the slots that it has given away stay where they are"):
            await call_off(registry, await registry.read(), 1)


async def test_a_new_shard_of_a_split_that_is_not_served_is_under_way_and_not_paused_with_the_moves(
    etcd: Etcd, cluster: str
) -> None:
    def asked(*words: str) -> Any:
        return json.loads(output("cluster", *words, "--json", "--etcd", etcd.url, "--cluster", cluster))

    async with registry_of(etcd, cluster) as (_, registry):
        await registered(registry, 2)
        made = await created(registry, 2, 2)
        born = replace(made.shards[1], lineage=replace(made.shards[1].lineage, birth=Birth(0, made.shards[1].slots)))
        moved = replace(made.shards[0], state=replace(made.shards[0].state, successor="n2"))
        await registry.transact({}, {"shard/0": moved.value(), "shard/1": born.value(), "unserved/1": {}})
        plans = {each["shard"]: each["does"] for each in await trio.to_thread.run_sync(asked, "plans")}
        assert plans[1].startswith("is split off shard 0; no process serves it: ")
        assert plans.keys() == {0, 1}
        for command, paused in (("pause", True), ("resume", False)):
            assert await trio.to_thread.run_sync(asked, command) == {"paused": paused, "shards": [0], "still_paused": []}
