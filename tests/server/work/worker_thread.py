"""A real worker in a thread of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import trio

from eventstore.server.work.worker import Worker, work
from eventstore.settings.server import ServerSettings
from tests.service_thread import ServiceThread


class WorkerThread(ServiceThread[Worker]):
    """Runs a worker on the store at `store_address`. `snapshots`: its folder for those of aggregates."""

    def __init__(
        self, store_address: str, checkpoint: Path | None = None, *, snapshots: Path | None = None, **settings: Any
    ) -> None:
        async def begin(nursery: trio.Nursery, given: ServerSettings) -> Worker:
            return cast("Worker", await nursery.start(work, given, store_address, checkpoint, 0.0, snapshots))

        super().__init__(begin, settings)
