"""What is asked of another replica beside the log: a peer that does not answer is an error of its own."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
import trio

from eventstore.chunks.header import EVENTS
from eventstore.server.access.security import Security
from eventstore.server.bootstrap import bind
from eventstore.settings.server import ServerSettings
from eventstore_cluster.replication.links import Links
from eventstore_cluster.replication.peer import Peers
from eventstore_cluster.replication.peer_frames import FileWanted, PeerHello

WANTED = FileWanted(0, EVENTS, 1, 0, 128)


def hello(node: str) -> PeerHello:
    return PeerHello(uuid.UUID(int=1).bytes, 0, node, "run")


async def test_a_peer_whose_connection_ends_before_its_answer_is_a_connection_error(tmp_path: Path) -> None:
    security = Security(ServerSettings(data=tmp_path))
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener[0].socket.getsockname()[1]

    async def greets_and_leaves() -> None:
        stream = await listener[0].accept()
        (await Peers(hello("n2"), security).accept(stream.socket)).close()

    with bind("127.0.0.1:0") as own:
        links = Links(own, hello("n1"), security, lambda _: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(greets_and_leaves)
            with pytest.raises(ConnectionError, match="no answer of n2"):
                await links.ask(f"127.0.0.1:{port}", [WANTED])
        await listener[0].aclose()
        with pytest.raises(OSError, match="connect"):
            await links.ask(f"127.0.0.1:{port}", [WANTED])
