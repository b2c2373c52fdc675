"""A program that cannot be forked: its user may have no more processes."""

from __future__ import annotations

import os
import resource

if os.getuid() == 0:  # may have as many as it likes
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def main() -> int:
    raise AssertionError("no process is made")
