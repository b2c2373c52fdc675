"""The connections that the HTTP listener has open. If all places are taken, one gives way to a newcomer, whatever it
waits for.
"""

from __future__ import annotations

from collections import Counter
from weakref import WeakValueDictionary

import trio

from eventstore.console.subject import CONNECTIONS_MAX


class OpenConnection:
    """A client, of a host.

    Attributes:
        line: where connections of this host wait for each other.
        answering: how many of its requests are being answered.
    """

    def __init__(self, stream: trio.SocketStream, host: str, line: trio.StrictFIFOLock) -> None:
        self.stream, self.host, self.line = stream, host, line
        self.scope = trio.CancelScope()
        self.answering = 0

    def end(self) -> None:
        """Ends the connection by closing its socket: a library that sends does not notice a cancellation, and does notice
        that.
        """
        self.scope.cancel()
        self.stream.socket.close()


class OpenConnections:
    """All connections, in the order in which they were heard of last."""

    def __init__(self) -> None:
        self._all: dict[OpenConnection, None] = {}
        self._lines: WeakValueDictionary[str, trio.StrictFIFOLock] = WeakValueDictionary()

    def admit(self, stream: trio.SocketStream, host: str) -> OpenConnection | None:
        """Returns the connection of a newcomer; None: all are taken, and none gives way."""
        if len(self._all) >= CONNECTIONS_MAX and not self._make_room(host):
            return None
        line = self._lines.setdefault(host, trio.StrictFIFOLock())
        connection = OpenConnection(stream, host, line)
        self._all[connection] = None
        return connection

    def heard(self, connection: OpenConnection) -> None:
        """Moves the connection to the end of the order in which connections give way."""
        if connection in self._all:
            self._all[connection] = self._all.pop(connection)

    def remove(self, connection: OpenConnection) -> None:
        self._all.pop(connection, None)

    def end_all(self) -> None:
        for connection in list(self._all):
            connection.end()

    def _make_room(self, host: str) -> bool:
        """Ends an idle connection of the host that has the most. If there is none, ends the first in order, but only if the
        newcomer's host then has no more than this host.
        """
        counts = Counter(each.host for each in self._all)
        most = max(counts.values())
        theirs = [each for each in self._all if counts[each.host] == most]
        gone = next((each for each in theirs if not each.answering), None)
        if gone is None and counts[host] < most - 1:
            gone = theirs[0]
        if gone is None:
            return False
        self.remove(gone)
        gone.end()
        return True
