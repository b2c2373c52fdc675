"""Answers MAP: at once, or as soon as this server knows a newer map of its cluster."""

from __future__ import annotations

from typing import ClassVar

import trio

from eventstore.protocol import encode_ok
from eventstore.protocol.handshake import map_values
from eventstore.protocol.requests import Map
from eventstore.records.cluster_map import ClusterMap
from eventstore.server.feature import Feature
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate


class _Waiting:
    """A MAP that waits. Its connection cancels it when it closes, and UNSUBSCRIBE does."""

    __slots__ = ("_requests", "after", "connection", "request_id")
    use = None
    light: ClassVar[bool] = False

    def __init__(self, requests: MapRequests, connection: ServerConnection, request_id: int, after: int) -> None:
        self._requests = requests
        self.connection, self.request_id, self.after = connection, request_id, after

    def cancel(self) -> None:
        self._requests.waiting.discard(self)


class MapRequests:
    """The map that this server knows. One that waits costs an object, and counts among the subscriptions of its connection.
    `news`: who waits there in this process looks at a newer map.
    """

    def __init__(self, gate: Gate, current: ClusterMap) -> None:
        self._gate = gate
        self.waiting: set[_Waiting] = set()
        self.current = current
        self.news = trio.lowlevel.ParkingLot()
        self._values = map_values(current)  # one for all who wait for it
        self.feature = Feature(routes={Map: self.ask})

    def ask(self, connection: ServerConnection, request_id: int, request: Map) -> None:
        """Answers a MAP, or keeps it.

        Raises:
            InvalidArgument: too many wait on this connection, or one with this request id.
        """
        if self.current.version > request.after:
            self._gate.send(connection, self._answer(request_id))
            return
        waiting = _Waiting(self, connection, request_id, request.after)
        connection.bind(request_id, waiting)
        self.waiting.add(waiting)

    def publish(self, newer: ClusterMap) -> None:
        """Takes a newer map, and answers the requests that wait for one; an older one is ignored."""
        if newer.version <= self.current.version:
            return
        self.current, self._values = newer, map_values(newer)
        self.news.unpark_all()
        for waiting in [each for each in self.waiting if each.after < newer.version]:
            self.waiting.discard(waiting)
            waiting.connection.unbind(waiting.request_id, waiting)
            self._gate.send(waiting.connection, self._answer(waiting.request_id))
        self._gate.flush()

    def _answer(self, request_id: int) -> bytes:
        return encode_ok(request_id, *self._values)
