"""What is done to a shard through etcd is in its audit trail, with who asked for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from eventstore.security.audit import Details
from eventstore_cluster.replica.actions import Transact
from eventstore_cluster.replica.epochs import Tail
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.registry_state import Leader, Member, Pause, Seen, ShardState
from eventstore_cluster.replica.replica import Replica
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
    assert replace(forced, successor="n2").elected(one, both).leader_by == "cara", "whoever is asked for before that"


@pytest.mark.parametrize("answered", [True, False])
def test_what_is_asked_for_before_the_log_is_open_is_not_the_election_but_a_change_since(answered: bool) -> None:
    me, nonces = Leader(Member("n1", "a"), "run1", "127.0.0.1:1"), count()
    own = Replica(me, (), (Tail(),), (0,), limits=Limits(), new_nonce=lambda: str(next(nonces)), now=0.0)  # fmt: skip
    own.tick(0.0, 10.0)
    (elect,) = own.saw(replace(SEEN, state=replace(STATE, in_sync=frozenset({me.member}), in_sync_min=1)), 0.0)
    assert isinstance(elect, Transact)
    own.answered(elect.swap.number, 10 if answered else None, 0.1)
    asked = replace(elect.swap.state.asked_by("dora"), wanted=("n1", "n3"), successor="n2", leader_by="dora")
    own.saw(Seen(11, asked, 11, me, 10, pause_all=Pause(True, "emil")), 0.2)
    own.begun((Tail(),), ((1, 100),), 0.3)
    assert own.leading is not None
    began_with, seen = own.leading.began_with, own.registrar.seen
    assert began_with is not None
    assert seen is not None
    record = elected(began_with, "n1")
    assert (record.who, record.details["epoch"], record.details["replicas_wanted"], record.details["asked_by"]) == (
        "", 4, None, None,
    )  # fmt: skip
    assert [(each.who, each.details) for each in changes(began_with, seen)] == [
        ("dora", {"replicas_wanted": "n1, n3", "successor": "n2"}),
        ("emil", {"moves_paused": True}),
    ]


def test_the_first_leader_of_a_new_shard_began_with_what_the_gift_of_its_slots_left() -> None:
    """It proposed nothing: its parent's leader made it lead."""
    me = Leader(Member("n1", "a"), "run1", "127.0.0.1:1")
    own = Replica(me, (), (Tail(),), (0,), limits=Limits(), new_nonce=lambda: "0", now=0.0)
    own.tick(0.0, 10.0)
    given = Seen(7, replace(STATE, in_sync=frozenset({me.member}), in_sync_min=1, leader=me.member), 7, me, 7)
    own.saw(given, 0.1)
    own.begun((Tail(),), ((1, 100),), 0.2)
    assert own.leading is not None
    assert own.leading.began_with == given
