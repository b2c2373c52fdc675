"""The connections of a replica: connections that followers open here, and the connection to the leader that it follows."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

import trio

from eventstore.errors import EventStoreError, ProtocolError
from eventstore.server.access.security import Security
from eventstore.server.bootstrap import parse_address
from eventstore.server.logs import get_logger
from eventstore_cluster.registry.etcd.lease import now
from eventstore_cluster.replica.actions import Action
from eventstore_cluster.replica.frames import Frame
from eventstore_cluster.replica.registry_state import Leader
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replication.peer import Peer, Peers
from eventstore_cluster.replication.peer_frames import ASKS_AHEAD, FileBytes, FileWanted, PeerHello

_AGAIN_S: Final = 0.2
_QUIET_S: Final = 60.0
_BACKLOG: Final = 64
_ANSWER_S: Final = 10.0
_LOOK_S: Final = 30.0
"""Between looks at who answers at the own address."""
_LOOK_AGAIN_S: Final = 0.5
REACHED_S: Final = 60.0
"""For so long after something came over its connection another replica proves that this one is reached."""
_LOOKS: Final = 3
"""So many in a row that fail say that an address is wrong: one may be late."""
_log = get_logger("eventstore.cluster")


class Links:
    """The connections.

    `listener`: bound. `hello`: what this replica says of itself. `security`: how both sides prove that.

    Attributes:
        unreached: why other replicas do not reach this one by the address that they are told, as far as this replica can see;
            None if they may, for example because another node's replica has sent something here of late.
    """

    def __init__(
        self,
        listener: socket.socket,
        hello: PeerHello,
        security: Security,
        read_file: Callable[[FileWanted], bytes | None] = lambda _: None,
    ) -> None:
        """`read_file` answers, on a thread, what other replicas want of files; it returns None if this replica only asks."""
        self._listener, self._read_file = listener, read_file
        self._reading = trio.CapacityLimiter(1)
        self._peers = Peers(hello, security)
        self._open: dict[int, Peer] = {}
        self._wanted: Leader | None = None
        self._scope: trio.CancelScope | None = None
        self._replica: Replica
        self._do: Callable[[list[Action]], None]
        self._nursery: trio.Nursery | None = None
        self._node, self._run = hello.node, hello.run
        self._heard_at = -math.inf
        self._refused, self._refused_due = 0, -math.inf
        self.unreached: str | None = None

    async def run(self, replica: Replica, do: Callable[[list[Action]], None]) -> None:
        """Serves until cancelled; passes to `do` what the replica wants done about it."""
        self._replica, self._do = replica, do
        self._listener.listen(_BACKLOG)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._follow_wanted()
            nursery.start_soon(self._look, replica.me.address)
            listener = trio.socket.from_stdlib_socket(self._listener)
            while True:
                try:
                    connected, address = await listener.accept()
                except OSError as error:
                    _log.warning("a replica could not be accepted", error=error.strerror)
                    await trio.sleep(_AGAIN_S)
                    continue
                nursery.start_soon(self._serve, connected, address[0])

    async def _look(self, address: str) -> None:
        """Sees, again and again, who answers at the own address, as the others would; until cancelled."""
        failed = 0
        while True:
            found = await self._what_is_wrong(address)
            failed = 0 if found is None else failed + 1
            if 0 < failed < _LOOKS:
                await trio.sleep(_LOOK_AGAIN_S)
                continue
            why = found and f"others are to reach this replica at {address}, and {found}; see --advertise"
            self._note(why)
            await trio.sleep(_LOOK_S)

    def _note(self, why: str | None) -> None:
        if why is None and self.unreached is not None:
            _log.info("this replica is reached at its address", address=self._replica.me.address)
        elif why is not None and self.unreached is None:
            _log.warning("this replica may not be reached", error=why)
        self.unreached, self._replica.unreached = why, why is not None

    async def _what_is_wrong(self, address: str) -> str | None:
        """Returns why others may not reach this replica at the address; None if they do. Its own attempt proves nothing
        against that: a gateway may send nothing back inside.
        """
        found = None if self._is_reached() else await self._who_answers(address)
        return None if self._is_reached() else found  # an attempt may take seconds

    def _is_reached(self) -> bool:
        return trio.current_time() < self._heard_at + REACHED_S

    async def _who_answers(self, address: str) -> str | None:
        """Returns what is wrong at the own address; None if this process answers there."""
        host, port = parse_address(address, "address")
        try:
            with closing(await self._peers.connect(host.strip("[]"), port)) as peer:
                found = peer.hello
        except ProtocolError as error:
            return f"something else answers there ({error.message})"
        except (OSError, EventStoreError) as error:
            return f"this node does not reach itself there ({error})"
        return None if found.run == self._run else f"node {found.node} answers there"

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

    @property
    def leader(self) -> str | None:
        """Where the leader that is followed is reached."""
        return None if self._wanted is None else self._wanted.address

    async def ask(self, address: str, wanted: Sequence[FileWanted]) -> list[bytes | None]:
        """Returns what the replica there answers, on a connection of its own.

        Raises:
            OSError, ProtocolError: it does not.
        """
        host, port = parse_address(address, "address")
        with closing(await self._peers.connect(host.strip("[]"), port)) as peer:
            failure: OSError | ProtocolError | None = None
            found: list[bytes | None] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.flush_later)
                try:
                    found = [await _asked(peer, each) for each in wanted]
                except (OSError, ProtocolError) as error:  # raised outside the nursery: in it, it would become a group
                    failure = error
                nursery.cancel_scope.cancel()
            if failure is not None:
                raise failure
            return found

    async def _serve(self, connected: trio.socket.SocketType, host: str) -> None:
        try:
            peer = await self._peers.accept(connected)
        except (OSError, EventStoreError) as error:
            self._note_refused(host, error)
            return
        if peer.hello.node != self._node:  # otherwise it is this process, which looks
            self._heard_at = trio.current_time()
            self._note(None)
        await self._talk(peer, follows=False)

    def _note_refused(self, host: str, error: Exception) -> None:
        """Logs it at most once a minute: a replica that is refused comes again five times a second."""
        self._refused += 1
        if trio.current_time() >= self._refused_due:
            self._refused_due = trio.current_time() + _QUIET_S
            _log.warning("a connection is refused", host=host, error=str(error), refused_so_far=self._refused)

    async def _talk(self, peer: Peer, *, follows: bool) -> None:
        """Passes on what the other side sends, until the connection ends."""
        replica, do, reaches = self._replica, self._do, not follows and peer.hello.node != self._node
        self._open[peer.number] = peer
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.flush_later)
                if follows:
                    asks_ahead = peer.hello.version >= ASKS_AHEAD
                    do(replica.connected(peer.number, peer.hello.run, now(), asks_ahead=asks_ahead))
                try:
                    async for frame in peer.frames():
                        if reaches:  # not that it is open: the other machine may have lost its power
                            self._heard_at = trio.current_time()
                        if isinstance(frame, FileWanted):
                            nursery.start_soon(self._answer, peer, frame)
                        elif not isinstance(frame, (PeerHello, FileBytes)):
                            do(replica.received(peer.number, frame, now()))
                except EventStoreError as error:
                    _log.warning("a connection is closed", node=peer.hello.node, error=error.message)
                nursery.cancel_scope.cancel()
        finally:
            del self._open[peer.number]
            peer.close()
            do(replica.disconnected(peer.number, now()))

    async def _answer(self, peer: Peer, wanted: FileWanted) -> None:
        """Reads for all connections one after the other: what they want is less urgent than the log."""
        try:
            data = await trio.to_thread.run_sync(self._read_file, wanted, limiter=self._reading)
        except (EventStoreError, OSError) as error:
            _log.warning("a file cannot be read for another replica", node=peer.hello.node, error=str(error))
            data = None
        peer.send(FileBytes(wanted.number, data))


async def _asked(peer: Peer, wanted: FileWanted) -> bytes | None:
    """Raises OSError, ProtocolError."""
    peer.send(wanted)
    with trio.move_on_after(_ANSWER_S):
        async for frame in peer.frames():
            if isinstance(frame, FileBytes) and frame.number == wanted.number:
                return frame.data
    raise ConnectionError(f"no answer of {peer.hello.node}")
