"""A client with several addresses, of which some lead to its server: with both clients, and on both event loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore import NewEvent, blocking
from eventstore.client.address import Address, parse_address
from tests.client.test_connecting import canned_peer, closed_port, loops
from tests.forwarder import Forwarder
from tests.server_thread import ServerThread

EVENT = NewEvent("Happened", b"1")
Runner = Callable[..., None]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ServerThread]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ServerThread(tmp_path / name)) for name in ("one", "another")]


def opened(run: Runner, text: str, **options: Any) -> list[list[Address]]:
    """Returns the order of the addresses after each client has connected."""
    orders: list[list[Address]] = []

    async def use() -> None:
        async with es.connect(text, **options) as store:
            orders.append(list(store._connection.addresses.in_turn()))

    run(use)
    with blocking.connect(text, **options) as store:
        orders.append(list(store._connection.addresses.in_turn()))
    return orders


@loops
def test_one_that_is_down_and_one_that_hangs_are_passed_over(run: Runner, servers: list[ServerThread]) -> None:
    down, good = closed_port(), servers[0].address
    with canned_peer(b"", b"") as hangs:
        orders = opened(run, f"{down},{hangs},{good}", connect_timeout=10.0)  # of which the one that hangs gets a second
    assert orders == [[parse_address(each) for each in (good, down, hangs)]] * 2


@loops
def test_what_was_not_answered_at_one_address_is_sent_again_at_the_next(run: Runner, servers: list[ServerThread]) -> None:
    real = servers[0].address

    async def use(first: Forwarder, text: str) -> None:
        async with es.connect(text) as store:
            assert (await store.append("a", [EVENT], 0, "1")).version == 1
            first.close()
            assert (await store.append("a", [EVENT], 1, "2")).version == 2
            assert str(store._connection.address) == real

    with Forwarder(real) as first:
        run(use, first, f"{closed_port()},{first.address},{real}")
    with Forwarder(real) as first, blocking.connect(f"{first.address},{real}") as store:
        assert store.append("b", [EVENT], 0, "1").version == 1
        first.close()
        assert store.append("b", [EVENT], 1, "2").version == 2
        assert str(store._connection.address) == real


@loops
def test_an_address_of_another_store_is_refused_by_both_names(run: Runner, servers: list[ServerThread]) -> None:
    with blocking.connect(servers[0].address) as one, blocking.connect(servers[1].address) as another:
        names = [one.store_uuid.hex(), another.store_uuid.hex()]

    def check(error: es.ConnectionLost, text: str) -> None:
        for each in text.split(","):
            assert f"{each}: " in error.message
        known, found = names
        assert f"{found}, it was {known}" in error.message.replace("-", "")

    async def use(first: Forwarder, text: str) -> None:
        async with es.connect(text, reconnect_timeout=0) as store:
            assert await store.version("a") == 0
            first.close()
            with pytest.raises(es.ConnectionLost, match="another store answers") as caught:
                await store.version("a")
            check(caught.value, text)

    with Forwarder(servers[0].address) as first:
        run(use, first, f"{first.address},{servers[1].address}")
    with Forwarder(servers[0].address) as first:
        text = f"{first.address},{servers[1].address}"
        with blocking.connect(text, reconnect_timeout=0) as store:
            assert store.version("a") == 0
            first.close()
            with pytest.raises(es.ConnectionLost, match="another store answers") as caught:
                store.version("a")
            check(caught.value, text)


def test_a_store_that_is_away_at_one_address_is_found_there_again(servers: list[ServerThread]) -> None:
    """That another store answered meanwhile at another address is not final, as it is for a client with one address."""
    real, other = servers
    with blocking.connect(f"{real.address},{other.address}", reconnect_timeout=0) as store:
        real.stop()
        with pytest.raises(es.ConnectionLost, match="another store answers"):
            store.version("a")
        real.start()
        assert store.version("a") == 0


@loops
def test_a_batch_whose_server_goes_away_has_errors_in_the_places_of_what_was_not_answered(
    run: Runner, servers: list[ServerThread]
) -> None:
    """With all clients; only one that knows before it sends that the server is away raises it."""
    rows = [es.Commit(f"a-{number}", [EVENT], es.ANY) for number in range(3)]

    async def use(text: str, close: Callable[[], None]) -> None:
        async with es.connect(text, reconnect_timeout=0) as store:
            await store.version("a")
            close()
            assert {type(each) for each in await store.append_many(rows)} == {es.ConnectionLost}

    with Forwarder(servers[0].address) as server:
        run(use, server.address, server.close)
    with Forwarder(servers[0].address) as server, blocking.connect(server.address, reconnect_timeout=0) as store:
        store.version("a")
        server.close()
        assert {type(each) for each in store.append_many(rows)} == {es.ConnectionLost}
        with pytest.raises(es.ConnectionLost):
            store.append("a", [EVENT], 0)
