"""`wait_for(…, follows=done)`: a table has all that reactions made of a command, however many steps that took."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
import trio

import eventstore as es
import eventstore.domain as d
from bank import Balances, Deposit, Open, Transfer
from eventstore.client.aio.store import NetworkStore
from eventstore.domain.reactions import effects
from eventstore.domain.reactions.effects import Effects
from eventstore.model import METADATA_IS_JSON
from tests.cluster.led_shards import LedShards
from tests.domain.projections.balances import cents
from tests.server_thread import ServerThread

ACCOUNTS = [f"acc-{number}" for number in range(8)]


@pytest.fixture(params=["one", "shards"], scope="module")
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    several = request.param == "shards"
    with LedShards(folder, 3, domain="bank:app") if several else ServerThread(folder / "data", domain="bank:app") as server:
        if isinstance(server, LedShards):
            server.publish()
        yield server.address


@asynccontextmanager
async def projected(address: str, path: Path) -> AsyncIterator[NetworkStore]:
    async with es.connect(address) as store, es.connect(address) as other, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: d.project(other, Balances(), d.SQLiteTarget(path)))
        yield store
        nursery.cancel_scope.cancel()


async def test_a_table_has_what_the_reactions_made_of_a_command(address: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    async with projected(address, path) as store:
        own = [f"a-{each}" for each in ACCOUNTS]
        for each in own:
            await store.send(Open(each, "ada"))
            await store.send(Deposit(each, 100))
        for one, other in pairwise(own):
            done = await store.send(Transfer(one, other, 10))
            await store.wait_for("balances", follows=done)
            assert (cents(path)[one], cents(path)[other]) == (90, 110)
            back = await store.send(Transfer(other, one, 10))
            await store.wait_for("balances", follows=back)
            assert (cents(path)[one], cents(path)[other]) == (100, 100)
        for each in own:
            done = await store.send(Transfer(each, f"nobody-{each}", 10))
            await store.wait_for("balances", follows=done)
            assert cents(path)[each] == 100, "it was refused there, and taken back here: two steps, of two reactions"
        await store.wait_for("balances", follows=es.Unchanged(own[0]))


async def test_a_blocking_client_waits_for_it_too(address: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.db"

    def transfer() -> None:
        with es.blocking.connect(address) as store:
            for each in ("b-1", "b-2"):
                store.send(Open(each, "bea"))
                store.send(Deposit(each, 100))
            done = store.send(Transfer("b-1", "b-2", 10))
            store.wait_for("balances", follows=done)
            assert (cents(path)["b-1"], cents(path)["b-2"]) == (90, 110)

    async with projected(address, path):
        await anyio.to_thread.run_sync(transfer)


async def test_it_is_true_of_what_was_handled_before_the_server_began(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with ServerThread(tmp_path / "data", domain="bank:app") as server:
        async with es.connect(server.address) as store:
            await store.send(Open("a", "ada"))
            await store.send(Deposit("a", 100))
            done = await store.send(Transfer("a", "nobody", 10))
            async for event in store.subscribe(types=["TakenBack"]):
                if isinstance(event, es.Event):
                    break
        await anyio.to_thread.run_sync(server.restart)
        async with projected(server.address, path) as store:
            await store.wait_for("balances", follows=done)
            assert cents(path) == {"a": 100}


async def test_where_no_reactions_run_it_says_so(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server:
        async with es.connect(server.address) as store:
            done = await store.append("a", [es.NewEvent("Happened", {})], 0)
            with pytest.raises(es.InvalidArgument, match="no reactions run in this process"):
                await store.wait_for("balances", follows=done)


def test_of_what_is_forgotten_is_known_how_recent_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "CHAINS_MAX", 2)

    def cause(sequence: int, chain: str) -> es.Event:
        metadata = b'{"correlation_id":"%s"}' % chain.encode()
        event: es.Event = tuple.__new__(es.Event, ("a", sequence, "T", b"", metadata, "c", 0, sequence, METADATA_IS_JSON))
        return event

    found = Effects()
    for sequence, chain in enumerate(["x", "y", "x", "z"], 1):
        found.note(cause(sequence, chain), es.Committed("b", sequence, 100 + sequence))
    assert found.forgotten == 2, "that of y: x was noted later"
    assert found.of("y") == []
    assert [each.sequence for each in found.of("x")] == [103]
