"""A real server in a thread of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import trio

from eventstore.server.serve import Server, serve
from eventstore.settings.server import ServerSettings
from tests.service_thread import ServiceThread


class ServerThread(ServiceThread[Server]):
    """Serves a folder."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.data = data
        super().__init__(_begin, {"preallocate_bytes": 1024 * 1024, **settings, "data": data})


async def _begin(nursery: trio.Nursery, settings: ServerSettings) -> Server:
    return cast("Server", await nursery.start(serve, settings))
