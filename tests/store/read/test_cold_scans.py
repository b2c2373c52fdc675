"""Scans of files that are not in memory: the event loop keeps running while the scan waits for the disk.

userfaultfd makes slow page faults: a page of this memory exists only once another thread has supplied it. Here that is the main
thread of a process, and the scan runs on a second thread, as it does next to an event loop. A scan that holds the GIL while it
waits for a page waits forever.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.processes import run_to_end
from tests.store.read import slow_pages

ROOT = Path(__file__).parents[3]


def scan(kind: str, folder: Path) -> str:
    done = run_to_end([sys.executable, "-m", "tests.store.read.slow_pages", kind, str(folder)], ROOT, dict(os.environ), 30.0)
    return done.stdout.strip() or done.stderr


@pytest.mark.skipif(not slow_pages.available(), reason="userfaultfd is not to be had here")
@pytest.mark.parametrize("kind", ["small", "large", "filtered"])
def test_a_scan_that_waits_for_pages_of_a_sorted_file_releases_the_gil(kind: str, tmp_path: Path) -> None:
    assert scan(kind, tmp_path) == "as it was appended"
