"""Metrics of the leader of a shard: who is in sync with it, and how far the others are behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from eventstore.metrics import LabelledMetric, Metric, gauge, text
from eventstore.server.prometheus import labelled_family
from eventstore_cluster.registry.etcd.lease import now
from eventstore_cluster.replica.replica import Replica


def _behind(replica: Replica) -> str:
    lags = replica.lags(now())
    return json.dumps({lag.node: {"seconds": round(lag.seconds, 3), "bytes": lag.size} for lag in lags})


REPLICA_METRICS: Final[tuple[Metric[Replica], ...]] = (
    gauge("replica_epoch", "how often the shard has had a new leader", lambda replica: replica.registrar.state.epoch),
    gauge(
        "replicas_in_sync", "replicas that hold everything that was acknowledged, with the leader",
        lambda replica: len(replica.level_members(now())),
        "it is less than `replicas_wanted`: a node is away, or too slow",
    ),
    gauge("replicas_wanted", "replicas that the shard is to have", lambda replica: len(replica.registrar.state.replicas)),
    gauge(
        "replicas_needed", "replicas that must be in sync; with fewer, appends are refused",
        lambda replica: replica.registrar.state.in_sync_min,
    ),
    gauge(
        "replica_lag_microseconds", "for how long the slowest replica in sync has not been level with the leader",
        lambda replica: int(max((lag.seconds for lag in replica.lags(now())), default=0.0) * 1_000_000),
        "it grows beyond a second: that replica is taken out of the set after five",
    ),
    text("replicas_behind", "how far each other replica is behind the leader, as JSON", lambda replica: _behind(replica)),
)  # fmt: skip

REPLICA_LABELLED: Final = (
    LabelledMetric("replica_behind_seconds", "gauge", "how long ago the replica was level with the leader", ("node",)),
    LabelledMetric("replica_behind_bytes", "gauge", "bytes of its current event file that it has not stored", ("node",)),
)


class ReplicaCollector(Collector):
    """Exports the lag of each other replica, labelled with its node."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def collect(self) -> Iterator[Family]:
        seconds, size = (labelled_family(metric) for metric in REPLICA_LABELLED)
        for lag in self._replica.lags(now()):
            seconds.add_metric([lag.node], lag.seconds)
            size.add_metric([lag.node], float(lag.size))
        yield from (seconds, size)
