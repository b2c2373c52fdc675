"""How fast messages go in and come out, over TCP: `python -m benchmarks.broker [--quick] [--json]`.

256-byte messages over one connection, four queues. Durable is who syncs before it acknowledges. What a message costs inside the
broker says `benchmarks.message_log`; how it behaves under waiting and slow consumers, `benchmarks.consumers`.
"""

from __future__ import annotations

import sys

from benchmarks.harness.catalogue import Catalogue
from benchmarks.harness.measure import Plan, benchmark
from benchmarks.harness.report import Pace
from benchmarks.harness.subject import Subject, Workload

MESSAGES_QUICK = 50_000
MESSAGES_FULL = 200_000

WORKLOADS = (
    Workload("send_lockstep", "send one by one, each waiting for its answer", "msg/s", smallest=10),
    Workload("send_pipelined", "send, 256 in flight", "msg/s", smallest=256),
    Workload("send_many", "send, 4,096 in one call", "msg/s", smallest=4_096),
    Workload("receive", "receive as objects, as many at once as there are", "msg/s", smallest=1),
    Workload("receive_each", "receive as objects, one by one", "msg/s", smallest=1),
    Workload("receive_raw", "receive as raw batches", "msg/s", smallest=1),
)


def _fill(subject: Subject, quick: bool) -> None:
    subject.fill(MESSAGES_QUICK if quick else MESSAGES_FULL)


def _durable() -> Subject:
    from benchmarks.ours.broker import OurBroker

    return OurBroker()


def _async() -> Subject:
    from benchmarks.ours.broker import OurBroker

    return OurBroker(durable=False)


def _redis() -> Subject:
    from benchmarks.peers.redis_queue import RedisQueues

    return RedisQueues()


def _jetstream() -> Subject:
    from benchmarks.peers.jetstream import JetStream

    return JetStream()


CATALOGUE: Catalogue = {"eventstore": _durable, "async": _async, "redis": _redis, "jetstream": _jetstream}

PLAN = Plan(
    name="broker",
    description="Rates of sending and receiving side by side with the peers that are installed.",
    workloads=WORKLOADS,
    quick=Pace(rounds=9, turn_s=0.2, total_s=36.0),
    full=Pace(rounds=15, turn_s=1.0, total_s=600.0),
    prepare=_fill,
    catalogue=CATALOGUE,
    ours=("eventstore", "async"),
    build="benchmarks.ours.broker:OurBroker",
)

if __name__ == "__main__":
    sys.exit(benchmark(PLAN))
