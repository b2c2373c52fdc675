"""What servers and workers have in common: a listener, limits, signals, and one error instead of a group of them."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog
import trio

from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.server.gate_limits import GateLimits
from eventstore.server.settings import ServerSettings, cannot_listen, parse_address
from eventstore_mailbox import Options

_BACKLOG: Final = 1024
_DESCRIPTORS_PER_FILE: Final = 3  # the file, its mapping and that of its index
_OTHER_DESCRIPTORS: Final = 64
_COLLECTOR_THRESHOLDS: Final = (10_000, 20, 500)


def bind(address: str, field: str = "listen") -> socket.socket:
    """A socket that has HOST:PORT for itself, and does not listen yet: whoever connects is refused until it does.

    Raises:
        InvalidArgument: it is no address.
        FolderRefused: nobody can listen there.
    """
    host, port = parse_address(address, field)
    with contextlib.ExitStack() as opened:
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            bound = opened.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a restart waits for connections long gone
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(target)
        except OSError as error:
            raise cannot_listen(address, error) from None
        opened.pop_all()
        return bound


def listen(bound: socket.socket, address: str) -> None:
    """Connections are taken from now on.

    Raises:
        FolderRefused: somebody else was faster.
    """
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        raise cannot_listen(address, error) from None


def check_checkpoint_folder(checkpoint: Path | None) -> None:
    """Raises InvalidArgument where a checkpoint is to be kept in a folder that is not there: found out now, not when it is
    written.
    """
    if checkpoint is not None and not checkpoint.parent.is_dir():
        raise InvalidArgument(
            f"there is no folder {checkpoint.parent} for the checkpoint; create it", field="checkpoint", value=str(checkpoint)
        )


def gate_limits(settings: ServerSettings) -> GateLimits:
    """What connections may cost."""
    return GateLimits(
        _affordable_connections(settings),
        settings.requests_max,
        settings.unsent_bytes_max,
        settings.outgoing_bytes_max,
        settings.hello_timeout_s,
        settings.frame_timeout_s,
        settings.idle_timeout_s,
        settings.slow_client_timeout_s,
    )


def bounds(settings: ServerSettings) -> Options:
    """What the command mailboxes may hold."""
    return Options(
        mailboxes=settings.mailboxes,
        capacity=settings.mailbox_capacity,
        aggregates_max=settings.aggregates_max,
        reruns_max=settings.reruns_max,
    )


async def stop_on_signals(asked: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Sets `asked` at SIGTERM and SIGINT, from when it has started; a second one is left to the operating system's default."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            asked.set()
            return


def run_to_end(main: Callable[[], Awaitable[None]]) -> None:
    """Runs it on trio, with a single error instead of a group of them.

    Raises:
        EventStoreError
    """
    try:
        trio.run(main)
    except BaseExceptionGroup as group:
        errors = [error for error in _leaves(group) if isinstance(error, EventStoreError)]
        if errors:
            raise errors[0] from None
        raise


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf for error in group.exceptions for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


def _affordable_connections(settings: ServerSettings) -> int:
    """No more connections than leave the store the open files it needs: one that cannot open its next file would fail
    everybody's appends, one connection more only its own.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = min(_DESCRIPTORS_PER_FILE * settings.open_files_max + _OTHER_DESCRIPTORS, descriptors // 2)
    affordable = min(settings.connections_max, descriptors - own)
    if affordable < settings.connections_max:
        structlog.get_logger("eventstore.server").warning(
            "fewer connections than set: raise the limit of open files (ulimit -n)",
            connections_max=affordable,
            open_files=descriptors,
        )
    return affordable


def calm_collector() -> None:
    """Lets the garbage collector look at what is there now never again, and at what comes less often: next to nothing here is
    cyclic, and a look at a hundred thousand aggregates in memory holds up everybody for 0.2 s. Call it when all is loaded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)


def raise_descriptor_limit() -> None:
    """As many open files as the system grants: the usual soft limit of 1,024 is for programs without connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else soft, hard))
