"""A real worker in a thread of the tests' own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import trio

from eventstore.server.settings import ServerSettings
from eventstore.server.work import Worker, work
from tests.service_thread import ServiceThread


class WorkerThread(ServiceThread[Worker]):
    """Works on the store at `store_address`."""

    def __init__(self, store_address: str, checkpoint: Path | None = None, **settings: Any) -> None:
        async def begin(nursery: trio.Nursery, given: ServerSettings) -> Worker:
            return cast("Worker", await nursery.start(work, given, store_address, checkpoint))

        super().__init__(begin, settings)
