"""A replica sees who answers at the address by which the others are to reach it."""

from __future__ import annotations

import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from eventstore.server.access.security import Security
from eventstore.settings.server import ServerSettings
from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.registry_state import Leader, Seat
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replication.links import REACHED_S, Links
from eventstore_cluster.replication.peer_frames import PeerHello
from tests.server_thread import ServerThread
from tests.waiting import eventually

CLUSTER = uuid.UUID(int=1).bytes


@asynccontextmanager
async def replica_of(data: Path, node: str, address: str | None = None, shard: int = 0) -> AsyncIterator[tuple[Links, str]]:
    """A replica that says that it is reached at this address, and where it is; by default it says that."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = f"127.0.0.1:{listener.getsockname()[1]}"
        me = Leader(Seat(node, "i"), f"run of {node}", address or own)
        replica = Replica(me, (), (LogTail(),), (0,), limits=Limits(), new_nonce=lambda: "n", now=0.0)
        hello = PeerHello(CLUSTER, shard, node, me.run)
        links = Links(listener, hello, Security(ServerSettings(data=data)), lambda _: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(links.run, replica, lambda _: None)
            yield links, own
            nursery.cancel_scope.cancel()


async def said_by(links: Links) -> str:
    async def said() -> bool:
        return links.unreached is not None

    await eventually(said, "it sees that it is not reached")
    return str(links.unreached)


def nobody() -> str:
    """Returns an address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


async def test_an_address_where_nobody_answers_is_noticed(tmp_path: Path) -> None:
    address = nobody()
    async with replica_of(tmp_path, "n1", address) as (links, _):
        said = await said_by(links)
        assert links._replica.unreached
    assert f"others are to reach this replica at {address}, and this node does not reach itself there" in said
    assert "--advertise" in said


async def test_an_address_where_another_replica_answers_is_noticed(tmp_path: Path) -> None:
    async with replica_of(tmp_path, "n2") as (_, address), replica_of(tmp_path, "n1", address) as (links, _):
        assert "node n2 answers there" in await said_by(links)


async def test_an_address_where_something_else_answers_is_noticed(tmp_path: Path) -> None:
    async with replica_of(tmp_path, "n1", shard=1) as (_, address), replica_of(tmp_path, "n1", address) as (links, _):
        said = await said_by(links)
    assert "this node does not reach itself there (the connection was closed without a hello: what answers is not of" in said


async def test_an_address_where_a_server_for_clients_answers_is_noticed(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server:
        address = server.address.partition("://")[2]
        async with replica_of(tmp_path, "n1", address) as (links, _):
            said = await said_by(links)
    assert "something else answers there" in said


@pytest.mark.parametrize("host", ["n1..example", "n" * 64])
async def test_an_address_that_cannot_be_one_is_noticed(tmp_path: Path, host: str) -> None:
    async with replica_of(tmp_path, "n1", f"{host}:7701") as (links, _):
        assert f"({host} is not the name of a machine)" in await said_by(links)


async def test_a_replica_that_another_one_reaches_is_reached_though_not_by_itself(tmp_path: Path) -> None:
    """As behind a gateway that sends nothing back inside."""
    address = nobody()
    async with replica_of(tmp_path, "n1", address) as (links, own):
        await said_by(links)
        async with replica_of(tmp_path, "n2") as (other, _):
            other.follow(Leader(Seat("n1", "i"), "run of n1", own))

            async def reached() -> bool:
                return links.unreached is None

            await eventually(reached, "it knows that it is reached")
            assert not links._replica.unreached

        async def alone() -> bool:
            return not links._open

        await eventually(alone, "it has noticed that the other one is gone")
        assert await links._what_is_wrong(address) is None  # it was there just now
        links._heard_at -= REACHED_S
        assert "does not reach itself" in str(await links._what_is_wrong(address))


async def test_a_replica_that_reaches_itself_says_nothing(tmp_path: Path) -> None:
    async with replica_of(tmp_path, "n1") as (links, address):
        assert await links._who_answers(address) is None
        assert links.unreached is None


async def test_refused_connections_are_logged_once_a_minute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with replica_of(tmp_path, "n1") as (links, address):
        for _ in range(3):
            stream = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
            async with stream:
                await stream.send_all(b"\x05\0\0\0hello")
                with suppress(trio.BrokenResourceError):  # reset: it has not read all
                    while await stream.receive_some():
                        pass
        said = [each for each in capsys.readouterr().out.splitlines() if "a connection is refused" in each]
        assert links._refused == 3
        assert len(said) == 1
        assert "not a frame of another replica" in said[0]
