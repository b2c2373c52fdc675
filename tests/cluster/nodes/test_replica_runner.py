"""The process of a replica says that it follows, what its lease is and how it wants to be started: its node acts on it."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from structlog.typing import EventDict

from eventstore.errors import Poisoned, to_wire
from eventstore.records.cluster_map import ALL_SLOTS, single_map
from eventstore.store.data_folder import ShardIdentity
from eventstore_cluster import shard_runner
from eventstore_cluster.node_reports import NodeReports
from eventstore_cluster.nodes.registration import revoke
from eventstore_cluster.processes.starter import ShardStarter
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.shard_runner import FIRST_DELAY_S, LeaderEnded, ShardRunner
from eventstore_cluster.shard_start import ReplicaStart, ShardStart, read_start
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.nodes.named_node import registry_of
from tests.waiting import eventually

pytestmark = pytest.mark.heavy
IDENTITY = ShardIdentity(uuid.UUID(int=1), 0, ALL_SLOTS, uuid.UUID(int=2))


class Told:
    """A runner of a process that says these lines. `reaped`: the leases of those that have ended; `led`: what they led."""

    def __init__(self, says: list[Any], code: int) -> None:
        self.reaped: list[int] = []
        self.led: list[LeaderEnded | None] = []
        replica = ReplicaStart("test", EtcdOptions(("http://127.0.0.1:1",)), "n1", "127.0.0.1:0", host="n1.example")
        start = ShardStart({"says": json.dumps(says), "code": code}, IDENTITY, single_map(b"2" * 16), replica)
        assert read_start(json.loads(json.dumps(start.message()))).replica == replica
        self.starter = ShardStarter("tests.cluster.nodes.told_process")
        self.runner = ShardRunner(IDENTITY, self.starter, lambda _: start, lambda: None, lambda: None, self.note)

    async def note(self, lease: int, led: LeaderEnded | None) -> None:
        self.reaped.append(lease)
        self.led.append(led)

    async def is_up(self, starts: int) -> None:
        async def up() -> bool:
            return self.runner.up and self.runner.starts == starts

        await eventually(up, "it follows")

    async def has_been_up(self) -> None:
        """Waits as long as a process must have run so that it counts as one that ended by itself."""
        since = trio.current_time()

        async def long_enough() -> bool:
            return trio.current_time() - since >= FIRST_DELAY_S

        await eventually(long_enough, "it has run for some time")


@asynccontextmanager
async def run(told: Told) -> AsyncIterator[Told]:
    async with trio.open_nursery() as nursery:
        await nursery.start(told.starter.run)
        async with trio.open_nursery() as running:
            running.start_soon(told.runner.run)
            yield told
            told.runner.stop()
        nursery.cancel_scope.cancel()


async def test_a_replica_that_ends_by_itself_is_started_again_as_it_asked(logged: list[EventDict]) -> None:
    async with run(Told([{"lease": "77"}, {"sit_out": True}], 0)) as told:
        await told.is_up(1)
        assert told.runner.role == {"role": "joining", "sits_out": False}
        assert (told.runner.address, told.runner.error) == (None, None)
        await told.has_been_up()
        told.runner.tell_map()
        await told.is_up(2)
        assert told.runner.role == {"role": "joining", "sits_out": True}
        assert told.reaped == [77]
    assert told.reaped == [77, 77]
    assert [each for each in logged if each["log_level"] != "info"] == []


async def test_a_replica_that_fails_is_started_again_later_and_its_lease_is_given_back_too() -> None:
    failed = {"failed": to_wire(Poisoned("the disk fails"))}
    async with run(Told([{"lease": "8"}, failed], 1)) as told:
        await told.is_up(1)
        told.runner.tell_map()

        async def has_failed() -> bool:
            return bool(told.reaped)

        await eventually(has_failed, "it has ended")
        assert isinstance(told.runner.error, Poisoned)
        assert told.runner.role is None
        await told.is_up(2)
        assert told.runner.role == {"role": "joining", "sits_out": False}


@pytest.mark.parametrize(
    ("says", "code", "reason"),
    [
        ([{"left": "the log cannot be written: full", "spare": False}], 0, "the log cannot be written: full"),
        ([], 3, "its process ended with exit code 3"),
        ([], 0, None),  # it was stopped, and said so in the registry
    ],
)
async def test_a_node_knows_why_a_process_leads_no_more(says: list[Any], code: int, reason: str | None) -> None:
    leads = {"following": {"role": "leader", "epoch": 7}}
    async with run(Told([{"lease": "8"}, leads, *says], code)) as told:
        await told.is_up(1)
        await told.has_been_up()
        told.runner.tell_map()

        async def has_ended() -> bool:
            return bool(told.led)

        await eventually(has_ended, "it has ended")
        assert told.led == [None if reason is None else LeaderEnded(7, reason)]


@pytest.mark.parametrize("spare", [False, True])
async def test_a_replica_that_handed_over_is_started_again_at_once_only_if_it_is_waited_for(
    spare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_runner, "SPARED_S", 3600.0)
    leads = {"following": {"role": "leader", "epoch": 7}}
    async with run(Told([{"lease": "8"}, leads, {"left": "handed over", "spare": spare}], 0)) as told:
        await told.is_up(1)
        await told.has_been_up()
        told.runner.tell_map()
        if not spare:
            await told.is_up(2)
            return

        async def has_ended() -> bool:
            return bool(told.led)

        await eventually(has_ended, "it has ended")
        await trio.testing.wait_all_tasks_blocked()
        assert told.runner.starts == 1


async def test_a_process_that_does_not_stop_is_named_in_the_log(
    logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_runner, "STOPS_S", 0.01)
    async with run(Told([], 0)) as told:
        await told.is_up(1)
        assert told.runner.pid is not None
        os.kill(told.runner.pid, signal.SIGSTOP)
        told.runner.stop()

        async def named() -> bool:
            return any(each["event"] == "waiting for a shard to stop" for each in logged)

        await eventually(named, "it is named")
        os.kill(told.runner.pid, signal.SIGCONT)


async def test_health_has_the_role_of_a_replica_and_what_is_known_of_all_shards() -> None:
    follows = {"following": {"role": "follower", "follows": True, "attention": "told before"}}
    async with run(Told([follows], 0)) as told:
        elsewhere = {3: "not in sync: n2"}
        reports = NodeReports([told.runner], lambda: False, troubles=lambda: elsewhere)
        health = await reports.health()
        assert (health["healthy"], health["attention"]) == (False, "shard 3: not in sync: n2")
        assert health["troubles"] == {"3": "not in sync: n2", "0": "no process of it runs here: it starts"}

        async def following() -> bool:
            return told.runner.works

        await eventually(following, "it follows")
        health = await reports.health()
        assert (health["healthy"], health["attention"]) == (True, "shard 3: not in sync: n2")
        assert health["troubles"] == {"3": elsewhere[3]}, "its answer has ended what it told before"
        elsewhere[0] = "not in sync: n3"
        known = await reports.health()
        assert known["troubles"] == {"3": elsewhere[3], "0": elsewhere[0]}, "known of it"
        known_shards: Any = known["shards"]
        assert [each["degraded"] for each in known_shards] == [True], "though it says itself that it is not"
        assert json.loads(str(reports.stats()["troubles"]))["0"] == "told before", "nothing is asked for figures"
        assert reports.stats()["attention"] == health["attention"]
        shards: Any = health["shards"]
        assert (shards[0]["role"], shards[0]["serving"], shards[0]["degraded"]) == ("follower", False, False)
        lines = (await reports.metrics()).decode().splitlines()
        assert {'eventstore_shard_serving{shard="0"} 0', 'eventstore_shard_up{shard="0"} 1'} <= set(lines)


async def test_the_lease_of_a_process_that_was_reaped_is_revoked(etcd: Etcd, cluster: str) -> None:
    async with registry_of(etcd, cluster) as (gateway, registry):
        lease = await Lease.grant(gateway, 60)
        await registry.transact({}, {"leader/0": {}}, lease=lease)
        await revoke(gateway, Lease(lease.id, 60, 0.0))
        assert (await registry.read()).entries == {}
        await revoke(gateway, Lease(lease.id, 60, 0.0))  # once more does no harm
