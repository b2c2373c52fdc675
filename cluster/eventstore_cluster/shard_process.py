"""The process of a shard: a server, told by its node over a channel what to serve. It stops when the channel ends.

So no process survives a killed node. The channel is standard input, and only until it is taken over: nothing that the server
starts inherits it.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import trio

from eventstore.chunks.documents import Tree
from eventstore.chunks.files import NO_SPACE, OsFiles
from eventstore.chunks.opening import LOCK
from eventstore.errors import EventStoreError, FolderRefused, InvalidArgument, StorageFull, to_wire
from eventstore.records.cluster_map import read_cluster_map
from eventstore.server.access.security import Security
from eventstore.server.bootstrap import run_to_end, stop_on_signals
from eventstore.server.logs import configure_logs, get_logger
from eventstore.server.serve import Server, serve
from eventstore.settings.server import ServerSettings
from eventstore_cluster.channel import Channel
from eventstore_cluster.shard_start import ShardStart, plain, read_start

LOCK_WAIT_S: Final = 60.0
"""How long the process of a killed node, which still closes the store, is waited for."""
_LOCK_POLL_S: Final = 0.05
E = TypeVar("E", bound=Exception)


class ShardProcess:
    """What the node asks of the shard, before and while it serves."""

    def __init__(self, channel: Channel, start: ShardStart, settings: ServerSettings) -> None:
        self._channel = channel
        self._start = start
        self._settings = settings
        self._security = Security(settings)
        self._server: Server | None = None
        self._newest = start.known
        self._stopping = trio.Event()
        self._deserted = False  # it stops because its node is gone: nothing told it to

    async def run(self) -> None:
        """Serves until the channel ends, or on SIGTERM. Raises the errors of `serve`."""
        async with trio.open_nursery() as beside:
            await beside.start(stop_on_signals, self._stopping, self._reload)
            beside.start_soon(self._follow)
            await self._wait_for_folder()
            async with trio.open_nursery() as nursery:
                self._server = await nursery.start(
                    partial(serve, self._settings, self._start.identity, self._start.known, security=self._security)
                )
                self._server.maps.publish(self._newest)
                await self._channel.send({"serving": self._server.address})
                await self._stopping.wait()
                self._server.stop()
            beside.cancel_scope.cancel()

    def _reload(self) -> None:
        self._security.reload()

    async def _follow(self) -> None:
        """Does what the node says until it ends the channel."""
        told = False
        async with trio.open_nursery() as nursery:
            while (message := await self._channel.receive()) is not None:
                match message:
                    case {"stop": True}:
                        told = True
                    case {"map": str(text)}:
                        self._take_map(text)
                    case {"ask": int(number), "what": str(what)}:
                        nursery.start_soon(self._answer, number, what)
            self._deserted = not (told or self._stopping.is_set())
            self._stopping.set()

    def _take_map(self, text: str) -> None:
        try:
            newer = read_cluster_map(text.encode())
        except InvalidArgument as error:
            get_logger("eventstore.cluster").error("a map of the node is refused", error=error.message)
            return
        self._newest = newer
        if self._server is not None:
            self._server.maps.publish(newer)

    async def _answer(self, number: int, what: str) -> None:
        value: Tree | str | None = None
        if what == "metrics":
            text = await trio.to_thread.run_sync(self.metrics)
            value = None if text is None else text.decode()
        elif what == "health":
            value = await self.health()
        await self._channel.send({"answer": number, "value": value})

    def metrics(self) -> bytes | None:
        """Returns the text of /metrics, on any thread; None while it does not serve."""
        return None if self._server is None else self._server.reports.metrics()

    async def health(self) -> Tree:
        """Returns what `/health` says; nothing while it does not serve."""
        if self._server is None:
            return {}
        # On a thread, as for requests by HTTP: formatting a thousand topics would hold up commits.
        return dict(await trio.to_thread.run_sync(self._server.reports.health))

    async def _wait_for_folder(self) -> None:
        """Waits a bounded time while another process has the folder; then `serve` refuses it by name."""
        lock = self._settings.data / LOCK
        files = OsFiles()
        with trio.move_on_after(LOCK_WAIT_S):
            waits = False
            while files.exists(lock) and not self._stopping.is_set():
                try:
                    files.lock(lock).release()
                    return
                except FolderRefused as error:
                    if not waits:
                        get_logger("eventstore.cluster").warning("waiting for the folder", error=error.message)
                    waits = True
                await trio.sleep(_LOCK_POLL_S)


MakeProcess: TypeAlias = Callable[[Channel, ShardStart, ServerSettings], ShardProcess]


async def _main(taken: socket.socket, make: MakeProcess) -> None:
    async with Channel(trio.SocketStream(trio.socket.from_stdlib_socket(taken))) as channel:
        message = await channel.receive()
        if message is None:  # the node is gone already
            return
        folder = "the data folder"
        try:
            start = read_start(message)
            settings = start.settings()
            folder = str(settings.data)
            configure_logs(settings.log_format, settings.log_level, start.identity.shard)
            _name_process(f"shard-{start.identity.shard}")
            await make(channel, start, settings).run()
        except* EventStoreError as group:
            error = _first(group)
            await channel.send({"failed": [plain(each) for each in to_wire(error)]})
            raise error from None
        except* OSError as group:
            cause = _first(group)
            error = _of_the_system(folder, cause)
            await channel.send({"failed": [plain(each) for each in to_wire(error)]})
            if cause.errno in NO_SPACE:
                raise error from None
            raise


def _name_process(name: str) -> None:
    """Has `ps -o comm` and `top` show it by this name: all copies of a template have one command line."""
    with suppress(OSError):  # only Linux has it
        Path("/proc/self/comm").write_text(name)


def _of_the_system(folder: str, error: OSError) -> EventStoreError:
    if error.errno in NO_SPACE:
        return StorageFull(f"no space left in {folder} ({error.strerror}); free some space: it is tried again")
    return EventStoreError(f"{error.filename or folder}: {error.strerror or error}")


def _first(group: BaseExceptionGroup[E]) -> E:
    error: E | BaseExceptionGroup[E] = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _take_channel() -> socket.socket:
    """Returns the channel, and puts an empty standard input in its place."""
    taken = socket.socket(fileno=os.dup(0))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return taken


def run_process(make: MakeProcess) -> int:
    """Runs the process that its node asked for. Returns the exit code: 1 after an error, which the node was told."""
    try:
        taken = _take_channel()
    except OSError:
        print("error: this program is started by `eventstore node`", file=sys.stderr)
        return 2
    try:
        run_to_end(lambda: _main(taken, make))
    except EventStoreError:
        return 1
    return 0


def main() -> int:
    return run_process(ShardProcess)


if __name__ == "__main__":
    sys.exit(main())
