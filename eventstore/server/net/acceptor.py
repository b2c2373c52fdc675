"""Accepts connections, and pauses when file descriptors run out.

At the limit the connection gives way that has been idle the longest, of the address that has the most of them. Its client
connects again when it needs to. Where none is idle the newcomer is refused.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from time import perf_counter
from typing import Final

from eventstore.errors import Overloaded
from eventstore.protocol import encode_error
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.scheduler import SLICE_S
from eventstore.server.net.tls_connection import MakeConnection

_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_AT_ONCE: Final = 64
_IDLE_S_MIN: Final = 1.0  # one that just connected is about to ask for something
_SPARE_S: Final = 0.25
_log = logging.getLogger(__name__)


class Acceptor:
    """A listener registered in a gate's epoll. `connections`: the open ones. `make`: what makes a connection of a socket.
    `drop` closes one and removes it from `connections`.

    Attributes:
        fd: of the listener.
        accepted: connections since the start.
        turned_away: of these, at the limit.
        gave_way: idle ones that were closed for new ones.
    """

    def __init__(
        self,
        listener: socket.socket,
        poll: select.epoll,
        connections: Collection[ServerConnection],
        connections_max: int,
        drop: Callable[[ServerConnection], None],
        make: MakeConnection = ServerConnection,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        listener.setblocking(False)
        self._listener, self.fd = listener, listener.fileno()
        self._poll = poll
        self._connections = connections
        self._connections_max = connections_max
        self._drop = drop
        self._make, self._clock = make, clock
        self._watched = self._closed = False
        self._spare: deque[ServerConnection] = deque()
        self._spare_until = 0.0
        self.accepted = self.turned_away = self.gave_way = 0

    def open(self) -> None:
        """Begins to accept, or resumes after a pause; does nothing after `stop`."""
        if not self._watched and not self._closed:
            self._watched = True
            self._poll.register(self._listener, select.EPOLLIN)

    def accept(self, now: float) -> Iterator[ServerConnection]:
        """Yields new connections. Add each to `connections` before the next is requested."""
        end = self._clock() + SLICE_S
        for number in range(_ACCEPT_AT_ONCE):
            if number and self._clock() >= end:  # making room looks at all connections, and TLS makes a state for each
                return
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    continue  # the connection failed while it waited in the queue
                _log.warning("accepting pauses: %s", error.strerror)
                self._pause()
                return
            try:
                connection = self._make(accepted, address, now)
            except OSError:  # already closed by the client
                accepted.close()
                continue
            if len(self._connections) >= self._connections_max and not self._make_room(now):
                self._turn_away(connection, now)
                continue
            self.accepted += 1
            yield connection

    def _make_room(self, now: float) -> bool:
        """Closes the connection that can best do without; returns False if none can."""
        if now >= self._spare_until:
            self._spare.clear()
        while True:
            if not self._spare and not self._look_for_spare(now):
                return False
            least = self._spare.popleft()
            if not least.closed and _can_go(least, now):
                break
        self.gave_way += 1
        _log.info("closing a connection (%s): it is idle, and all %d are taken", least.title, self._connections_max)
        self._drop(least)
        return True

    def _look_for_spare(self, now: float) -> bool:
        """Looks at all connections, which takes longer than to accept ten, for those that give way next; returns whether there
        are any. They are of the address that has the most, no more than it has more than the others.
        """
        idle = [each for each in self._connections if _can_go(each, now)]
        if not idle:
            return False
        from_address = Counter(each.host for each in self._connections)
        (most, count), *others = Counter({host: from_address[host] for host in {each.host for each in idle}}).most_common(2)
        ahead = count - others[0][1] if others else count
        spare = sorted((each for each in idle if each.host == most), key=lambda each: each.heard)
        self._spare.extend(spare[: min(max(ahead, 1), _ACCEPT_AT_ONCE)])
        self._spare_until = now + _SPARE_S
        return True

    def _turn_away(self, connection: ServerConnection, now: float) -> None:
        self.turned_away += 1
        limit = self._connections_max
        connection.send(encode_error(0, Overloaded(f"{limit} connections are open, the limit; try later", limit=limit)))
        connection.flush()
        connection.hang_up()

    def _pause(self) -> None:
        if self._watched:
            self._watched = False
            self._poll.unregister(self._listener)

    def stop(self) -> None:
        """Stops accepting for good."""
        self._pause()
        self.close()

    def close(self) -> None:
        """Closes the listener; as `stop`, if the selector is closed already."""
        self._closed = True
        with contextlib.suppress(OSError):  # it did not listen yet
            self._listener.shutdown(socket.SHUT_RDWR)  # a child that has not begun its program yet has a copy: the port is free
        self._listener.close()  # otherwise new clients would wait in the kernel's queue


def _can_go(connection: ServerConnection, now: float) -> bool:
    return connection.is_idle and now - connection.heard > _IDLE_S_MIN
