"""What is done to a shard through etcd is in its audit trail, with who asked for it."""

from __future__ import annotations

from dataclasses import replace

from eventstore.security.audit import Details
from eventstore_cluster.replica.registry_state import Member, Pause, Seen, ShardState
from eventstore_cluster.replication.audited_state import CHANGED, ELECTED, changes, elected

STATE = ShardState(3, frozenset(), ("n1", "n2"), 2, leader=Member("n1", "a"), by="ann", leader_by="ben")
SEEN = Seen(9, STATE, 8)


def changed(before: ShardState, after: ShardState) -> list[tuple[str, Details]]:
    """Returns who has changed what."""
    found = changes(replace(SEEN, state=before), replace(SEEN, state=after))
    assert {(each.what, each.origin) for each in found} <= {(CHANGED, "etcd")}
    return [(each.who, each.details) for each in found]


def test_what_a_person_asked_for_is_a_change_and_what_happens_by_itself_is_none() -> None:
    assert changed(STATE, replace(STATE, epoch=4, nonce="x", history=("y",))) == []
    assert changed(STATE, replace(STATE, successor="n2")) == [("ben", {"successor": "n2"})]
    assert changed(STATE, replace(STATE, wanted=("n1", "n3"))) == [("ann", {"replicas_wanted": "n1, n3"})]
    assert changed(STATE, replace(STATE, replicas=("n1", "n3"))) == [("ann", {"replicas": "n1, n3"})]
    assert changed(STATE, replace(STATE, generation=2)) == [("ben", {"generation": 2})]
    assert changed(STATE, replace(STATE, split=(7, 8))) == [("ann", {"split": "7, 8"})]
    assert changed(replace(STATE, split=(7,)), replace(STATE, splits=1)) == [("ann", {"split": "", "splits": 1})]


def test_each_who_asked_for_something_has_a_record_of_that() -> None:
    named = replace(STATE, wanted=("n2",), successor="n2", pause=Pause(True, "cara"))
    assert changed(STATE, named) == [
        ("ann", {"replicas_wanted": "n2"}),
        ("ben", {"successor": "n2"}),
        ("cara", {"paused": True}),
    ]
    (paused,) = changes(SEEN, replace(SEEN, pause_all=Pause(True, "dora")))
    assert (paused.who, paused.details) == ("dora", {"moves_paused": True})


def test_an_election_names_who_asked_for_it_and_who_for_what_is_not_done() -> None:
    led = elected(SEEN, "n1")
    assert (led.what, led.who, led.details["node"], led.details["epoch"]) == (ELECTED, "ben", "n1", 3)
    assert led.details["asked_by"] is None, "nothing is wanted that is not done"
    assert elected(replace(SEEN, state=replace(STATE, wanted=("n2",))), "n1").details["asked_by"] == "ann"
    assert elected(replace(SEEN, state=replace(STATE, split=(7,))), "n1").details["asked_by"] == "ann"


def test_an_election_that_was_not_asked_for_names_no_one() -> None:
    one, two = Member("n1", "a"), Member("n2", "b")
    both = frozenset({one, two})
    asked = replace(STATE, successor="n2", leader_by="ben")
    assert asked.elected(two, both).leader_by == "ben"
    assert asked.elected(one, both).leader_by == "", "another one than was asked for"
    assert STATE.elected(two, both).leader_by == "", "whoever asked for the leader before"
    forced = replace(STATE, leader=None, leader_by="cara")
    assert (after := forced.elected(one, both)).leader_by == "cara"
    assert (after.epoch, after.leader, after.in_sync, after.successor) == (4, one, both, None)
