"""A client that knows several addresses of a cluster: it has the map from whichever answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import eventstore as es
from eventstore import NewEvent, blocking
from eventstore_cluster.status import cluster_status
from tests.client.test_connecting import closed_port, loops
from tests.cluster.led_shards import LedShards
from tests.cluster.test_moved_leader import PATIENT, Runner
from tests.forwarder import Forwarder
from tests.waiting import wait_until

EVENT = NewEvent("Happened", b"1")
OTHER = uuid.UUID(int=8)


@pytest.fixture
def led(tmp_path: Path) -> Iterator[LedShards]:
    with LedShards(tmp_path / "mine", 2) as shards:
        yield shards


@loops
def test_the_map_is_watched_wherever_the_entry_is_connected_to(run: Runner, led: LedShards) -> None:
    async def use(first: Forwarder, text: str) -> None:
        async with es.connect(text, **PATIENT) as store, anyio.create_task_group() as tasks:
            await store.append(led.id_of(1), [EVENT], 0)
            assert str(store._connection.address) == first.address
            first.close()
            led.elect(1, None)
            tasks.start_soon(anyio.to_thread.run_sync, led.elect, 1, led.lead(1))
            assert (await store.append(led.id_of(1), [EVENT], 1)).version == 2
            while (await store.cluster_map()).version != 3:  # the append may have come before the one that led was gone
                assert await store.version(led.id_of(1)) == 2
            assert str(store._connection.address) == led.address

    with Forwarder(led.address) as first:
        run(use, first, f"{closed_port()},{first.address},{led.address}")


def test_a_blocking_client_watches_it_there_too(led: LedShards) -> None:
    with Forwarder(led.address) as first, blocking.connect(f"{first.address},{led.address}", **PATIENT) as store:
        store.append(led.id_of(1), [EVENT], 0)
        first.close()
        led.elect(1, None)
        led.elect(1, led.lead(1))
        assert store.append(led.id_of(1), [EVENT], 1).version == 2
        router = store._router
        assert router is not None
        wait_until(lambda: router.table.known.version == 3, "the map is known")


def test_the_server_of_a_shard_has_the_map_as_well(led: LedShards) -> None:
    """Alone, its address is that of its shard; among several it is one of the cluster."""
    leader = led.leaders[1]
    assert leader is not None
    with blocking.connect(leader.address) as store, pytest.raises(es.Elsewhere):
        store.append(led.id_of(0), [EVENT], 0)
    led.elect(1, leader)
    with Forwarder(led.address) as entry, blocking.connect(f"{leader.address},{entry.address}", **PATIENT) as store:
        entry.close()
        assert store.append(led.id_of(0), [EVENT], 0).version == 1
        assert store.append(led.id_of(1), [EVENT], 0).version == 1
        assert sorted(store.shards) == [0, 1]


@loops
def test_an_entry_of_another_cluster_is_refused_by_both_names(run: Runner, led: LedShards, tmp_path: Path) -> None:
    names = f"another cluster answers at this address: {OTHER}, it was {led.cluster}"

    async def use(first: Forwarder, text: str) -> None:
        async with es.connect(text, reconnect_timeout=0) as store:
            first.close()
            with pytest.raises(es.ConnectionLost, match=names):
                await store.cluster_map()

    with LedShards(tmp_path / "other", 1, OTHER) as other:
        with Forwarder(led.address) as first:
            run(use, first, f"{first.address},{other.address}")
        with Forwarder(led.address) as first:
            with blocking.connect(f"{first.address},{other.address}", reconnect_timeout=0) as store:
                first.close()
                with pytest.raises(es.ConnectionLost, match=names):
                    store.cluster_map()


def test_the_status_of_a_cluster_is_asked_at_any_of_its_addresses(led: LedShards) -> None:
    found = cluster_status(f"{closed_port()},{led.address}", 0)
    assert found.cluster == led.cluster.hex
    assert [row.error for row in found.shards] == [None, None]
