"""What is done to a shard through etcd is in its audit trail."""

from __future__ import annotations

from dataclasses import replace

from eventstore_cluster.replica.registry_state import ShardState
from eventstore_cluster.replication.audited_state import changes

STATE = ShardState(3, frozenset(), ("n1", "n2"), 2)


def test_what_a_person_asked_for_is_a_change_and_what_happens_by_itself_is_none() -> None:
    assert changes(STATE, replace(STATE, epoch=4, nonce="x", history=("y",))) == {}
    assert changes(STATE, replace(STATE, successor="n2")) == {"successor": "n2"}
    assert changes(STATE, replace(STATE, wanted=("n1", "n3"))) == {"replicas_wanted": "n1, n3"}
    assert changes(STATE, replace(STATE, replicas=("n1", "n3"))) == {"replicas": "n1, n3"}
    assert changes(STATE, replace(STATE, generation=2)) == {"generation": 2}
    assert changes(STATE, replace(STATE, split=(7, 8))) == {"split": "7, 8"}
    assert changes(replace(STATE, split=(7,)), replace(STATE, splits=1)) == {"split": "", "splits": 1}
