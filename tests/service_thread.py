"""A real server or worker in a thread of the tests: usable from trio, asyncio and without an event loop, and a warning in it
fails the test.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import trio

from eventstore.settings.server import ServerSettings
from eventstore.settings.sources import load_settings
from tests.waiting import DEADLINE_SECONDS

Result = TypeVar("Result")


class Service(Protocol):
    """A started server or worker."""

    @property
    def address(self) -> str: ...

    @property
    def http_address(self) -> str | None: ...

    def stop(self) -> None: ...


S = TypeVar("S", bound=Service)
Begin = Callable[[trio.Nursery, ServerSettings], Awaitable[S]]


class ServiceThread(Generic[S]):
    """Runs the service that `begin` starts on a free port of the loopback interface; after a restart on the same port."""

    def __init__(self, begin: Begin[S], settings: dict[str, Any]) -> None:
        self._begin = begin
        self._given: dict[str, Any] = {"listen": "127.0.0.1:0", **settings}
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._service: S | None = None
        self._error: BaseException | None = None
        self._stops = False

    @property
    def address(self) -> str:
        assert self._service is not None
        return self._service.address

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def http(self) -> str:
        assert self._service is not None
        assert self._service.http_address is not None
        return f"http://{self._service.http_address}"

    def start(self) -> None:
        """Waits until it has started; raises its error if it cannot."""
        self._ready.clear()
        self._error, self._stops = None, False
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self._thread.start()
        assert self._ready.wait(DEADLINE_SECONDS), "it does not start"
        if self._error is not None:
            self.join()
        self._given["listen"] = self.address.partition("://")[2]

    def begin_to_stop(self) -> None:
        """Asks it once: it may end at any moment from then on, and nobody would answer."""
        if not self._stops:
            self._stops = True
            self.ask(lambda service: service.stop())

    def stop(self) -> None:
        """Stops in order, as on SIGTERM."""
        if self._thread is not None:
            self.begin_to_stop()
            self.join()

    def join(self) -> None:
        """Waits for its end; raises its error if it failed."""
        assert self._thread is not None
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "it does not stop"
        self._thread = None
        if self._error is not None:
            raise self._error

    def restart(self) -> None:
        self.stop()
        self.start()

    def ask(self, question: Callable[[S], Result]) -> Result:
        """Returns the result of `question`, called in the thread of the service."""
        service, answer = self._service, Future[Result]()
        assert service is not None
        assert self._token is not None

        def put() -> None:
            try:
                answer.set_result(question(service))
            except BaseException as error:
                answer.set_exception(error)

        self._token.run_sync_soon(put)
        return answer.result(DEADLINE_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        async def main() -> None:
            self._token = trio.lowlevel.current_trio_token()
            async with trio.open_nursery() as nursery:
                self._service = await self._begin(nursery, load_settings(None, **self._given))
                self._ready.set()

        try:
            trio.run(main)
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()
