"""Scans of files that are not in memory: the event loop goes on while the disk is waited for.

A page fault that takes its time is made here by userfaultfd: memory whose pages are there only once somebody has brought them.
That somebody is the main thread of a process, and the scan runs beside it, as it does beside an event loop. A scan that keeps
Python's lock while it waits for a page waits for ever.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.store import slow_pages


def scan(kind: str, folder: Path) -> str:
    command = [sys.executable, "-m", "tests.store.slow_pages", kind, str(folder)]
    try:
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return "it stands still"
    return result.stdout.strip() or result.stderr


@pytest.mark.skipif(not slow_pages.available(), reason="userfaultfd is not to be had here")
@pytest.mark.parametrize("kind", ["small", "large", "filtered"])
def test_a_scan_that_waits_for_pages_of_a_sorted_file_lets_the_other_threads_run(kind: str, tmp_path: Path) -> None:
    assert scan(kind, tmp_path) == "as it was appended"
