"""Runs the tests that failed in a run again, alone, to tell a flaky test from a broken one.

A run has ten thousand tests, of which hundreds start servers, kill them and wait for them, four at a time on two
processors. A race of one test says nothing of the others. At most `FLAKY_MAX` tests may fail in a run, and each of
them must pass `TIMES` times alone; they are printed as flaky, and want to be mended all the same. With more of them
the run has failed, whatever they do alone.

The exit code is 0 if all that failed passes alone, 1 otherwise. Run by `make test`, after pytest has ended with 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
FLAKY_MAX = 3
TIMES = 2


def main() -> int:
    tests = sorted(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else []
    if not tests:
        return 1
    passed = True
    for time in range(1, TIMES + 1):
        print(f"The failed tests run alone, one after another, {time} of {TIMES}:", flush=True)
        passed &= subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]).returncode == 0
    for test in tests:
        print(f"FAILED in the run, {'passed' if passed else 'or another of them failed'} alone: {test}")
    if len(tests) > FLAKY_MAX:
        print(f"{len(tests)} tests failed in the run; up to {FLAKY_MAX} may be flaky")
    return 0 if passed and len(tests) <= FLAKY_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
