"""The peers, each with its own scratch folder and server process.

A peer never touches an installation that is already there. It starts its own server from the installed binaries, on a
folder that is removed afterwards and a port that was free, listening on 127.0.0.1 only, and ends it by its process id.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness.subject import Unavailable

READY_WAIT_S_MAX = 20.0
STOP_WAIT_S_MAX = 10.0
PROBE_PAUSE_S = 0.01
LOG_TAIL_CHARACTERS = 300


def free_port() -> int:
    """Return a free loopback port. If another process takes it first, the server fails to start and is skipped."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def executable(name: str, *folders: Path, hint: str) -> str:
    """The full path of a program, from these folders first and the PATH after them.

    Raises:
        Unavailable: it is nowhere; the message ends with `hint`.
    """
    for folder in folders:
        if (folder / name).is_file():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} not found; {hint}")
    return found


class Scratch:
    """A folder below the temporary folder (TMPDIR), which has to be on a real disk: a sync to memory costs nothing."""

    def __init__(self, subject: str, owner: str | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"benchmark-{subject}-", ignore_cleanup_errors=True)
        self.path = Path(self._folder.name)
        if owner is not None:
            shutil.chown(self.path, owner)

    def remove(self) -> None:
        self._folder.cleanup()


class Server:
    """One server process, in its own session so that Ctrl-C reaches us first and the server through `stop`."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        user: str | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self._log = folder / "server.log"
        self._stop_signal = stop_signal
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=user,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, probe: Callable[[], None], not_yet: tuple[type[Exception], ...]) -> None:
        """Call `probe` until it no longer raises one of `not_yet`.

        Raises:
            Unavailable: the process ended, or did not answer in time; with the end of its log.
        """
        deadline = time.monotonic() + READY_WAIT_S_MAX
        while True:
            try:
                return probe()
            except not_yet as error:
                last = error
            if self._process.poll() is not None:
                raise Unavailable(f"server ended with code {self._process.returncode}: {self._log_tail()}") from last
            if time.monotonic() > deadline:
                raise Unavailable(f"server not ready after {READY_WAIT_S_MAX:.0f} s: {self._log_tail()}") from last
            time.sleep(PROBE_PAUSE_S)

    def stop(self) -> None:
        """End the process: nicely first, by force when it takes too long."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(self._stop_signal)
        try:
            self._process.wait(STOP_WAIT_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _log_tail(self) -> str:
        text = self._log.read_text(errors="replace")
        return " ".join(text[-LOG_TAIL_CHARACTERS:].split())
