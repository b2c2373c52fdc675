"""Searches histories of replication for one that breaks a promise: `python -m tests.cluster.simulate --seeds 10000`."""

from __future__ import annotations

import argparse
import time

from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.history import run, trace


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories (default: %(default)s)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed (default: %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print every step")
    asked = parser.parse_args()
    if asked.trace:
        for seed in range(asked.first, asked.first + asked.seeds):
            print("\n".join(trace(seed)))
        return 0
    broken = acknowledged = 0
    began = time.monotonic()
    for seed in range(asked.first, asked.first + asked.seeds):
        try:
            acknowledged += sum(map(len, run(seed).checks.records))
        except Broken as error:
            broken += 1
            print(error, flush=True)
    print(f"{asked.seeds} histories, {acknowledged} records acknowledged, {broken} broken, {time.monotonic() - began:.0f} s")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
