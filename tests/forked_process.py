"""Forks a process for each command, server and worker, from one that has imported this project and its libraries.

Each of them would otherwise spend most of its time on that. It has its own arguments, environment, folder and standard streams,
and ends as Python ends; any number of them run at once. A node, which replaces its command by a smaller program and starts the
template of its shards, has both from here as well. What this does not cover: that `python -m` starts, that a command imports
what it uses and a node no more, and that hashes differ between processes. Tests of those start ordinary processes.

Run as a program, with the file descriptor of a channel; `ForkedProcess` is the other end.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

from eventstore_cluster.processes.starter import TEMPLATE
from tests.waiting import DEADLINE_SECONDS

ROOT = Path(__file__).parents[1]
MODULE = "eventstore"
_PACKAGES = ("eventstore", "eventstore_mailbox", "eventstore_cluster")
# Those that our modules import when they use them.
_LIBRARIES = ("prometheus_client", "anyio._backends._trio", "numpy", "cryptography.x509", "rich.progress")


class _Forking:
    """The forking process; it ends with the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(DEADLINE_SECONDS)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked_process", str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd=ROOT,
                stdin=subprocess.DEVNULL, env=environment | {"OPENBLAS_NUM_THREADS": "1"},  # it forks while it has one thread
            )  # fmt: skip
        atexit.register(self._close)

    def fork(self, arguments: Sequence[str], environment: dict[str, str], streams: list[int]) -> int:
        """Returns the pid. `streams`: standard input, output and error, and a pipe for the exit code."""
        request = {"arguments": [*arguments], "environment": environment, "folder": os.getcwd()}
        with self._lock:
            _send(self._channel, request, streams)
            return int.from_bytes(self._channel.recv(4, socket.MSG_WAITALL), "little")

    def _close(self) -> None:
        self._channel.close()
        self._process.wait(DEADLINE_SECONDS)


_forking = cache(_Forking)


class ForkedProcess:
    """`eventstore ARGUMENTS…`, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: dict[str, str],
        output: IO[Any],
        errors: IO[Any] | None = None,
        given: IO[Any] | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._exit, theirs = os.pipe()
        self._reading = threading.Lock()
        weakref.finalize(self, os.close, self._exit)  # not when the code was read: another thread may be looking
        with open(os.devnull, "rb") as nothing:
            try:
                streams = [each.fileno() for each in (given or nothing, output, errors or output)]
                self.pid = _forking().fork(arguments, environment, [*streams, theirs])
            finally:
                os.close(theirs)

    def poll(self) -> int | None:
        """Returns the exit code; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float) -> int:
        """Waits for its end; returns the exit code."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(MODULE, timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float) -> int | None:
        ended = select.poll()  # one for each call: threads may not share it; select() takes no descriptor above 1,023
        ended.register(self._exit, select.POLLIN | select.POLLHUP)
        if self.returncode is None and ended.poll(timeout * 1000):
            with self._reading:
                if self.returncode is None:
                    code = os.read(self._exit, 4)
                    assert code, "the process that forks has ended"
                    self.returncode = int.from_bytes(code, "little", signed=True)
        return self.returncode


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    _import_everything()
    gc.freeze()  # otherwise every child scans, and so copies, all of it
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    exits: dict[int, int] = {}
    while True:
        ready = select.select([channel, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(exits)
        if channel in ready:
            received = _receive(channel)
            if received is None:
                return
            request, (*streams, code) = received
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                channel.close()
                for each in (woken, wake, code, *exits.values()):
                    os.close(each)
                _become(request, streams)
                if sys.argv[1:2] == ["node"]:
                    os.execv = _replace
                    subprocess._fork_exec = _Spare(subprocess._fork_exec)  # type: ignore[attr-defined] # what Popen calls
                _run(MODULE)
            exits[pid] = code
            for stream in streams:
                os.close(stream)
            channel.sendall(pid.to_bytes(4, "little"))


def _import_everything() -> None:
    for package in _PACKAGES:
        importlib.import_module(package)
        for module in pkgutil.walk_packages(sys.modules[package].__path__, f"{package}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)
    for name in _LIBRARIES:
        importlib.import_module(name)


def _send(channel: socket.socket, document: object, streams: list[int]) -> None:
    body = json.dumps(document).encode()
    socket.send_fds(channel, [len(body).to_bytes(4, "little")], streams)
    channel.sendall(body)


def _receive(channel: socket.socket) -> tuple[Any, list[int]] | None:
    """Returns a JSON document and the descriptors with it; None at the end."""
    head, streams, _, _ = socket.recv_fds(channel, 4, maxfds=4)
    if not head:
        return None
    assert len(head) == 4
    size, body = int.from_bytes(head, "little"), b""
    while len(body) < size:
        body += channel.recv(size - len(body))
    return json.loads(body), streams


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Turns this process into the command."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [request["folder"], *paths, *sys.path[1:]]
    sys.argv[:] = [MODULE, *request["arguments"]]


def _replace(program: str, arguments: Sequence[str]) -> NoReturn:
    """Takes the place of `os.execv` for `python -m MODULE ARGUMENTS…`."""
    assert [program, "-m"] == [*arguments[:2]] == [sys.executable, "-m"]
    sys.argv[:] = arguments[2:]
    _run(arguments[2])


class _Spare:
    """A child of the node, forked while that has one thread: it becomes the first template, in place of a process that Popen
    would start. Another template, and any other program, is started.
    """

    def __init__(self, starts: Callable[..., int]) -> None:
        self._starts = starts
        self._channel, theirs = socket.socketpair()
        self._pid: int | None = os.fork()
        if self._pid == 0:
            self._channel.close()
            self._wait(theirs)
        theirs.close()

    def __call__(self, arguments: Sequence[str], *given: Any) -> int:
        if TEMPLATE not in arguments or self._pid is None:
            return self._starts(arguments, *given)
        _, _, _, _, environment, stdin = given[:6]
        words = [os.fsdecode(each) for each in arguments[arguments.index(TEMPLATE) :]]
        variables = [os.fsdecode(each).split("=", 1) for each in environment]
        _send(self._channel, [words, dict(variables)], [stdin])
        self._channel.close()
        pid, self._pid = self._pid, None
        return pid

    def _wait(self, channel: socket.socket) -> NoReturn:
        received = _receive(channel)
        if received is None:
            os._exit(0)
        (words, environment), (stdin,) = received
        channel.close()
        os.setpgid(0, 0)
        os.dup2(stdin, 0)
        os.close(stdin)
        os.environ.update(environment)
        sys.argv[:] = words
        _run(TEMPLATE)


def _run(module: str) -> NoReturn:
    """Runs a program, and ends as Python does, except that modules are not destroyed: that would copy them all."""
    code: object = 0
    sys.modules.pop(module, None)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type] # there is one
        code = 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    sys.stderr.flush()
    os._exit(code or 0)


def _report_ended(exits: dict[int, int]) -> None:
    while exits:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        code = exits.pop(pid)
        with suppress(BrokenPipeError):  # its test has ended
            os.write(code, os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
        os.close(code)


if __name__ == "__main__":
    main()
