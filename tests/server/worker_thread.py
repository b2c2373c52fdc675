"""A real worker in a thread of the tests' own process, as `tests.server_thread` has a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

from eventstore.server.settings import ServerSettings
from eventstore.server.work import Worker, work
from tests.waiting import DEADLINE_SECONDS

Result = TypeVar("Result")


class WorkerThread:
    """Works on the store at `store_address`, on a free port of the loopback interface; after a restart on the same one."""

    def __init__(self, store_address: str, checkpoint: Path | None = None, **settings: Any) -> None:
        self._given: dict[str, Any] = {"listen": "127.0.0.1:0", **settings}
        self._store_address = store_address
        self._checkpoint = checkpoint
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._worker: Worker | None = None
        self._error: BaseException | None = None

    @property
    def address(self) -> str:
        assert self._worker is not None
        return self._worker.address

    @property
    def http(self) -> str:
        assert self._worker is not None
        assert self._worker.http_address is not None
        return f"http://{self._worker.http_address}"

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def start(self) -> None:
        """Returns when it works, and raises what keeps it from it."""
        self._ready.clear()
        self._error = None
        self._thread = threading.Thread(target=self._run, name="worker")
        self._thread.start()
        assert self._ready.wait(DEADLINE_SECONDS), "the worker does not start"
        if self._error is not None:
            self.join()
        self._given["listen"] = self.address.removeprefix("tcp://")

    def begin_to_stop(self) -> None:
        assert self._worker is not None
        self.ask(self._worker.stop)

    def stop(self) -> None:
        """Stops in order, as on SIGTERM."""
        if self._thread is not None:
            self.begin_to_stop()
            self.join()

    def join(self) -> None:
        """Waits for its end, and raises what ended it."""
        assert self._thread is not None
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "the worker does not stop"
        self._thread = None
        if self._error is not None:
            raise self._error

    def ask(self, question: Callable[[], Result]) -> Result:
        """What `question` says, asked in the worker's own thread."""
        assert self._token is not None
        return trio.from_thread.run_sync(question, trio_token=self._token)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        async def main() -> None:
            self._token = trio.lowlevel.current_trio_token()
            async with trio.open_nursery() as nursery:
                settings = ServerSettings(**self._given)
                self._worker = await nursery.start(work, settings, self._store_address, self._checkpoint)
                self._ready.set()

        try:
            trio.run(main)
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()
