"""Has the wall clock of a process jump: with this folder in PYTHONPATH, it is ahead by the seconds in the file JUMPING_CLOCK.

Python loads this before anything else. CLOCK_MONOTONIC and CLOCK_BOOTTIME are the machine's own, as when an operator sets its
clock. What C reads by itself (datetime) does not jump.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_FILE: Final = Path(os.environ["JUMPING_CLOCK"])
_time, _time_ns, _gettime, _gettime_ns = time.time, time.time_ns, time.clock_gettime, time.clock_gettime_ns


def _ahead_s() -> int:
    return int(_FILE.read_text())


def _clock_gettime(clock: int) -> float:
    return _gettime(clock) + (_ahead_s() if clock == time.CLOCK_REALTIME else 0)


def _clock_gettime_ns(clock: int) -> int:
    return _gettime_ns(clock) + (_ahead_s() * 1_000_000_000 if clock == time.CLOCK_REALTIME else 0)


time.time = lambda: _time() + _ahead_s()
time.time_ns = lambda: _time_ns() + _ahead_s() * 1_000_000_000
time.clock_gettime, time.clock_gettime_ns = _clock_gettime, _clock_gettime_ns
