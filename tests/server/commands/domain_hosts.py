"""One interface for the places where a domain can run: in the server of the store, or in a worker of a store or of shards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest

import eventstore as es
from eventstore.client.blocking.store import BlockingStore
from tests.cluster.led_shards import LedShards
from tests.server.work.worker_thread import WorkerThread
from tests.server_thread import ServerThread

ON_ONE_STORE = ("serve", "work")
KINDS = (*ON_ONE_STORE, pytest.param("work-shards", marks=pytest.mark.long))
SHARDS = 3
STORE_SETTINGS = {"file_size_bytes", "preallocate_bytes", "waiting_bytes_max"}
Result = TypeVar("Result")


class DomainHost:
    """`address` takes commands, `store_address` all other requests; the same if the server runs the domain. `shards`: of the
    store; limits hold for each. `snapshots`: the folder of those of aggregates.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        domain: str = "tests.server.commands.tallies:app",
        checkpoint: Path | None = None,
        **settings: Any,
    ) -> None:
        self.shards = SHARDS if kind == "work-shards" else 1
        self.snapshots = folder / "data" / "snapshots" if kind == "serve" else folder / "snapshots"
        self._stack = ExitStack()
        self.store: ServerThread | LedShards
        if kind == "serve":
            self.store = self._stack.enter_context(ServerThread(folder / "data", domain=domain, **settings))
            self.worker = None
        else:
            stores = {name: value for name, value in settings.items() if name in STORE_SETTINGS}
            others = {name: value for name, value in settings.items() if name not in STORE_SETTINGS}
            store = ServerThread(folder / "data", **stores) if self.shards == 1 else LedShards(folder, self.shards, **stores)
            self.store = self._stack.enter_context(store)
            worker = WorkerThread(self.store.address, checkpoint, snapshots=self.snapshots, domain=domain, **others)
            self.worker = self._stack.enter_context(worker)

    @property
    def is_worker(self) -> bool:
        """Whether a worker runs the domain."""
        return self.worker is not None

    @property
    def _running(self) -> ServerThread | WorkerThread:
        if self.worker is not None:
            return self.worker
        assert isinstance(self.store, ServerThread)
        return self.store

    @property
    def address(self) -> str:
        return self._running.address

    @property
    def port(self) -> int:
        return self._running.port

    @property
    def http(self) -> str:
        """The address of `/health`."""
        return self._running.http

    @property
    def store_address(self) -> str:
        return self.store.address

    def connect(self) -> BlockingStore:
        """A client for commands."""
        return es.blocking.connect(self.address)

    def ask(self, question: Callable[[], Result]) -> Result:
        """Returns the result of `question`, called in the thread that runs the domain."""
        return self._running.ask(lambda _: question())

    def begin_to_stop(self) -> None:
        """Begins to stop the server or worker that runs the domain."""
        self._running.begin_to_stop()

    def join(self) -> None:
        """Waits until it has ended."""
        self._running.join()

    def start(self) -> None:
        """Starts it at the same address, after `join`."""
        self._running.start()

    def start_again(self) -> None:
        """Starts it again at the same address, after it has ended."""
        self.join()
        self.start()

    def restart(self) -> None:
        """Makes it drop all aggregates in memory."""
        self.begin_to_stop()
        self.start_again()

    def events(self, aggregate_id: str) -> list[es.Event]:
        with es.blocking.connect(self.store_address) as store:
            return list(store.read(aggregate_id))

    def stats(self) -> dict[str, Any]:
        """Returns its stats."""
        with self.connect() as store:
            return store.stats()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
