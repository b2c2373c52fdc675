"""Searches histories of replication for one that breaks a promise: `python -m tests.cluster.simulate --seeds 10000`."""

from __future__ import annotations

import argparse
import time

from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.history import run, trace
from tests.cluster.simulation.mistakes import MISTAKES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories (default: %(default)s)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed (default: %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print every step")
    parser.add_argument("--loses-registry", action="store_true", help="the registry is lost, or set back, in every history")
    parser.add_argument("--accepts-loss", action="store_true", help="a person accepts loss, in every history")
    parser.add_argument("--real-logs", action="store_true", help="events are written to real logs on the simulated disk")
    parser.add_argument("--splits", action="store_true", help="shards are split, in every history")
    parser.add_argument("--mistakes", action="store_true", help="say at which seed each planted mistake is found, and no more")
    asked = parser.parse_args()
    if asked.mistakes:
        for each in MISTAKES:
            print(f"{each.rule} {each.what}: found at {each.found_at()}, looked for from {each.first}", flush=True)
        return 0
    kinds = ("loses_registry", "accepts_loss", "real_logs", "splits")
    kind = {name: getattr(asked, name) for name in kinds}
    if asked.trace:
        for seed in range(asked.first, asked.first + asked.seeds):
            print("\n".join(trace(seed, **kind)))
        return 0
    broken = acknowledged = 0
    began = time.monotonic()
    for seed in range(asked.first, asked.first + asked.seeds):
        try:
            acknowledged += sum(map(len, run(seed, **kind).checks.records))
        except Broken as error:
            broken += 1
            print(error, flush=True)
    print(f"{asked.seeds} histories, {acknowledged} records acknowledged, {broken} broken, {time.monotonic() - began:.0f} s")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
