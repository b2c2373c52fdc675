"""How fast events go in: `python -m benchmarks.append [--quick] [--json]`.

Every append is durable before it is acknowledged, conditional on its aggregate's version and, as far as the subject
can, deduplicated by its command id. What a peer leaves out is said at the head of its module.
"""

from __future__ import annotations

import sys

from benchmarks.harness.measure import Plan, benchmark
from benchmarks.harness.report import Pace
from benchmarks.harness.subject import Workload

WORKLOADS = (
    Workload("append_lockstep_1", "1 client, 1 event per append, lock-step", "ev/s", smallest=20),
    Workload("append_lockstep_64", "64 clients, 1 event per append, lock-step", "ev/s", smallest=4),
    Workload("append_pipelined_256", "one connection, 256 in flight, 1 event per append", "ev/s", smallest=256),
    Workload("append_batch_100", "1 client, 100 events per append", "ev/s", smallest=2),
    Workload("append_batch_1000_x16", "16 clients, 1,000 events per append", "ev/s", smallest=1),
)

PLAN = Plan(
    name="append",
    description="Append rates side by side with the peers that are installed.",
    workloads=WORKLOADS,
    quick=Pace(rounds=9, turn_s=0.2, total_s=36.0),
    full=Pace(rounds=15, turn_s=1.0, total_s=900.0),
)

if __name__ == "__main__":
    sys.exit(benchmark(PLAN))
