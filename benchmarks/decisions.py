"""How fast decisions by query are committed: `python -m benchmarks.decisions [--quick] [--json]`.

A plain append, and one that is conditional on a query by two tags, of which all events have one: nobody else's event passes it,
so none is refused.
"""

from __future__ import annotations

import sys

from benchmarks.harness.measure import Plan, benchmark
from benchmarks.harness.report import Pace
from benchmarks.harness.subject import Workload

WORKLOADS = (
    Workload("append_lockstep_1", "1 client, 1 event per append, lock-step", "ev/s", smallest=20),
    Workload("decide_lockstep_1", "the same on a query by two tags", "ev/s", smallest=20),
    Workload("append_lockstep_64", "64 clients, 1 event per append, lock-step", "ev/s", smallest=4),
    Workload("decide_lockstep_64", "the same on a query by two tags", "ev/s", smallest=4),
)

PLAN = Plan(
    name="decisions",
    description="Rates of conditional commits side by side with the peers that are installed.",
    workloads=WORKLOADS,
    quick=Pace(rounds=9, turn_s=0.2, total_s=36.0),
    full=Pace(rounds=15, turn_s=1.0, total_s=900.0),
)

if __name__ == "__main__":
    sys.exit(benchmark(PLAN))
