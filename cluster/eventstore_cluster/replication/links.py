"""The connections of a replica: those that followers open here, and the one to the leader that it follows."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import structlog
import trio

from eventstore.errors import EventStoreError
from eventstore.server.bootstrap import parse_address
from eventstore_cluster.registry.etcd.lease import now
from eventstore_cluster.replica.actions import Action
from eventstore_cluster.replica.frames import Frame
from eventstore_cluster.replica.registry_state import Leader
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replication.peer import Peer, Peers
from eventstore_cluster.replication.peer_frames import PeerHello

_AGAIN_S: Final = 0.2
_BACKLOG: Final = 64
_log = structlog.get_logger("eventstore.cluster")


class Links:
    """`listener`: bound; `hello`: what this replica says of itself."""

    def __init__(self, listener: socket.socket, hello: PeerHello) -> None:
        self._listener = listener
        self._peers = Peers(hello)
        self._open: dict[int, Peer] = {}
        self._wanted: Leader | None = None
        self._scope: trio.CancelScope | None = None
        self._replica: Replica
        self._do: Callable[[list[Action]], None]
        self._nursery: trio.Nursery | None = None

    async def run(self, replica: Replica, do: Callable[[list[Action]], None]) -> None:
        """Serves until cancelled; passes to `do` what the replica wants done about it."""
        self._replica, self._do = replica, do
        self._listener.listen(_BACKLOG)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._follow_wanted()
            listener = trio.socket.from_stdlib_socket(self._listener)
            while True:
                try:
                    connected, _ = await listener.accept()
                except OSError as error:
                    _log.warning("a replica could not be accepted", error=error.strerror)
                    await trio.sleep(_AGAIN_S)
                    continue
                nursery.start_soon(self._serve, connected)

    def send(self, number: int, frame: Frame) -> None:
        """Sends a frame on a connection, if it is open."""
        peer = self._open.get(number)
        if peer is not None:
            peer.send(frame)

    def follow(self, leader: Leader | None) -> None:
        """Connects to this leader instead of another one; again whenever the connection ends."""
        self._wanted = leader
        if self._scope is not None:
            self._scope.cancel()
        self._follow_wanted()

    def _follow_wanted(self) -> None:
        if self._wanted is not None and self._nursery is not None:
            self._scope = trio.CancelScope()
            self._nursery.start_soon(self._keep_following, self._wanted, self._scope)

    async def _keep_following(self, leader: Leader, scope: trio.CancelScope) -> None:
        host, port = parse_address(leader.address, "address")
        with scope:
            while True:
                try:
                    peer = await self._peers.connect(host.strip("[]"), port)
                except (OSError, EventStoreError) as error:
                    _log.debug(
                        "the leader cannot be reached", node=leader.member.node, address=leader.address, error=str(error)
                    )
                else:
                    await self._talk(peer, follows=True)
                await trio.sleep(_AGAIN_S)

    async def _serve(self, connected: trio.socket.SocketType) -> None:
        try:
            peer = await self._peers.greet(connected)
        except (OSError, EventStoreError) as error:
            _log.warning("a connection is refused", error=str(error))
            return
        await self._talk(peer, follows=False)

    async def _talk(self, peer: Peer, *, follows: bool) -> None:
        """Passes on what the other side sends, until the connection ends."""
        replica, do = self._replica, self._do
        self._open[peer.number] = peer
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.flush_later)
                if follows:
                    do(replica.connected(peer.number, peer.hello.run, now()))
                try:
                    async for frame in peer.frames():
                        if not isinstance(frame, PeerHello):
                            do(replica.received(peer.number, frame, now()))
                except EventStoreError as error:
                    _log.warning("a connection is closed", node=peer.hello.node, error=error.message)
                nursery.cancel_scope.cancel()
        finally:
            del self._open[peer.number]
            peer.close()
            do(replica.disconnected(peer.number, now()))
