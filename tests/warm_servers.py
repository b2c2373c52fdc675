"""Forks a process for each server or worker, from one that has imported the libraries: half a second less for each of them.

As with `tests.cli.warm`, this project's own modules are imported by the forked process. Any number of them run at once. Run as
a program, with the file descriptor of a channel; `ForkedProcess` is the other end.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from tests.cli.warm import LIBRARIES, MODULE, become, receive_request, send_request
from tests.waiting import DEADLINE_SECONDS

ROOT = Path(__file__).parents[1]


class _Warm:
    """The forking process; it ends with the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(DEADLINE_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_servers", str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd=ROOT,
                stdin=subprocess.DEVNULL, env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            )  # fmt: skip
        atexit.register(self._close)

    def fork(self, arguments: Sequence[str], environment: dict[str, str], streams: list[int]) -> int:
        """Returns the pid. `streams`: standard input, output and error, and a pipe for the exit code."""
        request: dict[str, object] = {"arguments": [*arguments], "environment": environment, "folder": os.getcwd()}
        with self._lock:
            send_request(self._channel, request, streams)
            return int.from_bytes(self._channel.recv(4, socket.MSG_WAITALL), "little")

    def _close(self) -> None:
        self._channel.close()
        self._process.wait(DEADLINE_SECONDS)


_warm = cache(_Warm)


class ForkedProcess:
    """`eventstore ARGUMENTS…`, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self, arguments: Sequence[str], environment: dict[str, str], output: IO[bytes], errors: IO[bytes] | None = None
    ) -> None:
        self.returncode: int | None = None
        self._exit, theirs = os.pipe()
        self._reading = threading.Lock()
        weakref.finalize(self, os.close, self._exit)  # not when the code was read: another thread may be looking
        with open(os.devnull, "rb") as nothing:
            try:
                outputs = [output.fileno(), (errors or output).fileno()]
                self.pid = _warm().fork(arguments, environment, [nothing.fileno(), *outputs, theirs])
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
    for name in LIBRARIES:
        importlib.import_module(name)
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
            received = receive_request(channel, streams_max=4)
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
                become(request, streams)
                runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
                return
            exits[pid] = code
            for stream in streams:
                os.close(stream)
            channel.sendall(pid.to_bytes(4, "little"))


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
