"""What is asked of a shard, and cannot be, is refused with what stands in the way, and nothing is written."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio

from eventstore.cli.terminal.plan_table import sized
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore_cluster.nodes.accepting_loss import keeps_none
from eventstore_cluster.nodes.first_read import first_read_of_cluster
from eventstore_cluster.nodes.moving.asking import Asked, ask
from eventstore_cluster.nodes.moving.moving import move
from eventstore_cluster.nodes.moving.plans import (
    MOVES_MAX,
    RATE_LEAST,
    RATE_MOST,
    ask_for_all,
    end_draining,
    limit_moves,
    remove,
    take_back_all,
)
from eventstore_cluster.nodes.placing.plan import PlacementChange, PlacementPlan
from eventstore_cluster.nodes.splitting.asking import ask_to_split, call_off
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.node_keys import NodeKey
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import ShardKey, read_shard
from eventstore_cluster.replica.leading import next_state
from eventstore_cluster.replica.registry_state import Seat, ShardState
from tests.cli.processes import output
from tests.cluster.etcd.real_etcd import Etcd, running
from tests.cluster.moving.commands import run_cluster
from tests.cluster.nodes.named_node import registry_of

Asks: TypeAlias = Callable[[EtcdRegistry, RegistrySnapshot], Awaitable[object]]
PLANS: dict[str, Asks] = {
    "move": lambda registry, seen: ask(registry, seen, 0, ("n1", "n3")),
    "hand over": lambda registry, seen: ask(registry, seen, 0, ("n1", "n2"), "n2"),
    "split": lambda registry, seen: ask_to_split(registry, seen, 0, 2),
}
UNDER_WAY = {
    "move": "the replicas of shard 0 are being moved to n1, n3: wait .*, or `eventstore cluster cancel 0` takes that back",
    "hand over": "shard 0 is to be handed over to n2: wait .*, or `eventstore cluster cancel 0` takes that back",
    "split": "shard 0 is being split, which `eventstore cluster split 0 --call-off` takes back: wait until .* shows",
}


async def shard_of(registry: EtcdRegistry, shard: int = 0) -> ShardKey:
    return read_shard(shard, (await registry.read()).value(f"shard/{shard}") or {})


@pytest.mark.parametrize("second", PLANS)
@pytest.mark.parametrize("first", PLANS)
async def test_a_second_plan_for_a_shard_is_refused_by_what_is_under_way(
    registry: EtcdRegistry, first: str, second: str
) -> None:
    await PLANS[first](registry, await registry.read())
    before = await registry.read()
    with pytest.raises(InvalidArgument, match=UNDER_WAY[first]):
        await PLANS[second](registry, before)
    assert (await registry.read()).revision == before.revision


@pytest.mark.parametrize("kind", PLANS)
async def test_a_plan_for_a_shard_that_has_changed_since_it_was_seen_writes_nothing(registry: EtcdRegistry, kind: str) -> None:
    seen = await registry.read()
    key = await shard_of(registry)
    changed = replace(key, state=replace(key.state, in_sync=frozenset({Seat("n1", "later")})))
    assert await registry.transact({}, {"shard/0": changed.value()})
    before = await registry.read()
    with pytest.raises(EventStoreError, match=r"shard 0.* changed meanwhile, and nothing was .*; look, and ask again"):
        await PLANS[kind](registry, seen)
    assert (await registry.read()).revision == before.revision


async def test_where_a_later_shard_has_changed_the_refusal_says_what_was_written_before(registry: EtcdRegistry) -> None:
    async def change_the_second() -> None:
        key = await shard_of(registry, 1)
        changed = replace(key, state=replace(key.state, in_sync=key.state.in_sync ^ {Seat("n1", "later")}))
        assert await registry.transact({}, {"shard/1": changed.value()})

    seen = await registry.read()
    await change_the_second()
    plan = PlacementPlan(tuple(PlacementChange(shard, ("n1", "n2"), ("n1", "n3"), None, 0, "") for shard in (0, 1)), ())
    with pytest.raises(EventStoreError, match=r"shard 1.* changed meanwhile.*; 1 of 2 shards were asked for before"):
        await ask_for_all(registry, seen, plan)
    await ask(registry, await registry.read(), 1, ("n1", "n3"))
    seen = await registry.read()
    await change_the_second()
    with pytest.raises(EventStoreError, match=r"shard 1 has changed meanwhile.*; of shard 0 it was taken back before"):
        await take_back_all(registry, seen, None)
    assert [(await shard_of(registry, shard)).state.wanted for shard in (0, 1)] == [("n1", "n2"), ("n1", "n3")]


async def test_a_split_of_a_cluster_that_got_other_shards_since_it_was_seen_writes_nothing(registry: EtcdRegistry) -> None:
    seen = await registry.read()
    await ask_to_split(registry, seen, 1, 2)  # which takes the number 2
    before = await registry.read()
    with pytest.raises(EventStoreError, match="shard 0, or the cluster, has changed meanwhile, and nothing was written"):
        await ask_to_split(registry, seen, 0, 2)
    assert (await registry.read()).revision == before.revision


@pytest.mark.parametrize(
    ("slots", "into", "said"),
    [
        (((7, 7),), 2, "shard 0 has 1 slot, which cannot be split into 2: each shard needs one"),
        (((7, 8), (11, 11)), 4, "shard 0 has 3 slots, which cannot be split into 4: each shard needs one"),
        (((0, 4095),), 1, "into is 1, allowed are 2 to 32"),
        (((0, 4095),), 33, "into is 33, allowed are 2 to 32"),
        ((), 2, "shard 0 is in preparation itself, and has no slots yet"),
    ],
)
async def test_a_split_that_leaves_a_shard_without_a_slot_is_refused(
    registry: EtcdRegistry, slots: Any, into: int, said: str
) -> None:
    assert await registry.transact({}, {"shard/0": replace(await shard_of(registry), slots=slots).value()})
    before = await registry.read()
    with pytest.raises(InvalidArgument) as refused:
        await ask_to_split(registry, before, 0, into)
    assert said in str(refused.value)
    assert (await registry.read()).revision == before.revision


async def test_a_shard_keeps_as_many_replicas_as_must_be_in_sync(registry: EtcdRegistry) -> None:
    before = await registry.read()
    for wanted in (("n1",), ("n1", "n1"), ()):
        with pytest.raises(InvalidArgument, match=r"shard 0 would be left with .* replicas, and 2 must be in sync"):
            await ask(registry, before, 0, wanted)
    assert (await registry.read()).revision == before.revision


async def test_a_shard_that_does_not_say_how_large_it_is_moves_only_if_that_is_wanted_nevertheless(
    registry: EtcdRegistry, etcd: Etcd, cluster: str
) -> None:
    options = EtcdOptions((etcd.url,), by="ann")
    unknown = "Shard 0 does not say here how large it is, so whether node n3 has space for it is not known. "

    async def asks(shard: int = 0, **how: bool) -> Asked:
        return await trio.to_thread.run_sync(partial(move, options, cluster, shard, "n2", "n3", **how))

    node = NodeKey("127.0.0.1:3", "run", "0", free_bytes=10**9)
    assert await registry.transact({}, {"node/n3": node.value()})
    before = await registry.read()
    with pytest.raises(InvalidArgument) as refused:
        await asks()
    assert str(refused.value).startswith(unknown)
    assert str(refused.value).endswith("a token needs `stats`. Ask again then, or say --yes to move it nevertheless")
    assert (await registry.read()).revision == before.revision
    asked = await asks(unsized=True)
    assert (await shard_of(registry)).state.wanted == asked.wanted == ("n1", "n3")
    assert [note.startswith(unknown) for note in asked.notes] == [True]
    assert await registry.transact({}, {"node/n3": replace(node, free_bytes=None).value()})
    assert (await asks(shard=1)).notes == (), "a node that does not say what it has is asked for nothing"


@pytest.mark.parametrize("least", [1, 2])
def test_the_last_replica_in_sync_stays_until_those_that_are_wanted_are(least: int) -> None:
    last = Seat("n1", "i")
    named = ShardState(4, frozenset({last}), ("n1", "n2", "n3"), least, wanted=("n2", "n3"), before=("n1", "n2"), generation=1)
    assert next_state(named, last, [last]) is None
    both = {last, Seat("n2", "i")}
    assert next_state(replace(named, in_sync=frozenset(both)), last, both) is None
    every = both | {Seat("n3", "i")}
    hands_over = next_state(replace(named, in_sync=frozenset(every)), last, every)
    assert hands_over is not None
    assert (hands_over.replicas, hands_over.successor) == (("n1", "n2", "n3"), "n2"), "it leads, so it is not taken out yet"


@pytest.mark.parametrize(
    ("at_once", "rate", "said"),
    [
        (
            None,
            0,
            "a rate of 0 bytes/s, allowed are 1,000,000 to 1,000,000,000,000, or none for no limit; `eventstore cluster pause`",
        ),
        (None, 999_999, "a rate of 999,999 bytes/s, allowed are 1,000,000 to"),
        (
            None,
            sized("9999999999999999999GB"),
            "a rate of 9,999,999,999,999,999,999,000,000,000 bytes/s, allowed are 1,000,000 to",
        ),
        (0, None, "0 moves at once, allowed are 1 to 1000"),
        (-1, None, "-1 moves at once, allowed are 1 to 1000"),
        (10**30, None, "moves at once, allowed are 1 to 1000"),
    ],
)
def test_limits_of_moves_out_of_range_are_refused(at_once: int | None, rate: int | None, said: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        limit_moves(EtcdOptions(("http://127.0.0.1:1",)), "any", at_once, rate, unlimited=False)
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["", "-5", "1e9", "100 XB", "nan", "10\x1b[31mMB", "9" * 20, "none "])
def test_a_text_that_is_not_a_rate_is_refused_with_what_one_looks_like(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is not a rate, such as 100MB \(kB, MB or GB a second\), or none for no limit"):
        sized(text)


def test_a_rate_has_the_units_and_bounds_that_the_help_names() -> None:
    assert [sized(text) for text in ("2000KB", "2000kB/s", "2 MB", "2M", "2000000")] == [2_000_000] * 5
    text = " ".join(output("cluster", "limits", "--help").split())
    least, most = re.search(r"bytes a second that each of them sends, (\w+) to (\w+);", text).groups()  # type: ignore[union-attr]
    assert (sized(least), sized(most)) == (RATE_LEAST, RATE_MOST)
    assert f"at once, 1 to {MOVES_MAX}." in text


async def test_the_name_of_no_node_is_quoted_and_what_a_node_keeps_is_counted(
    registry: EtcdRegistry, etcd: Etcd, cluster: str
) -> None:
    options, key = EtcdOptions((etcd.url,)), await shard_of(registry, 1)
    assert await registry.transact({}, {"shard/1": replace(key, state=replace(key.state, replicas=("n1", "n3"))).value()})
    before = await registry.read()

    async def said(do: Callable[[EtcdOptions, str, str], None], node: str) -> str:
        with pytest.raises(InvalidArgument) as refused:
            await trio.to_thread.run_sync(do, options, cluster, node)
        return refused.value.message

    assert await said(remove, "n2") == "node n2 keeps a replica of shard 0: `eventstore cluster drain n2` moves it away"
    assert (await said(remove, "n1")).startswith("node n1 keeps replicas of shards 0, 1: ")
    assert await said(remove, "") == "there is no node ''; these are: n1, n2, n3"
    assert await said(end_draining, "") == "node '' is not draining"
    assert keeps_none("", 0, ("n1",)) == "node '' keeps no replica of shard 0: n1 does"
    assert (await registry.read()).revision == before.revision


@pytest.mark.long
async def test_commands_are_refused_for_nodes_that_cannot_be_meant(registry: EtcdRegistry, etcd: Etcd, cluster: str) -> None:
    async def said(code: int, *words: str) -> str:
        return (await trio.to_thread.run_sync(lambda: run_cluster(etcd, cluster, *words, code=code))).stderr

    await PLANS["split"](registry, await registry.read())
    shown = await trio.to_thread.run_sync(lambda: run_cluster(etcd, cluster, "rebalance", "--dry-run"))
    assert "Shard 0 is left alone: it is being split: wait, or `eventstore cluster split 0 --call-off`." in shown.stdout
    await call_off(registry, await registry.read(), 0)
    kept = await said(2, "remove", "n2")
    assert "node n2 keeps replicas of shards 0, 1: `eventstore cluster drain n2` moves them away" in kept
    assert "there is no node 'n9'; these are: n1, n2, n3" in await said(2, "move", "0", "--from", "n1", "--to", "n9")
    await said(0, "drain", "n3", "--yes")
    before = await registry.read()
    draining = "node n3 is draining; `eventstore cluster drain n3 --undo` ends that"
    assert draining in await said(2, "move", "0", "--from", "n1", "--to", "n3")
    assert "no node can take another replica of shard 0" in await said(2, "replicas", "3", "--yes")
    assert (await registry.read()).revision == before.revision


@pytest.mark.heavy
@pytest.mark.parametrize(
    "words", [("status",), ("plans",), ("split", "0"), ("split", "0", "--call-off"), ("lead", "0", "n1"), ("drain", "n1")]
)
async def test_who_names_a_cluster_that_is_not_there_is_told_which_are(
    registry: EtcdRegistry, etcd: Etcd, cluster: str, words: tuple[str, ...]
) -> None:
    assert await registry.transact({}, {"not/created": {}})
    done = await trio.to_thread.run_sync(lambda: run_cluster(etcd, "evenstore", *words, code=1))
    assert "etcd has no cluster evenstore, but " in done.stderr
    assert cluster in done.stderr


async def test_only_clusters_that_were_created_are_named(tmp_path: Path) -> None:
    with running(tmp_path) as (etcd,):
        there: dict[str, Any] = {"b": {"cluster": {}}, "nodes": {"node/n1": {}}, "a": {"cluster": {}, "shard/0": {}}}
        for name, keys in (there | {"a0": {"cluster": {}}}).items():
            async with registry_of(etcd, name) as (_, registry):
                assert await registry.transact({}, keys)
        async with registry_of(etcd, "c") as (_, registry):
            assert await registry.clusters("cluster") == ["a", "a0", "b"]
            with pytest.raises(EventStoreError, match="etcd has no cluster c, but a, a0, b: name that with --cluster"):
                await first_read_of_cluster(registry)
            for name in ("a", "a0", "b"):
                async with registry_of(etcd, name) as (_, other):
                    await other.transact({}, {"cluster": None})
            with pytest.raises(EventStoreError, match="etcd has no cluster c, and names no other: check --etcd, or make it"):
                await first_read_of_cluster(registry)
