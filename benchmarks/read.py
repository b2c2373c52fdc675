"""How fast events come out again, as Python objects: `python -m benchmarks.read [--quick] [--json]`.

All subjects hold the same data: the same events in aggregates of 100, everything warm. The objects are the ones that
the peer's own client hands out, be it a class with fields or a plain tuple.
"""

from __future__ import annotations

import sys

from benchmarks.harness.measure import Plan, benchmark
from benchmarks.harness.report import Pace
from benchmarks.harness.subject import Subject, Workload

EVENTS_QUICK = 60_000
EVENTS_FULL = 200_000

WORKLOADS = (
    Workload("read_aggregate_100", "replay one aggregate of 100 events", "replays/s", smallest=10),
    Workload("read_all", "read everything", "ev/s", smallest=1),
)


def _fill(subject: Subject, quick: bool) -> None:
    subject.fill(EVENTS_QUICK if quick else EVENTS_FULL)


PLAN = Plan(
    name="read",
    description="Read rates side by side with the peers that are installed.",
    workloads=WORKLOADS,
    quick=Pace(rounds=9, turn_s=0.2, total_s=36.0),
    full=Pace(rounds=15, turn_s=1.0, total_s=900.0),
    prepare=_fill,
)

if __name__ == "__main__":
    sys.exit(benchmark(PLAN))
