"""The way in: accepts connections, turns away those that are too many, and pauses when descriptors run out."""

from __future__ import annotations

import errno
import logging
import selectors
import socket
from collections.abc import Collection, Iterator
from typing import Final

from eventstore.errors import Overloaded
from eventstore.protocol import encode_error
from eventstore.server.connection import Connection

_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_AT_ONCE: Final = 64
_log = logging.getLogger(__name__)


class Entrance:
    """A listener in a gate's selector, where its key has no data. `connections` are those that are inside."""

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
        self._watched = self._leaving = False
        self.accepted = self.turned_away = 0

    def open(self) -> None:
        """Lets them in, for the first time or after a pause; not after `leave`."""
        if not self._watched and not self._leaving:
            self._watched = True
            self._selector.register(self._listener, selectors.EVENT_READ)

    def accept(self, now: float) -> Iterator[Connection]:
        """Those who have come; each must be among `connections` before the next is asked for."""
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                accepted, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    continue  # what became of a connection while it waited
                _log.warning("no more connections for a moment: %s", error.strerror)
                self._pause()
                return
            try:
                connection = Connection(accepted, now)
            except OSError:  # gone already
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

    def leave(self) -> None:
        """Lets nobody in any more."""
        self._pause()
        self.close()

    def close(self) -> None:
        """As `leave`, where the selector is closed already."""
        self._leaving = True
        self._listener.close()  # or those who come now would wait for an answer in the kernel's queue
