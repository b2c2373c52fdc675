"""Connections between simulated processes: each keeps its order, may be slow, and may break without a word to one side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eventstore_cluster.replica.frames import Fetch, FetchAhead, Frame
from eventstore_cluster.replica.registry_state import Leader

if TYPE_CHECKING:
    from tests.cluster.simulation.process import Process
    from tests.cluster.simulation.world import World


@dataclass
class Sent:
    """A frame. `at`: when it was sent; infinite if it comes twice, for the first one may be answered before the second."""

    at: float


@dataclass
class Connection:
    number: int
    follower: Process
    leader: Process
    free_at: dict[str, float] = field(default_factory=dict)
    last: tuple[Sent, Callable[[], None]] | None = None

    def other(self, process: Process) -> Process:
        return self.leader if process is self.follower else self.follower


class Network:
    """`cut`: pairs of names (from, to) between which nothing passes now; frames wait until it is healed."""

    def __init__(self, world: World, cut: dict[tuple[str, str], float]) -> None:
        self._world = world
        self._connections: dict[int, Connection] = {}
        self.cut = cut

    def connect(self, process: Process, leader: Leader) -> None:
        self.close(process)
        world = self._world
        target = world.machines[leader.address].process

        def connected() -> None:
            if target is None or not target.alive or world.machines[leader.address].process is not target:
                return
            number = world.number()
            self._connections[number] = Connection(number, process, target)
            process.uplink = number
            process.do(process.replica.connected(number, target.run, process.clock(), asks_ahead=process.asks_ahead))

        if target is not None:
            self._pass(process.machine.name, leader.address, lambda: process.later(0, connected))

    def close(self, process: Process) -> None:
        """Closes the connection to the leader. What was sent on it may still arrive."""
        connection = self._connections.get(process.uplink) if process.uplink is not None else None
        process.uplink = None
        if connection is not None:
            self._tell(connection, connection.leader)

    def died(self, process: Process) -> None:
        for connection in list(self._connections.values()):
            if process in (connection.follower, connection.leader):
                del self._connections[connection.number]
                self._tell(connection, connection.other(process))
                if process is connection.follower and connection.last is not None and not self._world.quiet:
                    sent, received = connection.last
                    sent.at = math.inf
                    connection.leader.later(self._world.random.uniform(0.1, 3.0), received)  # it was still on its way

    def _tell(self, connection: Connection, process: Process) -> None:
        def disconnected() -> None:
            process.do(process.replica.disconnected(connection.number, process.clock()))

        if self._world.random.random() < 0.7:
            self._deliver(connection, process, disconnected)

    def send(self, process: Process, number: int, frame: Frame) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return
        other, sent = connection.other(process), Sent(self._world.now)

        def received() -> None:
            self._world.note(other.machine.name, frame)
            if isinstance(frame, Fetch | FetchAhead) and self._counts(other, number, frame):
                other.fetched[process.machine.name] = sent.at
            other.do(other.replica.received(number, frame, other.clock()))

        connection.last = (sent, received) if other is connection.leader else connection.last
        self._deliver(connection, other, received)
        if not self._world.quiet and self._world.random.random() < 0.03:
            sent.at = math.inf
            other.later(self._world.random.uniform(0.1, 4.0), received)  # once more, and out of order

    def _counts(self, leader: Process, number: int, frame: Fetch | FetchAhead) -> bool:
        """Whether the frame is not one of an earlier session that comes late, after newer ones."""
        leading = leader.replica.leading
        return leading is not None and leading.sessions.find(frame.session, number) is not None

    def _deliver(self, connection: Connection, to: Process, step: Callable[[], None]) -> None:
        world, name = self._world, to.machine.name
        at = max(world.now + world.network_delay(), connection.free_at.get(name, 0.0) + 1e-6)
        at = max(at, self.cut.get((connection.other(to).machine.name, name), 0.0))
        connection.free_at[name] = at
        to.later(at - world.now, step)

    def _pass(self, origin: str, to: str, step: Callable[[], None]) -> None:
        until = max(self.cut.get((origin, to), 0.0), self.cut.get((to, origin), 0.0))
        self._world.after(max(self._world.network_delay(), until - self._world.now), step)
