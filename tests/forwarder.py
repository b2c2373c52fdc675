"""A second address of a server: forwards connections to it, until it is frozen or closed."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.waiting import DEADLINE_SECONDS


class Forwarder:
    """Forwards to the server at `address`. Frozen, it is a machine that hangs: it accepts and keeps connections, and passes
    nothing on. So it is, for the connections that there are, once they are forgotten. `held`: that bytes arrived since then.
    `changed`: what is passed on in place of what arrived.
    """

    def __init__(self, address: str, changed: Callable[[bytes], bytes] = lambda data: data) -> None:
        self._changed = changed
        self._port = int(address.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="forwarder", daemon=True)
        self._frozen = self._stopped = False
        self._passed: list[socket.socket] = []
        self._forgotten: frozenset[socket.socket] = frozenset()
        self._woken, self._wake = socket.socketpair()
        self.held = threading.Event()
        self.accepted = 0

    @property
    def address(self) -> str:
        return f"tcp://{self.leader}"

    @property
    def leader(self) -> str:
        """The address as a map of a cluster has it."""
        return "{}:{}".format(*self._listener.getsockname())

    def freeze(self) -> None:
        self._frozen = True

    def forget(self) -> None:
        self._forgotten = frozenset(self._passed)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._stopped:
                for key, _ in selector.select():
                    source: socket.socket = key.fileobj  # type: ignore[assignment] # only sockets are registered
                    if source is self._listener:
                        self.accepted += 1
                        near, _ = self._listener.accept()
                        try:
                            far = socket.create_connection(("127.0.0.1", self._port))
                        except OSError:  # the server is away
                            near.close()
                            continue
                        for each in (near, far):  # or what comes in small pieces waits 40 ms for each acknowledgement
                            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        selector.register(near, selectors.EVENT_READ, far)
                        selector.register(far, selectors.EVENT_READ, near)
                        self._passed += [near, far]
                    elif source is not self._woken:
                        self._pass_on(selector, source, key.data)
        for each in (self._listener, self._woken, *self._passed):
            each.close()

    def _pass_on(self, selector: selectors.BaseSelector, source: socket.socket, target: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(1 << 16)
        if self._frozen or source in self._forgotten:
            self.held.set()
            if not data:
                selector.unregister(source)
            return
        with contextlib.suppress(OSError):
            if data:
                target.sendall(self._changed(data))
                return
        for each in (source, target):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(each)
            each.close()

    def close(self) -> None:
        """Ends it, with its connections: as if nobody listened there."""
        if not self._stopped:
            self._stopped = True
            with self._wake:  # closed here: the thread may see the flag, and end, before it is woken
                with contextlib.suppress(OSError):
                    self._wake.send(b".")
                self._thread.join(DEADLINE_SECONDS)
            assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
