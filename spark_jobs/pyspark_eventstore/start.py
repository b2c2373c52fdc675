"""Starts `eventstore-spark`: from here on Ctrl-C ends it silently with exit code 130, also while modules are imported."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> None:
    """The entry point of the installed command."""
    try:
        from pyspark_eventstore.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code)
