"""A client whose first address is silent without a reset, as a machine that hangs or is off, and perhaps the leader with it.

No timeout ends a wait in these tests: they hang if the client does not ask the other addresses.
"""

from __future__ import annotations

import contextlib
import socket
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore import NewEvent, blocking
from eventstore_cluster.status import cluster_status
from tests.client.test_connecting import loops
from tests.cluster.led_shards import LedShards
from tests.cluster.test_moved_leader import PATIENT, Runner, Waiting, replace_a_frozen_leader
from tests.cluster.test_projecting import Totals, totals
from tests.cluster.test_working import TALLIES
from tests.forwarder import Forwarder
from tests.server.commands.tallies import Add
from tests.server.work.worker_thread import WorkerThread
from tests.service_thread import ServiceThread
from tests.waiting import eventually, wait_until

EVENT = NewEvent("Happened", b"1")


@pytest.fixture
def led(tmp_path: Path) -> Iterator[LedShards]:
    with LedShards(tmp_path, 2) as shards:
        yield shards


@pytest.fixture
def first(led: LedShards) -> Iterator[Forwarder]:
    with Forwarder(led.address) as forwarder:
        yield forwarder


@pytest.fixture
def addresses(led: LedShards, first: Forwarder) -> str:
    return f"{first.address},{led.address}"


def hang(led: LedShards, first: Forwarder) -> None:
    """Stops the machine of the first address, which leads shard 1."""
    leader = led.leaders[1]
    assert leader is not None
    first.freeze()
    leader.freeze()


@loops
def test_a_client_whose_first_address_hangs_with_the_leader_goes_on_with_the_new_one(
    run: Runner, led: LedShards, first: Forwarder, addresses: str
) -> None:
    async def use() -> None:
        async with es.connect(addresses, **PATIENT) as store, anyio.create_task_group() as tasks:
            await store.append(led.id_of(1), [EVENT], 0, "first")
            hang(led, first)
            tasks.start_soon(anyio.to_thread.run_sync, replace_a_frozen_leader, led)
            assert (await store.append(led.id_of(1), [EVENT], 1, "second")).version == 2

    run(use)


def test_so_does_a_blocking_one(led: LedShards, first: Forwarder, addresses: str) -> None:
    with blocking.connect(addresses, **PATIENT) as store:
        store.append(led.id_of(1), [EVENT], 0, "first")
        hang(led, first)
        waiting = Waiting(store, led.id_of(1))
        replace_a_frozen_leader(led)
        assert waiting.result().version == 2


@loops
def test_a_call_that_begins_when_the_new_one_leads_finds_it_too(
    run: Runner, led: LedShards, first: Forwarder, addresses: str
) -> None:
    async def use() -> None:
        async with es.connect(addresses, **PATIENT) as store:
            await store.append(led.id_of(1), [EVENT], 0)
            hang(led, first)
            led.elect(1, led.lead(1))
            assert (await store.append(led.id_of(1), [EVENT], 1)).version == 2

    run(use)


def test_a_call_of_a_blocking_client_finds_it_too(led: LedShards, first: Forwarder, addresses: str) -> None:
    with blocking.connect(addresses, **PATIENT) as store:
        store.append(led.id_of(1), [EVENT], 0)
        hang(led, first)
        led.elect(1, led.lead(1))
        assert store.append(led.id_of(1), [EVENT], 1).version == 2


@loops
def test_idle_subscriptions_and_consumers_go_on_with_the_new_leader(
    run: Runner, led: LedShards, first: Forwarder, addresses: str
) -> None:
    async def use() -> None:
        async with es.connect(addresses, **PATIENT) as store, es.connect(led.address) as other:
            await other.broker.create_topic("orders", 1)
            async with store.subscribe() as stream, store.consumer("g", "orders") as consumer:
                assert isinstance(await anext(stream), es.CaughtUp)
                hang(led, first)
                led.elect(1, led.lead(1))
                await other.append(led.id_of(1), [EVENT], 0)
                item = await anext(stream)
                assert isinstance(item, es.Event)
                assert item.aggregate_id == led.id_of(1)
                await other.topic("orders").send(b"paid", key=led.id_of(1))
                assert (await anext(consumer)).body == b"paid"

    run(use)


def test_so_do_those_of_a_blocking_client(led: LedShards, first: Forwarder, addresses: str) -> None:
    with blocking.connect(addresses, **PATIENT) as store, blocking.connect(led.address) as other:
        other.broker.create_topic("orders", 1)
        stream = store.subscribe()
        with store.consumer("g", "orders") as consumer:
            assert isinstance(next(stream), es.CaughtUp)
            hang(led, first)
            led.elect(1, led.lead(1))
            other.append(led.id_of(1), [EVENT], 0)
            item = next(stream)
            assert isinstance(item, es.Event)
            assert item.aggregate_id == led.id_of(1)
            other.topic("orders").send(b"paid", key=led.id_of(1))
            assert next(consumer).body == b"paid"


async def test_a_projection_goes_on_with_the_new_leader(
    led: LedShards, first: Forwarder, addresses: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.db"
    async with es.connect(addresses, **PATIENT) as store, es.connect(led.address) as other, trio.open_nursery() as nursery:
        await other.append(led.id_of(1), [EVENT], 0)
        nursery.start_soon(d.project, store, Totals(), d.SQLiteTarget(path))
        await eventually(has(path, 1), "the first event is in the table")
        hang(led, first)
        led.elect(1, led.lead(1))
        await other.append(led.id_of(1), [EVENT], 1)
        await eventually(has(path, 2), "the event of the new leader is in the table")
        nursery.cancel_scope.cancel()


def has(path: Path, events: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        try:
            return totals(path) == {"Happened": events}
        except sqlite3.OperationalError:  # the table is not there yet
            return False

    return look


async def test_a_worker_goes_on_with_the_new_leader(led: LedShards, first: Forwarder, addresses: str) -> None:
    """The deadline is less than the silence timeout of its client, which would end the wait as well."""
    mine = led.id_of(1)
    with WorkerThread(addresses, domain=TALLIES) as worker:
        async with es.connect(worker.address, **PATIENT) as sender:
            await sender.send(Add(mine))
            hang(led, first)
            led.elect(1, led.lead(1))
            with trio.fail_after(18):
                assert await sender.send(Add(mine)) == es.Committed(mine, 2, 2, duplicate=False, durability=1)


@loops
def test_what_is_asked_of_the_cluster_itself_is_asked_at_another_address(
    run: Runner, led: LedShards, first: Forwarder, addresses: str
) -> None:
    async def use() -> None:
        async with es.connect(addresses, **PATIENT) as store:
            first.freeze()
            assert (await store.cluster_map()).cluster == led.cluster.bytes
            assert str(store._connection.address) == led.address

    run(use)


def test_so_it_is_by_a_blocking_client(led: LedShards, first: Forwarder, addresses: str) -> None:
    with blocking.connect(addresses, **PATIENT) as store:
        first.freeze()
        assert store.cluster_map().cluster == led.cluster.bytes
        assert str(store._connection.address) == led.address


@loops
def test_a_client_opens_at_whichever_address_answers(run: Runner, led: LedShards, first: Forwarder, addresses: str) -> None:
    async def use() -> None:
        async with es.connect(addresses, **PATIENT) as store:
            await store.append(led.id_of(0), [EVENT], 0)

    first.freeze()
    run(use)


def test_a_blocking_client_opens_there_too(led: LedShards, first: Forwarder, addresses: str) -> None:
    first.freeze()
    with unreachable() as off, blocking.connect(f"tcp://{off},{addresses}", **PATIENT) as store:
        store.append(led.id_of(0), [EVENT], 0)


@loops
def test_a_node_that_answers_but_is_cut_off_from_the_others_does_not_hide_the_new_leader(run: Runner, led: LedShards) -> None:
    """Its map is the one in which the silent process still leads."""

    async def use(text: str) -> None:
        async with es.connect(text, **PATIENT) as store, anyio.create_task_group() as tasks:
            await store.append(led.id_of(1), [EVENT], 0)
            led.leaders[1].freeze()  # type: ignore[union-attr]
            tasks.start_soon(anyio.to_thread.run_sync, replace_a_frozen_leader, led)
            assert (await store.append(led.id_of(1), [EVENT], 1)).version == 2

    with ServiceThread(led._begin, {}) as cut_off:
        run(use, f"{cut_off.address},{led.address}")


def test_nor_does_it_from_a_blocking_client(led: LedShards) -> None:
    with ServiceThread(led._begin, {}) as cut_off:
        with blocking.connect(f"{cut_off.address},{led.address}", **PATIENT) as store:
            store.append(led.id_of(1), [EVENT], 0, "first")
            led.leaders[1].freeze()  # type: ignore[union-attr]
            waiting = Waiting(store, led.id_of(1))
            replace_a_frozen_leader(led)
            assert waiting.result().version == 2


def test_a_blocking_client_leaves_an_attempt_to_reach_a_machine_that_is_off(led: LedShards) -> None:
    with unreachable() as off, blocking.connect(led.address, **PATIENT) as store:
        store.append(led.id_of(1), [EVENT], 0)
        old = led.leaders[1]
        led.elect(1, Off(off))  # type: ignore[arg-type] # only its address is looked at
        old.close()  # type: ignore[union-attr]
        waiting = Waiting(store, led.id_of(1))
        wait_until(lambda: is_connecting_to(off), "it tries to connect")
        led.elect(1, led.lead(1))
        assert waiting.result().version == 2


def test_the_status_of_a_cluster_names_a_shard_that_is_silent_and_shows_the_others(
    led: LedShards, first: Forwarder, addresses: str
) -> None:
    hang(led, first)
    rows = cluster_status(addresses, 0).shards
    assert rows[0].error is None
    assert rows[0].events == 0
    assert "the hello was not answered" in str(rows[1].error)


class Off:
    """A leader in a map, on a machine that answers nothing."""

    def __init__(self, leader: str) -> None:
        self.leader = leader


@contextlib.contextmanager
def unreachable() -> Iterator[str]:
    """Yields an address that does not answer attempts to connect: the queue of a listener that accepts none is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        while True:
            each = stack.enter_context(socket.socket())
            each.settimeout(0.2)
            try:
                each.connect(address)
            except TimeoutError:
                break
        yield "{}:{}".format(*address)


def is_connecting_to(address: str) -> bool:
    """Whether an attempt to connect is under way, by what the kernel says; that of `unreachable` has ended."""
    port = int(address.rpartition(":")[2])
    sockets = [line.split()[2:4] for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return [f"0100007F:{port:04X}", "02"] in sockets
