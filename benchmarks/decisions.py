"""How fast decisions by query are committed: `python -m benchmarks.decisions [--quick] [--json] [--stored N]`.

A plain append, and one that is conditional on a query by two tags, of which all events have one: nobody else's event passes it,
so none is refused. A commit of two aggregates, beside two appends in one call. Then decisions once more, and a read of 100
events by their tag, in a store of N more events (10,000 if nothing is said), of which a tenth have one tag.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.harness.measure import Plan, benchmark
from benchmarks.harness.report import Pace
from benchmarks.harness.subject import Stored, Workload

WORKLOADS = (
    Workload("append_lockstep_1", "1 client, 1 event per append, lock-step", "ev/s", smallest=20),
    Workload("decide_lockstep_1", "the same on a query by two tags", "ev/s", smallest=20),
    Workload("append_lockstep_64", "64 clients, 1 event per append, lock-step", "ev/s", smallest=4),
    Workload("decide_lockstep_64", "the same on a query by two tags", "ev/s", smallest=4),
    Workload("pair_in_one_batch", "1 client, 2 aggregates, two appends in one call", "pairs/s", smallest=20),
    Workload("pair_in_one_commit", "the same as one commit of both", "pairs/s", smallest=20),
    Workload("decide_lockstep_1_stored", "1 client, on a query by two tags, beside the stored events", "ev/s", smallest=20),
    Workload("decide_lockstep_64_stored", "64 clients, the same", "ev/s", smallest=4),
    Workload("read_tag_100", "read 100 of the stored events by a tag", "reads/s", smallest=10),
)

PLAN = Plan(
    name="decisions",
    description="Rates of conditional commits side by side with the peers that are installed.",
    workloads=WORKLOADS,
    quick=Pace(rounds=9, turn_s=0.2, total_s=36.0),
    full=Pace(rounds=15, turn_s=1.0, total_s=900.0),
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--stored", type=int, default=Stored.events)
    given, others = parser.parse_known_args()
    Stored.events = given.stored
    sys.exit(benchmark(PLAN, others))
