"""Metrics of the leader of a shard: who is in sync with it, and how far the others are behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from eventstore.metrics import LabelledCollector, LabelledFigures, LabelledMetric, Metric, gauge, text
from eventstore_cluster.registry.etcd.lease import now
from eventstore_cluster.registry.pauses import is_paused_alone
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replication.leadership import ShardLeadership


@dataclass(frozen=True, slots=True)
class Leads:
    """The source of the metrics."""

    replica: Replica
    leadership: ShardLeadership

    @property
    def paused(self) -> int:
        seen = self.replica.registrar.seen
        return int(seen is not None and (seen.pause_all.on or is_paused_alone(seen.state)))

    def behind(self) -> str:
        found = {
            lag.node: {
                "seconds": round(lag.seconds, 3),
                "bytes": self.leadership.bytes_lacking(lag),
                "silent_seconds": None if lag.silent_s is None else round(lag.silent_s, 3),
            }
            for lag in self.leadership.lags()
        }
        return json.dumps(found)


REPLICA_METRICS: Final[tuple[Metric[Leads], ...]] = (
    gauge("replica_epoch", "how often the shard has had a new leader", lambda leads: leads.replica.registrar.state.epoch),
    gauge(
        "replicas_in_sync",
        "replicas that hold everything that was acknowledged, with the leader",
        lambda leads: len(leads.replica.level_members(now())),
        "it is less than `replicas_wanted`: a node is away, or too slow",
    ),
    gauge("replicas_wanted", "replicas that the shard is to have", lambda leads: len(leads.replica.registrar.state.replicas)),
    gauge(
        "replicas_needed",
        "replicas that must be in sync; with fewer, appends are refused",
        lambda leads: leads.replica.registrar.state.in_sync_min,
    ),
    gauge(
        "replica_lag_microseconds",
        "for how long the slowest replica in sync has not been level with the leader",
        lambda leads: int(max((lag.seconds for lag in leads.leadership.lags() if lag.in_sync), default=0.0) * 1_000_000),
        "it grows beyond a second: appends wait for that replica, which is taken out of the set after five",
    ),
    gauge(
        "moves_paused",
        "1: moves are paused, those of all shards, or what is wanted of this one",
        lambda leads: leads.paused,
        "it stays 1: `eventstore cluster status` says by whom, `eventstore cluster resume` continues",
    ),
    gauge(
        "log_bytes",
        "bytes of the events of the shard that a new replica has to copy",
        lambda leads: leads.leadership.bytes_of_events(),
    ),
    text(
        "replicas_behind",
        "how far each other replica is behind the leader, and since when it has asked for nothing, as JSON",
        lambda leads: leads.behind(),
    ),
)

REPLICA_LABELLED: Final = (
    LabelledMetric("replica_behind_seconds", "gauge", "how long ago the replica was level with the leader", ("node",)),
    LabelledMetric("replica_behind_bytes", "gauge", "bytes of events that it has not stored, while it is connected", ("node",)),
)


class ReplicaCollector(LabelledCollector):
    """Exports the lag of each other replica, labelled with its node."""

    declared = REPLICA_LABELLED

    def __init__(self, leadership: ShardLeadership) -> None:
        self._leadership = leadership

    def collect(self) -> Iterator[LabelledFigures]:
        seconds, size = (LabelledFigures(metric) for metric in REPLICA_LABELLED)
        for lag in self._leadership.lags():
            seconds.add([lag.node], lag.seconds)
            if (lacking := self._leadership.bytes_lacking(lag)) is not None:
                size.add([lag.node], float(lacking))
        yield from (seconds, size)
