"""Accepts connections, refuses those over the limit, and pauses when file descriptors run out."""

from __future__ import annotations

import errno
import logging
import selectors
import socket
from collections.abc import Collection, Iterator
from typing import Final

from eventstore.errors import Overloaded
from eventstore.protocol import encode_error
from eventstore.server.net.connection import Connection

_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_AT_ONCE: Final = 64
_log = logging.getLogger(__name__)


class Acceptor:
    """A listener registered in a gate's selector, where its key has no data. `connections`: the open ones.

    `accepted` and `turned_away` count connections since the start.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        connections: Collection[Connection],
        connections_max: int,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._selector = selector
        self._connections = connections
        self._connections_max = connections_max
        self._watched = self._closed = False
        self.accepted = self.turned_away = 0

    def open(self) -> None:
        """Begins to accept, or resumes after a pause; does nothing after `stop`."""
        if not self._watched and not self._closed:
            self._watched = True
            self._selector.register(self._listener, selectors.EVENT_READ)

    def accept(self, now: float) -> Iterator[Connection]:
        """Yields new connections. Add each to `connections` before the next is requested."""
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                accepted, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    continue  # the connection failed while it waited in the queue
                _log.warning("accepting pauses: %s", error.strerror)
                self._pause()
                return
            try:
                connection = Connection(accepted, now)
            except OSError:  # already closed by the client
                accepted.close()
                continue
            if len(self._connections) >= self._connections_max:
                self._turn_away(connection, now)
                continue
            self.accepted += 1
            yield connection

    def _turn_away(self, connection: Connection, now: float) -> None:
        self.turned_away += 1
        limit = self._connections_max
        connection.send(encode_error(0, Overloaded(f"{limit} connections are open, the limit; try later", limit=limit)))
        connection.flush(now)
        connection.hang_up()

    def _pause(self) -> None:
        if self._watched:
            self._watched = False
            self._selector.unregister(self._listener)

    def stop(self) -> None:
        """Stops accepting for good."""
        self._pause()
        self.close()

    def close(self) -> None:
        """Closes the listener; as `stop`, if the selector is closed already."""
        self._closed = True
        self._listener.close()  # otherwise new clients would wait in the kernel's queue
