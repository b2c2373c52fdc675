"""What the leader of a shard says in figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.registry_state import Leader, Pause, Seat, Seen, ShardState
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replication.replica_metrics import REPLICA_METRICS, Leads


def test_a_pause_of_all_moves_or_of_what_is_wanted_of_the_shard_is_a_figure() -> None:
    own = Replica(Leader(Seat("n1", "a"), "run1"), (), (LogTail(),), (0,), limits=Limits(), new_nonce=lambda: "n", now=0.0)
    (figure,) = [each for each in REPLICA_METRICS if each.name == "moves_paused"]
    shard = Seen(1, ShardState(1, frozenset(), ("n1", "n2"), 1), 1)

    def paused(pause_all: bool = False, **state: Any) -> object:
        own.registrar.seen = replace(shard, pause_all=Pause(pause_all), state=replace(shard.state, **state))
        return figure.read(Leads(own, cast("Any", None)))  # which this one does not read

    assert paused() == 0
    assert paused(pause_all=True) == 1, "what is asked for later waits, too"
    assert paused(pause=Pause(True), wanted=("n1",)) == 1
    assert paused(pause=Pause(True), split=(2,)) == 1
    assert paused(pause=Pause(True)) == 0, "it was taken back or done"
    assert paused(wanted=("n1",)) == 0
