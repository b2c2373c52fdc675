"""Runs commands without the half second that Python takes to import libraries: one process imports them, and forks.

The command itself imports the modules of this project, as in a new process. Each command has its own arguments, environment,
folder and standard streams, and ends as Python ends. This does not cover that `python -m` starts, nor that hashes differ
between commands; servers, workers and commands that are sent signals are ordinary processes for that reason.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import sys

MODULE = "eventstore"
LIBRARIES = (
    "typer", "typer._adapters", "typer._completion_shared", "pydantic", "pydantic_settings", "trio", "anyio",
    "anyio._backends._trio", "numpy", "lmdb", "rich.console", "rich.live", "rich.table", "rich.progress", "structlog",
    "prometheus_client", "msgpack", "sortedcontainers", "crc32c", "sqlite3", "asyncio", "tomllib", "uuid", "gzip",
    "importlib.metadata", "starlette.applications", "starlette.staticfiles", "jinja2", "hypercorn.trio",
)  # fmt: skip
_REQUEST_BYTES_MAX = 1024 * 1024


def send_request(channel: socket.socket, request: dict[str, object], streams: list[int]) -> None:
    """Sends a request. `streams` become standard input, output and error."""
    body = json.dumps(request).encode()
    assert len(body) < _REQUEST_BYTES_MAX
    socket.send_fds(channel, [len(body).to_bytes(4, "little")], streams)
    channel.sendall(body)


def receive_request(channel: socket.socket, streams_max: int = 3) -> tuple[dict[str, object], list[int]] | None:
    head, streams, _, _ = socket.recv_fds(channel, 4, streams_max)
    if not head:
        return None
    assert len(head) == 4
    size, body = int.from_bytes(head, "little"), b""
    while len(body) < size:
        body += channel.recv(size - len(body))
    request: dict[str, object] = json.loads(body)
    return request, streams


def become(request: dict[str, object], streams: list[int]) -> None:
    """Turns this process into the command."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    environment, folder = request["environment"], request["folder"]
    assert isinstance(environment, dict)
    assert isinstance(folder, str)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [folder, *paths, *sys.path[1:]]
    arguments = request["arguments"]
    assert isinstance(arguments, list)
    sys.argv[:] = [MODULE, *arguments]


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()  # or the collector of every child touches, and so copies, all of it
    while (received := receive_request(channel)) is not None:
        pid = os.fork()
        if pid == 0:
            channel.close()
            become(*received)
            runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
            return
        for stream in received[1]:
            os.close(stream)
        channel.sendall(pid.to_bytes(4, "little"))
        _, status = os.waitpid(pid, 0)
        channel.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))


if __name__ == "__main__":
    main()
