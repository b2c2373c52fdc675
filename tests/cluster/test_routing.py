"""Clients that are connected to a node of three shards: each request reaches the shard that owns its aggregate."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import trio

import eventstore as es
from eventstore import ANY, Commit, Committed, NewEvent, RawCommand, blocking
from eventstore.client.address import parse_address, parse_addresses
from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.routing.router import Router
from eventstore.client.blocking.connection import BlockingConnection as BlockingConnection
from eventstore.client.blocking.routing import BlockingRouter as BlockingRouter
from eventstore.client.options import ClientOptions
from eventstore.client.routing.table import RoutingTable
from eventstore.errors import ConnectionLost, Elsewhere, InvalidArgument, UnknownCommand, VersionConflict
from eventstore.protocol.requests import Version
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.raw_commit import encode_commits
from eventstore.records.slots import slot_of
from eventstore_cluster.shard_start import PORTS_BELOW
from tests.cli.processes import output
from tests.cluster.node_process import NodeProcess, kill_process, wait_until_ended
from tests.ports import free_port
from tests.records.test_slots import VECTORS
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_SECONDS, eventually

pytestmark = pytest.mark.heavy
EVENT = NewEvent("Happened", b"1")
IDS = [f"a-{number}" for number in range(60)]


def commits(expected_version: int) -> list[Commit]:
    return [Commit(each, [EVENT], expected_version, f"{each}/{expected_version}") for each in IDS]


def check_shards(node: NodeProcess, events: int) -> None:
    """Each shard has the events of its own aggregates, and nothing else."""
    found: list[str] = []
    owners = blocking_owners(node)
    for shard in range(3):
        with blocking.connect(node.shard_address(shard)) as store:
            held = [event.aggregate_id for event in store.read_all()]
        assert held
        assert {owners[slot_of(each)] for each in held} == {shard}
        found += held
    assert len(found) == events


def blocking_owners(node: NodeProcess) -> tuple[int, ...]:
    with blocking.connect(node.address) as store:
        return store.cluster_map().owners


def test_a_blocking_client_reaches_the_shard_of_each_aggregate(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3) as node:
        with blocking.connect(node.address) as store:
            for each in IDS:
                assert store.append(each, [EVENT], 0, "first").aggregate_id == each
            outcomes = store.append_many([*commits(1), Commit("a-0", [EVENT], 7), *commits(2)])
            assert isinstance(outcomes.pop(len(IDS)), VersionConflict)
            assert [(each.aggregate_id, each.version) for each in outcomes if isinstance(each, Committed)] == [
                (each, version) for version in (2, 3) for each in IDS
            ]
            for each in IDS:
                assert [event.version for event in store.read(each)] == [1, 2, 3]
                assert store.version(each) == 3
                found = store.find_command(each, "first")
                assert found is not None
                assert found.version == 1
            with pytest.raises(UnknownCommand):
                store.send(RawCommand("X", "a-1", b"{}"))
            (local, other) = store.append_many([Commit("$local", [EVENT], ANY), Commit("a-0", [EVENT], 9)])
            assert isinstance(local, InvalidArgument)
            assert isinstance(other, VersionConflict)
            sent = store.send_many([RawCommand("X", each, b"{}") for each in IDS])
            assert {type(each) for each in sent} == {UnknownCommand}
        check_shards(node, 3 * len(IDS))
        assert node.terminate() == 0


def test_an_async_client_reaches_the_shard_of_each_aggregate(tmp_path: Path) -> None:
    async def main(node: NodeProcess) -> None:
        async with es.connect(node.address) as store:
            async with trio.open_nursery() as nursery:
                for each in IDS:
                    nursery.start_soon(store.append, each, [EVENT], 0, "first")
            outcomes = await store.append_many([*commits(1), Commit("a-0", [EVENT], 7), *commits(2)])
            assert isinstance(outcomes.pop(len(IDS)), VersionConflict)
            assert [(each.aggregate_id, each.version) for each in outcomes if isinstance(each, Committed)] == [
                (each, version) for version in (2, 3) for each in IDS
            ]
            for each in IDS:
                assert [event.version async for event in store.read(each)] == [1, 2, 3]
                assert await store.version(each) == 3
                found = await store.find_command(each, "first")
                assert found is not None
            with pytest.raises(UnknownCommand):
                await store.send(RawCommand("X", "a-1", b"{}"))
            found = await store.aggregates(limit=7)
            while page := await store.aggregates(after=found[-1].aggregate_id, limit=7):
                found += page
            assert [(each.aggregate_id, each.version) for each in found] == [(each, 3) for each in sorted(IDS)]
            assert (await store.stats())["shards_serving"] == 3

    with NodeProcess(tmp_path / "data", 3) as node:
        trio.run(main, node)
        check_shards(node, 3 * len(IDS))
        assert node.terminate() == 0


def test_ids_with_tags_of_any_form_are_stored_and_handled_by_the_shard_of_their_slot(tmp_path: Path) -> None:
    ids = {each: slot for each, slot in VECTORS if each and not each.startswith("$")}
    with NodeProcess(tmp_path / "data", 3, domain="tests.server.commands.echoes:app") as node:
        with blocking.connect(node.address) as store:
            assert {type(each) for each in store.append_many([Commit(each, [EVENT], 0) for each in ids])} == {Committed}
            assert [store.version(each) for each in ids] == [1] * len(ids)
            owners = store.cluster_map().owners
        for shard in range(3):
            with blocking.connect(node.shard_address(shard)) as store:
                held = {event.aggregate_id for event in store.read_all()}
            assert held == {each for each, slot in ids.items() if owners[slot] == shard}
        assert node.terminate() == 0


def test_what_is_appended_and_sent_names_its_shard_for_programs(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3, domain="tests.server.commands.tallies:app") as node:
        with blocking.connect(node.address) as store:
            known = store.cluster_map()
        for each in ("a-1", "a-2", "a-3"):
            done = json.loads(output("append", each, "--type", "T", "--data", "1", "--json", store=node.address))
            assert (done["sequence"] > 0, done["shard"]) == (True, known.owner_of(each))
            tally = f"t-{each}"
            sent = ("send", "Raise", json.dumps({"tally": tally, "to": 5}), "--aggregate", tally, "--json")
            done = json.loads(output(*sent, store=node.address))
            assert (done["version"], done["shard"]) == (1, known.owner_of(tally))
            assert "shard" not in json.loads(output(*sent, store=node.address)), "nothing had to change"
        own = next(each for each in map("b-{}".format, range(1_000)) if known.owner_of(each) == 0)
        done = json.loads(output("append", own, "--type", "T", "--data", "1", "--json", store=node.shard_address(0)))
        assert "shard" not in done, "its address names it"


def test_a_cluster_of_one_shard_answers_everything_at_the_address_of_its_node(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 1) as node:
        with blocking.connect(node.address) as store:
            store.append("a", [EVENT], ANY)
            assert [event.aggregate_id for event in store.read_all()] == ["a"]
            assert [each.aggregate_id for each in store.aggregates()] == ["a"]
            store.broker.create_topic("t", queues=1)
            assert store.broker.topics()
            assert store.stats()["events"] == 1
        assert node.terminate() == 0


def test_a_shard_that_is_killed_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    chance = random.Random("routing")
    acknowledged: dict[str, int] = {}

    async def load(store: es.NetworkStore, aggregate_id: str, kill: Callable[[], None]) -> None:
        for version in range(40):
            done = await store.append(aggregate_id, [EVENT], version, f"{aggregate_id}/{version}")
            acknowledged[aggregate_id] = done.version
            kill()

    async def main(node: NodeProcess) -> None:
        at = sorted(chance.sample(range(50, 700), 2), reverse=True)
        pids = [row.pid for row in node.rows()]

        def kill() -> None:
            if at and sum(acknowledged.values()) >= at[-1]:
                at.pop()
                pid = pids.pop()
                kill_process(pid)

        async with es.connect(node.address) as store, trio.open_nursery() as nursery:
            for each in IDS[:24]:
                nursery.start_soon(load, store, each, kill)

    with NodeProcess(tmp_path / "data", 3) as node:
        trio.run(main, node)
        assert acknowledged == dict.fromkeys(IDS[:24], 40)
        with blocking.connect(node.address) as store:
            for each in IDS[:24]:
                assert [event.version for event in store.read(each)] == list(range(1, 41))
        check_shards(node, 24 * 40)
        assert node.terminate() == 0


def free_address(shards: int) -> str:
    """Returns an address for a node that can be started there again."""
    return f"127.0.0.1:{free_port(*range(PORTS_BELOW, PORTS_BELOW + shards))}"


@pytest.mark.parametrize("whole", [False, True], ids=["supervisor", "supervisor and shards"])
def test_a_node_that_is_killed_under_load_loses_and_doubles_nothing(tmp_path: Path, whole: bool) -> None:
    acknowledged: dict[str, int] = dict.fromkeys(IDS[:24], 0)
    lives: list[NodeProcess] = []

    def live() -> NodeProcess:
        lives.append(NodeProcess(tmp_path / "data", 3, listen=listen))
        return lives[-1]

    def die() -> None:
        node = lives[-1]
        children = node.shard_pids()
        kill_process(node.pid)
        for each in children if whole else ():
            kill_process(each)
        wait_until_ended([node.pid])  # until then it has the address
        live()

    async def load(store: es.NetworkStore, aggregate_id: str) -> None:
        for version in range(40):
            done = await store.append(aggregate_id, [EVENT], version, f"{aggregate_id}/{version}")
            acknowledged[aggregate_id] = done.version

    async def appended(least: int) -> None:
        async def enough() -> bool:
            return sum(acknowledged.values()) >= least

        await eventually(enough, "appends are acknowledged")

    async def main(address: str) -> None:
        async with es.connect(address, reconnect_timeout=DEADLINE_SECONDS) as store, trio.open_nursery() as nursery:
            for each in IDS[:24]:
                nursery.start_soon(load, store, each)
            await appended(300)
            await trio.to_thread.run_sync(die)

    listen = free_address(3)
    try:
        trio.run(main, live().address)
        assert acknowledged == dict.fromkeys(IDS[:24], 40)
        with blocking.connect(lives[-1].address) as store:
            for each in IDS[:24]:
                assert [event.version for event in store.read(each)] == list(range(1, 41))
        check_shards(lives[-1], 24 * 40)
        assert lives[-1].terminate() == 0
    finally:
        for node in lives:
            node.kill()


@pytest.mark.long
def test_a_shard_that_stays_away_makes_errors_of_its_own_commits_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, 3) as node, blocking.connect(node.address) as store:
        assert {type(each) for each in store.append_many(commits(0))} == {Committed}
        owners = store.cluster_map().owners
        assert node.terminate() == 0
    (data / "shard-1" / "events").rename(tmp_path / "away")
    with NodeProcess(data) as node, blocking.connect(node.address, reconnect_timeout=8.0) as store:
        for each, outcome in zip(IDS, store.append_many(commits(1)), strict=True):
            assert isinstance(outcome, ConnectionLost if owners[slot_of(each)] == 1 else Committed)


def with_a_stale_map(node: NodeProcess) -> RoutingTable:
    """A map in which each shard has the slots of the next one."""
    with blocking.connect(node.address) as store:
        known = store.cluster_map()
    slots = [each.slots for each in known.shards]
    shards = tuple(replace(each, slots=slots[(place + 1) % 3]) for place, each in enumerate(known.shards))
    return RoutingTable(ClusterMap(known.cluster, known.version - 1, known.layout, shards), parse_address(node.address))


def test_what_a_stale_map_sends_to_another_shard_is_stored_once_and_where_it_belongs(tmp_path: Path) -> None:
    async def main(node: NodeProcess) -> None:
        async with NetworkConnection(parse_addresses(node.address), ClientOptions()) as entry:
            router = Router(entry, with_a_stale_map(node))
            rows = [*commits(0), *commits(1)]
            outcomes = await router.put_many(appends_of, rows, encode_commits, itemgetter(0))
            assert [(each.aggregate_id, each.version) for each in outcomes] == [
                (each, version) for version in (1, 2) for each in IDS
            ]
            assert not any(each.duplicate for each in outcomes)
            router.close()
            stale = Router(entry, with_a_stale_map(node))
            assert await stale.call("a-1", Version("a-1")) == 2
            stale.close()
            stale = Router(entry, with_a_stale_map(node))
            (row,) = encode_commits([Commit("a-1", [EVENT], 2, "third")])
            assert (await stale.put(appends_of, "a-1", row)).version == 3
            stale.close()

    with NodeProcess(tmp_path / "data", 3) as node:
        trio.run(main, node)
        check_shards(node, 2 * len(IDS) + 1)
        assert node.terminate() == 0


def test_a_map_that_stays_wrong_ends_with_elsewhere_after_the_reconnect_timeout(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3) as node:
        wrong = with_a_stale_map(node)
        wrong.known = replace(wrong.known, version=wrong.known.version + 1000)  # newer than any that follows
        with BlockingConnection(parse_addresses(node.address), ClientOptions(reconnect_timeout=0)) as entry:
            router = BlockingRouter(entry, wrong)
            with pytest.raises(Elsewhere):
                router.call("a-1", Version("a-1"))
            outcomes = router.put_many(appends_of, commits(0), encode_commits, itemgetter(0))
            assert {type(each) for each in outcomes} == {Elsewhere}
            router.close()


def appends_of(connection: Any) -> Any:
    return connection.session.appends


def test_a_client_of_one_server_makes_the_requests_that_it_made_before(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        with BlockingConnection(parse_addresses(server.address), ClientOptions()) as plain:
            greeted = plain.session.answered
        with blocking.connect(server.address) as store:
            session = store._connection.session
            assert session.answered == greeted
            store.append("a", [EVENT], 0)
            store.version("a")
            store.append_many([Commit(each, [EVENT], 0) for each in IDS])
            assert session.answered == greeted + 3
        assert server.terminate() == 0
