"""Starting a server or worker: binds and listens, sets process limits, and stops on signals."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import trio

from eventstore.chunks.files import OsFiles
from eventstore.errors import EventStoreError, FolderRefused, InvalidArgument
from eventstore.fields import read_number, shown
from eventstore.server.net.connection import GateLimits
from eventstore.settings.server import ServerSettings

PORT_MAX: Final = 65_535
_BACKLOG: Final = 1024
_DESCRIPTORS_PER_FILE: Final = 3  # the file, its mapping and that of its index
_OTHER_DESCRIPTORS: Final = 64
_COLLECTOR_THRESHOLDS: Final = (10_000, 20, 500)
_SWITCH_S: Final = 0.001


@asynccontextmanager
async def until(*events: trio.Event) -> AsyncIterator[None]:
    """Runs the block until one of the events is set; then it is cancelled."""
    async with trio.open_nursery() as nursery:

        async def cancel_when(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(cancel_when, event)
        yield
        nursery.cancel_scope.cancel()


def parse_address(text: str, field: str) -> tuple[str, int]:
    """Returns host and port of `HOST:PORT`.

    Raises:
        InvalidArgument
    """
    host, _, given = text.rpartition(":")
    port = read_number(given)
    if not host or port is None or port > PORT_MAX:
        raise InvalidArgument(
            f"{field} is {shown(text)}, expected HOST:PORT such as 127.0.0.1:7701", field=field, value=shown(text)
        )
    return host, port


def cannot_listen(address: str, error: OSError) -> FolderRefused:
    """Returns the error for an address that is in use, or does not belong to this machine."""
    return FolderRefused(
        address,
        f"cannot listen there ({error.strerror or error}); choose another address, or stop the process that listens there",
    )


def bind(address: str, field: str = "listen") -> socket.socket:
    """Returns a socket bound to HOST:PORT that does not listen yet: until then, clients that connect are refused.

    Raises:
        InvalidArgument: `address` is not HOST:PORT.
        FolderRefused: the address cannot be bound.
    """
    host, port = parse_address(address, field)
    with contextlib.ExitStack() as opened:
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            bound = opened.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a restart waits until old connections time out
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(target)
        except OSError as error:
            raise cannot_listen(address, error) from None
        opened.pop_all()
        return bound


def listen(bound: socket.socket, address: str) -> None:
    """Begins to accept connections.

    Raises:
        FolderRefused: another process listens there by now.
    """
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        raise cannot_listen(address, error) from None


def check_checkpoint_folder(checkpoint: Path | None) -> None:
    """Raises InvalidArgument if the checkpoint's folder does not exist: at the start, not at the first write."""
    if checkpoint is not None and not checkpoint.parent.is_dir():
        raise InvalidArgument(
            f"there is no folder {checkpoint.parent} for the checkpoint; create it", field="checkpoint", value=str(checkpoint)
        )


@contextmanager
def held_checkpoint(checkpoint: Path | None) -> Iterator[None]:
    """Keeps other workers of this machine from the checkpoint meanwhile: both would handle, and park, each event. The lock ends
    with its process.

    Raises:
        FolderRefused: another worker has it; names the process.
    """
    if checkpoint is None:
        yield
        return
    path = checkpoint.with_name(f"{checkpoint.name}.lock")
    try:
        lock = OsFiles().lock(path)
    except FolderRefused:
        holder = path.read_text(encoding="ascii", errors="replace").strip() or "unknown"
        what = f"is the checkpoint of another worker, process {holder}; stop it, or start this one without --checkpoint"
        raise FolderRefused(str(checkpoint), what) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def held_snapshots(folder: Path | None) -> Iterator[None]:
    """Keeps other workers of this machine from a folder for snapshots meanwhile. The lock ends with its process.

    Raises:
        FolderRefused: another worker has it, or it cannot be made.
    """
    if folder is None:
        yield
        return
    files = OsFiles()
    try:
        files.make_folder(folder)
        lock = files.lock(folder / "lock")
    except OSError as error:
        raise FolderRefused(str(folder), f"cannot be used for snapshots: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def checkpoint_of_shard(checkpoint: Path, shard: int | None) -> Path:
    """Returns the checkpoint of a shard: reactions.json becomes reactions-1.json where each has its own; None: the only one."""
    return checkpoint if shard is None else checkpoint.with_stem(f"{checkpoint.stem}-{shard}")


def gate_limits(settings: ServerSettings) -> GateLimits:
    """Returns the limits of the gate."""
    return GateLimits(
        _affordable_connections(settings),
        settings.requests_max,
        settings.unsent_bytes_max,
        settings.incoming_bytes_max,
        settings.outgoing_bytes_max,
        settings.hello_timeout_s,
        settings.frame_timeout_s,
        settings.idle_timeout_s,
        settings.slow_client_timeout_s,
    )


async def stop_on_signals(
    stop: trio.Event,
    reload: Callable[[], None] | None = None,
    *,
    heard: Callable[[int], object] = lambda number: None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Sets `stop` on SIGTERM or SIGINT, and calls `reload` on SIGHUP. After the first two, which `heard` is called with, a
    signal has its default effect.
    """
    hang_up = () if reload is None else (signal.SIGHUP,)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hang_up) as signals:
        task_status.started()
        async for number in signals:
            if number != signal.SIGHUP or reload is None:
                heard(number)
                stop.set()
                return
            reload()


def run_to_end(main: Callable[[], Awaitable[None]]) -> None:
    """Runs `main` on trio, and raises a single error instead of an exception group.

    Raises:
        EventStoreError, KeyboardInterrupt
    """
    try:
        trio.run(main)
    except BaseExceptionGroup as group:
        errors = [error for error in _leaves(group) if isinstance(error, EventStoreError)]
        if errors:
            raise errors[0] from None
        if any(isinstance(error, KeyboardInterrupt) for error in _leaves(group)):  # a second Ctrl-C
            raise KeyboardInterrupt from None
        raise


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf for error in group.exceptions for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


def _affordable_connections(settings: ServerSettings) -> int:
    """Limits connections to what leaves the store the open files it needs.

    A store that cannot open its next file fails all appends; a refused connection fails only its own.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = min(_DESCRIPTORS_PER_FILE * settings.store_settings.open_files_max + _OTHER_DESCRIPTORS, descriptors // 2)
    affordable = min(settings.connections_max, descriptors - own)
    if affordable < settings.connections_max:
        from eventstore.server.logs import get_logger  # here: the supervisor of a node, which is to be small, imports this, too

        get_logger("eventstore.server").warning(
            "fewer connections than set: raise the limit of open files (ulimit -n)",
            connections_max=affordable,
            open_files=descriptors,
        )
    return affordable


def calm_collector() -> None:
    """Excludes all existing objects from garbage collection, and collects later ones less often. Call it after loading.

    Almost nothing here is cyclic, and scanning a hundred thousand aggregates in memory would stop all tasks for 0.2 s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)


def yield_often() -> None:
    """Gives the event loop Python's lock back within a millisecond where a thread computes; the default is five."""
    sys.setswitchinterval(_SWITCH_S)


def raise_descriptor_limit() -> None:
    """Raises the limit of open files to the hard limit: the usual soft limit of 1,024 is too low for a server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else soft, hard))
