"""A TCP proxy that loses answers: it cuts a connection after the server has answered, before it forwards the answer."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

from tests.waiting import DEADLINE_SECONDS


class LosingProxy:
    """Forwards everything except the first `losses` answers after HELLO: each is lost together with its connection."""

    def __init__(self, port: int, losses: int) -> None:
        self._port = port
        self.losses_left = losses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._stopped = threading.Event()

    @property
    def address(self) -> str:
        return "tcp://{}:{}".format(*self._listener.getsockname())

    def _serve(self) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(OSError):
                near, _ = self._listener.accept()
                with near, socket.create_connection(("127.0.0.1", self._port)) as far:
                    self._pass_on(near, far)

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        greeted = False
        with selectors.DefaultSelector() as selector:
            selector.register(near, selectors.EVENT_READ, far)
            selector.register(far, selectors.EVENT_READ, near)
            while not self._stopped.is_set():
                for key, _ in selector.select(0.05):
                    source: socket.socket = key.fileobj  # type: ignore[assignment] # only sockets are registered
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if source is far and greeted and self.losses_left:
                        self.losses_left -= 1
                        return
                    greeted = greeted or source is far
                    key.data.sendall(data)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()
        self._listener.close()
