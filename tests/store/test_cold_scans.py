"""Scans of files that are not in memory: the event loop goes on while the disk is waited for.

A page fault that takes its time is made here by userfaultfd: memory whose pages are there only once somebody has brought them.
That somebody is the main thread of a process, and the scan runs beside it, as it does beside an event loop. A scan that keeps
Python's lock while it waits for a page waits for ever.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.processes import run_to_end
from tests.store import slow_pages

ROOT = Path(__file__).parents[2]


def scan(kind: str, folder: Path) -> str:
    done = run_to_end([sys.executable, "-m", "tests.store.slow_pages", kind, str(folder)], ROOT, dict(os.environ), 30.0)
    return done.stdout.strip() or done.stderr


@pytest.mark.skipif(not slow_pages.available(), reason="userfaultfd is not to be had here")
@pytest.mark.parametrize("kind", ["small", "large", "filtered"])
def test_a_scan_that_waits_for_pages_of_a_sorted_file_lets_the_other_threads_run(kind: str, tmp_path: Path) -> None:
    assert scan(kind, tmp_path) == "as it was appended"
