"""A real server in a thread of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import trio

from eventstore.records.cluster_map import ClusterMap
from eventstore.server.serve import Server, serve
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import ShardIdentity
from tests.service_thread import ServiceThread


class ServerThread(ServiceThread[Server]):
    """Serves a folder."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.data = data
        super().__init__(_begin, {"preallocate_bytes": 1024 * 1024, **settings, "data": data})
        self.stop_servers, self.start_servers = self.stop, self.start


async def _begin(nursery: trio.Nursery, settings: ServerSettings) -> Server:
    return cast("Server", await nursery.start(serve, settings))


class ShardThread(ServiceThread[Server]):
    """Serves one shard of a cluster, without a node."""

    def __init__(self, data: Path, shard: ShardIdentity, known: ClusterMap, **settings: Any) -> None:
        async def begin(nursery: trio.Nursery, settings: ServerSettings) -> Server:
            return cast("Server", await nursery.start(serve, settings, shard, known))

        super().__init__(begin, {"preallocate_bytes": 1024 * 1024, **settings, "data": data})
