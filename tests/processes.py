"""Runs programs that may hang: to their end, or kills them with all their children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from tests.waiting import DEADLINE_SECONDS

SECONDS_MAX = 180.0


def run_to_end(
    command: Sequence[str], folder: Path, environment: dict[str, str], seconds: float = SECONDS_MAX
) -> subprocess.CompletedProcess[str]:
    """Runs a command. Its output goes to files: a pipe would stay open as long as any child it left behind."""
    with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        )  # fmt: skip
        late = ""
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = f"\nnot within {seconds:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        code = process.wait(DEADLINE_SECONDS)
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(command, code, stdout.read(), stderr.read() + late)
