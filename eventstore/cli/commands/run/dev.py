"""Serves a domain while it is written: the server is started again whenever a file of it changes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from eventstore.cli.terminal.output import print_error, print_line
from eventstore.cli.terminal.settings_options import Assignments, ConfigFile, all_given, offers_settings

_POLL_S: Final = 0.25
_STOP_S: Final = 20.0
_LEFT_OUT: Final = {"__pycache__", "node_modules", "site-packages"}
_FILES_MAX: Final = 10_000


@offers_settings()
def dev(
    app: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="The domain, such as shop:app.")],
    config: ConfigFile = None,
    assignments: Assignments = None,
    **given: object,
) -> None:
    """Serve a domain while you write it.

    The server is `eventstore serve` on ./data, with metrics and, if it is installed, the console at 127.0.0.1:7702. Whenever
    a Python file in this folder changes, it is stopped in order and started again; events stay. If the code does not load,
    it waits for the next change.

    \b
    Example:
      eventstore dev shop:app
    """
    settings = {"http": "127.0.0.1:7702", **all_given(assignments, given), "domain": app}
    options = [f"--set={name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "eventstore", "serve", *([] if config is None else ["--config", str(config)]), *options]
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while not stopping:
        seen = _state_of(Path.cwd())
        server = subprocess.Popen(command, start_new_session=True)  # Ctrl-C is for this process
        try:
            said = False
            while not stopping and (now := _state_of(Path.cwd())) == seen:
                if server.poll() is not None and not said:
                    print_error("the server has ended; it starts again when a file changes")
                    said = True
                time.sleep(_POLL_S)
        finally:
            _end(server)
        if not stopping:
            changed = sorted({str(path) for path, _ in now.items() ^ seen.items()})
            print_line(f"changed: {', '.join(changed[:5])}; starting again")
            sys.stdout.flush()  # before the lines of the server


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_S)
    except subprocess.TimeoutExpired:  # a handler that does not end
        server.kill()
        server.wait()


def _state_of(folder: Path) -> dict[Path, int]:
    """Returns the Python files below a folder, with the times of their last change."""
    found: dict[Path, int] = {}
    folders = [folder]
    while folders:
        with suppress(OSError):  # it is gone, or may not be read
            for path in folders.pop().iterdir():
                if path.name.startswith(".") or path.name in _LEFT_OUT:
                    continue
                if path.is_dir() and not path.is_symlink():
                    folders.append(path)
                elif path.suffix == ".py" and len(found) < _FILES_MAX:
                    with suppress(OSError):  # an editor has just replaced it
                        found[path.relative_to(folder)] = path.stat().st_mtime_ns
    return found
