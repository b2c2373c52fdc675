"""Why a shard has its leader: what is read from the registry, and what a node counts."""

from __future__ import annotations

from typing import Any

from eventstore_cluster.nodes.leader_changes import LeaderChange, LeaderChanges, leader_change
from eventstore_cluster.registry.registry import RegistryEntry, RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import LeftKey, leader_value
from eventstore_cluster.replica.registry_state import Leader, Seat

LEADS = leader_value(Leader(Seat("n2", "i"), "run"), 1_700_000_000)
SILENT = "the last leader could not say why: its node was killed, hung, or was cut off from etcd"


def seen(**keys: Any) -> RegistrySnapshot:
    return RegistrySnapshot(1, {f"{name}/0": RegistryEntry(value, 1) for name, value in keys.items()})


def change(epoch: int, **keys: Any) -> LeaderChange:
    return leader_change(0, epoch, seen(**keys))


def test_a_leader_that_said_why_it_left_explains_the_next_one_only() -> None:
    left = LeftKey(4, "n1", "it was stopped").value()
    assert change(5, leader=LEADS, left=left) == LeaderChange(5, "n2", 1_700_000_000, "n1", "it was stopped")
    assert change(5, leader=LEADS, left=left).text == "n1: it was stopped"
    assert change(6, leader=LEADS, left=left).text == SILENT
    assert change(4, left=left).text == "n1: it was stopped"  # nobody leads yet
    assert change(4, leader=LEADS, left=left).text == SILENT
    assert change(5, left=left) == LeaderChange(5, None, None, None, None)


def test_the_first_leader_of_a_shard_has_a_reason_too() -> None:
    assert change(1, leader=LEADS).text == "the shard is new"
    assert change(0).text is None


def test_what_another_version_wrote_is_left_out() -> None:
    older = {name: value for name, value in LEADS.items() if name != "since"}
    assert change(2, leader=older).since is None
    for since in (-1, 10**12, "now", None):
        assert change(2, leader={**LEADS, "since": since}).since is None
    assert change(2, leader=LEADS, left={"epoch": 1, "why": "?"}).left is None


def test_a_reason_is_cut_where_it_is_written() -> None:
    assert len(str(LeftKey(1, "n1", "x" * 1_000).value()["reason"])) == 200


def test_a_node_counts_the_elections_that_its_own_replicas_win_while_it_runs() -> None:
    changes = LeaderChanges("n2")
    silent, stopped = change(2, leader=LEADS), change(3, leader=LEADS, left=LeftKey(2, "n1", "it was stopped").value())
    changes.saw({0: silent})  # of an earlier process
    changes.saw({0: silent})
    assert list(changes.lines())[2:] == []
    changes.saw({0: stopped, 1: change(1, leader=LEADS)})
    changes.saw({0: stopped})
    changes.saw({0: change(4, leader=leader_value(Leader(Seat("n1", "i"), "run")))})
    full = LeftKey(4, "n1", 'the log cannot be written: no "space"').value()
    changes.saw({0: change(5, leader=LEADS, left=full)})
    assert list(changes.lines())[2:] == [
        'eventstore_shard_leader_changes_total{shard="0",reason="it was stopped"} 1',
        'eventstore_shard_leader_changes_total{shard="0",reason="the log cannot be written"} 1',
        'eventstore_shard_leader_changes_total{shard="1",reason="the shard is new"} 1',
    ]
