"""Runs a server of its own until a signal: this is `eventstore serve`."""

from __future__ import annotations

import trio

from eventstore.server.bootstrap import stop_on_signals
from eventstore.server.serve import Server, serve
from eventstore.settings.server import ServerSettings


async def run(settings: ServerSettings) -> None:
    """Runs `serve` until SIGTERM or SIGINT. On SIGHUP it reads the files of its security again."""
    server: Server | None = None

    def reload() -> None:
        if server is not None:
            server.security.reload()

    async with trio.open_nursery() as nursery:
        stopping = trio.Event()
        await nursery.start(stop_on_signals, stopping, reload)
        server = await nursery.start(serve, settings)
        await stopping.wait()
        assert server is not None
        server.stop()
