"""Who asked for something stands in the shard's key, whichever way it was asked; one plan is paused alone, by whom is said."""

from __future__ import annotations

import json
import os
import pwd
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import trio

from eventstore.cli.terminal.cluster_table import print_cluster
from eventstore.cli.terminal.plan_table import UnderWayTable
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore_cluster.nodes.moving.asking import ask, write_for_all
from eventstore_cluster.nodes.moving.plans import (
    Paused,
    end_draining,
    limit_moves,
    pause,
    pending,
    remove,
    start_draining,
    take_back,
)
from eventstore_cluster.nodes.registry_status import registry_status
from eventstore_cluster.nodes.splitting.asking import ask_to_split, call_off
from eventstore_cluster.registry.cluster_requests import REQUESTS, read_requests
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.node_keys import DRAINING, MOVING, NodeKey, read_moving
from eventstore_cluster.registry.pauses import is_paused_alone
from eventstore_cluster.registry.replicated_keys import ShardKey, read_shard
from eventstore_cluster.replica.registry_state import ASKED_BY_MAX, NOT_PAUSED, Pause, Seat
from eventstore_cluster.replication.shard_registry import ShardRegistry
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.moving.commands import run_cluster
from tests.cluster.nodes.named_node import registry_of

T = TypeVar("T")
HERE = f"{pwd.getpwuid(os.getuid()).pw_name[:32]}@{socket.gethostname()[:32]} (claimed)"


async def shard_of(registry: EtcdRegistry, shard: int = 0) -> ShardKey:
    return read_shard(shard, (await registry.read()).value(f"shard/{shard}") or {})


async def led(registry: EtcdRegistry, **fields: Any) -> ShardKey:
    """Has the replica of shard 0 on n1 elected, as if that was not asked for; returns the key."""
    key = await shard_of(registry)
    leader = Seat("n1", "i")
    key = replace(key, state=replace(key.state, **{"leader": leader, "leader_by": "", **fields}))
    assert await registry.transact({}, {"shard/0": key.value()})
    return key


async def on_thread(do: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(do)


def asking(etcd: Etcd, who: str) -> EtcdOptions:
    return EtcdOptions((etcd.url,), by=who)


async def test_a_plan_says_who_asked_for_it_and_taking_it_back_who_did_that(
    registry: EtcdRegistry, etcd: Etcd, cluster: str
) -> None:
    await led(registry)
    async with registry_of(etcd, cluster, "ann") as (_, own):
        await ask(own, await registry.read(), 0, ("n3", "n1"), "n3")
    state = (await shard_of(registry)).state
    assert (state.wanted, state.by, state.successor, state.leader_by) == (("n3", "n1"), "ann", "n3", "ann")
    (plan,) = await on_thread(lambda: pending(asking(etcd, "eve"), cluster))
    assert plan.by == "ann"
    assert await on_thread(lambda: take_back(asking(etcd, "ben"), cluster, 0)) == [0]
    state = (await shard_of(registry)).state
    assert (state.successor, state.by, state.leader_by) == (None, "ben", "ben")


async def test_a_move_asked_for_and_taken_back_by_others_does_not_name_them_for_the_leader(
    registry: EtcdRegistry, etcd: Etcd, cluster: str
) -> None:
    await led(registry, leader_by="ann")
    async with registry_of(etcd, cluster, "ben") as (_, own):
        await ask(own, await registry.read(), 0, ("n1", "n3"))
    assert (await shard_of(registry)).state.leader_by == "ann"
    await on_thread(lambda: take_back(asking(etcd, "cara"), cluster, 0))
    state = (await shard_of(registry)).state
    assert (state.by, state.leader_by) == ("cara", "ann")


@pytest.mark.parametrize("successor", [None, "n2"])
async def test_who_accepted_loss_is_named_for_that_election_whatever_others_ask_for_before_it(
    registry: EtcdRegistry, etcd: Etcd, cluster: str, successor: str | None
) -> None:
    one = Seat("n1", "i")
    await led(registry, leader=None, generation=2, in_sync=frozenset({one}), leader_by="ann")
    async with registry_of(etcd, cluster, "ben") as (_, own):
        await ask(own, await registry.read(), 0, ("n1", "n2", "n3"), successor)
    asked = (await shard_of(registry)).state
    assert asked.by == "ben"
    assert asked.elected(one, asked.in_sync).leader_by == "ann"
    await on_thread(lambda: take_back(asking(etcd, "cara"), cluster, 0))
    back = (await shard_of(registry)).state
    assert back.elected(one, back.in_sync).leader_by == "ann"


async def test_a_split_says_who_asked_for_it_and_so_do_the_new_shards(registry: EtcdRegistry, etcd: Etcd, cluster: str) -> None:
    async with registry_of(etcd, cluster, "ann") as (_, own):
        await ask_to_split(own, await registry.read(), 0, 2)
    parent, child = await shard_of(registry), await shard_of(registry, 2)
    assert (parent.state.by, child.state.by, child.state.leader_by) == ("ann", "ann", "ann")
    async with registry_of(etcd, cluster, "ben") as (_, own):
        await call_off(own, await registry.read(), 0)
    assert (await shard_of(registry)).state.by == "ben"


async def test_a_name_is_kept_up_to_its_limit(registry: EtcdRegistry, etcd: Etcd, cluster: str) -> None:
    async with registry_of(etcd, cluster, "x" * 10_000) as (_, own):
        await ask(own, await registry.read(), 0, ("n3", "n1"))
    assert ((await registry.read()).value("shard/0") or {})["by"] == "x" * ASKED_BY_MAX
    value = (await shard_of(registry)).value()
    assert read_shard(0, {**value, "by": "y" * 10_000, "leader_by": 7}).state.by == "y" * ASKED_BY_MAX, "others wrote it"
    assert read_shard(0, {**value, "leader_by": 7}).state.leader_by == ""


async def test_one_plan_is_paused_and_resumed_by_its_shard_and_a_new_one_is_not_paused(
    registry: EtcdRegistry, etcd: Etcd, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with registry_of(etcd, cluster, "cara") as (_, own):
        await ask(own, await registry.read(), 0, ("n3", "n1"))
    async with registry_of(etcd, cluster, "dora") as (_, own):
        await ask_to_split(own, await registry.read(), 1, 2)
    for shard in (0, 1):
        assert await on_thread(lambda n=shard: pause(asking(etcd, "ann"), cluster, True, n)) == Paused(True, (shard,), ())  # type: ignore[misc]
        assert (await shard_of(registry, shard)).state.pause == Pause(True, "ann")
    assert not read_moving((await registry.read()).value(MOVING)).pause.on, "the moves of others continue"
    plans = await on_thread(lambda: pending(asking(etcd, "eve"), cluster))
    assert [each.does for each in plans] == [
        "paused by ann: `eventstore cluster resume 0` continues",
        "paused by ann: `eventstore cluster resume 1` continues",
    ]
    assert all(each.paused for each in plans)
    with pytest.raises(InvalidArgument, match="it is paused by ann: `eventstore cluster resume 0` continues, or `eventstore"):
        await ask(registry, await registry.read(), 0, ("n2", "n1"))
    UnderWayTable().show(plans)
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[-2:]] == ["cara", "dora"], "who asked"
    shown = await on_thread(lambda: registry_status(asking(etcd, "eve"), cluster, 0.0))
    print_cluster(shown)
    assert "\nmoves of shard 0 are paused by ann: " in capsys.readouterr().err
    assert shown.paused == [f"moves of shard {n} are {plans[n].does}" for n in (0, 1)]
    assert await on_thread(lambda: pause(asking(etcd, "ben"), cluster, False, 1)) == Paused(False, (1,), ())
    assert (await shard_of(registry, 1)).state.pause == Pause(False, "ben")
    await on_thread(lambda: take_back(asking(etcd, "ben"), cluster, 0))
    assert (await shard_of(registry)).state.pause == Pause(False, "ben")


async def test_what_is_paused_twice_is_paused_until_both_are_resumed(registry: EtcdRegistry, etcd: Etcd, cluster: str) -> None:
    options = asking(etcd, "ann")
    for shard in (0, 1):
        await ask(registry, await registry.read(), shard, ("n3", "n1"))
    await on_thread(lambda: pause(options, cluster, True, 0))
    assert await on_thread(lambda: pause(options, cluster, True)) == Paused(True, (0, 1), ())
    done = await on_thread(lambda: pause(options, cluster, False))
    assert (done.shards, done.still_paused) == ((1,), (0,))
    assert done.text(None).startswith(
        "Moves of all shards are resumed; 1 is under way. Still paused, each by itself: `eventstore cluster resume 0`."
    )
    await on_thread(lambda: pause(options, cluster, True))
    plans = await on_thread(lambda: pending(options, cluster))
    all_moves = "paused by ann: `eventstore cluster resume` continues"
    assert [each.does for each in plans] == [
        f"paused by ann: `eventstore cluster resume 0` continues; all moves are {all_moves}",
        all_moves,
    ]
    with pytest.raises(InvalidArgument, match="n1: it is paused by ann: `eventstore cluster resume` continues, or `eventstore"):
        await ask(registry, await registry.read(), 1, ("n2", "n1"))
    done = await on_thread(lambda: pause(options, cluster, False, 0))
    assert (done.shards, done.still_paused) == ((), (0,))
    assert done.text(0).endswith("are resumed. The moves of all shards are paused: `eventstore cluster resume`.")
    shown = await on_thread(lambda: registry_status(options, cluster, 0.0))
    assert shown.paused == ["all moves are paused by ann: `eventstore cluster resume` continues"]


async def test_what_is_not_under_way_is_not_paused(registry: EtcdRegistry, etcd: Etcd, cluster: str) -> None:
    before = await registry.read()
    for shard, said in ((0, "no move or split of shard 0 is under way"), (7, "there is no shard 7")):
        with pytest.raises(InvalidArgument, match=said):
            await on_thread(lambda n=shard: pause(asking(etcd, "ann"), cluster, True, n))  # type: ignore[misc]
    assert (await registry.read()).revision == before.revision


async def test_a_key_of_an_older_program_is_read_and_says_of_no_one_that_they_asked(registry: EtcdRegistry) -> None:
    key = await shard_of(registry)
    assert not {"by", "leader_by", "pause"} & key.value().keys(), "nothing is written that says nothing"
    state = replace(key.state, by="ann", leader_by="ben", pause=Pause(True, "cara"))
    value = replace(key, state=state).value()
    assert read_shard(0, value).state == state
    older = {name: each for name, each in value.items() if name not in ("by", "leader_by", "pause")}
    assert read_shard(0, older).state == replace(state, by="", leader_by="", pause=NOT_PAUSED)
    assert not is_paused_alone(replace(state, wanted=None)), "what was paused is not wanted any more"
    strange: list[Any] = [None, 7, {}, {"on": 1}, [True, "ann"]]
    assert {read_shard(0, {**value, "pause": each}).state.pause for each in strange} == {NOT_PAUSED}
    assert read_moving({"at_once": 2, "rate": None, "paused": True}).pause == Pause(True, "")


async def test_what_is_asked_of_a_node_or_of_all_is_written_with_who_asked_where_one_shard_reads_it(
    registry: EtcdRegistry, etcd: Etcd, cluster: str
) -> None:
    ann, ben = asking(etcd, "ann"), asking(etcd, "ben")
    for _ in range(2):  # it is draining already the second time
        await on_thread(lambda: start_draining(ann, cluster, "n3"))
    await on_thread(lambda: end_draining(ben, cluster, "n3"))
    await on_thread(lambda: start_draining(ann, cluster, "n3"))
    await on_thread(lambda: limit_moves(ann, cluster, 4, None, unlimited=False))
    await on_thread(lambda: limit_moves(ann, cluster, None, None, unlimited=False))  # only looks
    await on_thread(lambda: pause(ben, cluster, True))
    await on_thread(lambda: pause(ann, cluster, False))
    assert await registry.transact({}, {"node/n3": None})
    await on_thread(lambda: remove(ben, cluster, "n3"))
    asked = [
        ("ann", {"node": "n3", "draining": True}),
        ("ben", {"node": "n3", "draining": False}),
        ("ann", {"node": "n3", "draining": True}),
        ("ann", {"moves_at_once": 4, "move_rate": "none"}),
        ("ben", {"moves_paused": True}),
        ("ann", {"moves_paused": False}),
        ("ben", {"node": "n3", "removed": True}),
    ]
    async with Gateway(asking(etcd, "")) as gateway:
        lease = await Lease.grant(gateway, 60)
        shards = [ShardRegistry(EtcdRegistry(gateway, cluster), shard, lease, "run") for shard in (0, 1)]
        recorder, other = [await each.read() for each in shards]
    assert recorder is not None
    assert other is not None
    assert [(each.number, each.by, each.details) for each in recorder.requests] == [
        (number, *each) for number, each in enumerate(asked, 1)
    ]
    assert len({each.id for each in recorder.requests}) == len(asked)
    assert other.requests == ()


async def test_requests_at_the_same_time_are_all_written_and_one_about_what_has_changed_is_not(
    registry: EtcdRegistry, etcd: Etcd, cluster: str
) -> None:
    seen = await registry.read()

    async def asks(node: str, key: str) -> None:
        await write_for_all(registry, seen, {"node": node}, {key: {}}, {key: 0}, "it has")

    await asks("n1", f"{DRAINING}n1")
    await asks("n2", f"{DRAINING}n2")  # the list of requests has changed since it was seen, which is not what this is about
    before = await registry.read()
    assert [each.details["node"] for each in read_requests(before.value(REQUESTS))] == ["n1", "n2"]
    with pytest.raises(EventStoreError, match="it has changed meanwhile, and nothing was written; ask again"):
        await asks("n3", f"{DRAINING}n1")
    assert (await registry.read()).revision == before.revision


@pytest.mark.heavy
async def test_a_command_names_the_user_and_the_machine_it_runs_as(registry: EtcdRegistry, etcd: Etcd, cluster: str) -> None:
    assert await registry.transact({}, {"node/n3": NodeKey("127.0.0.1:3", "run", "0", free_bytes=10**9).value()})
    moved = ("move", "0", "--from", "n2", "--to", "n3", "--wait", "0", "--yes")
    said = (await on_thread(lambda: run_cluster(etcd, cluster, *moved))).stdout
    assert said.startswith("Shard 0 is to be kept by n1, n3. Shard 0 does not say here how large it is, so whether node n3 has")
    assert (await shard_of(registry)).state.by == HERE
    done = await on_thread(lambda: run_cluster(etcd, cluster, "pause", "0"))
    assert done.stdout == "Moves of shard 0 are paused.\n"
    (plan,) = json.loads((await on_thread(lambda: run_cluster(etcd, cluster, "plans", "--json"))).stdout)
    assert (plan["by"], plan["paused"]) == (HERE, True)
    assert plan["does"] == f"paused by {HERE}: `eventstore cluster resume 0` continues"
    resumed = json.loads((await on_thread(lambda: run_cluster(etcd, cluster, "resume", "0", "--json"))).stdout)
    assert resumed == {"paused": False, "shards": [0], "still_paused": []}
