"""What a leader does about a split: it gives away what it has held back, when that is committed, or ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from eventstore_cluster.registry.registry import RegistryEntry, RegistrySnapshot
from eventstore_cluster.registry.replica_keys import CloneKey, ReplicaKey
from eventstore_cluster.registry.replicated_keys import clones_of
from eventstore_cluster.replica.actions import Action, EndProcess, HoldBack, Transact
from eventstore_cluster.replica.leading import Splitting
from eventstore_cluster.replica.limits import Limits, limits_for
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replica.registrar import Registrar
from eventstore_cluster.replica.registry_state import Clone, Pause, Seat, Seen, ShardState

NODES = ("n1", "n2")
STATE = ShardState(3, frozenset(Seat(node, "i") for node in NODES), NODES, 2, Seat("n1", "i"), split=(4,))


def ends(file: int, size: int = 100) -> LogEnds:
    return (file, size), (1, 0), (3, 1)


class Leader:
    """It has written files 1 and 2; all nodes have a clone of file 1."""

    def __init__(self, limits: Limits | None = None) -> None:
        nonces = map(str, count())
        self.registrar = Registrar(lambda: next(nonces))
        self.splitting = Splitting(self.registrar, limits or Limits())
        self.written = self.committed = ends(2)
        self._at = 0
        self.sees(STATE)

    def sees(self, state: ShardState, clones_of: tuple[int, ...] | None = None) -> None:
        self._at += 1
        of = state.split if clones_of is None else clones_of
        clones = frozenset(Clone(shard, Seat(node, "c"), 1) for shard in of for node in NODES)
        assert self.registrar.saw(Seen(self._at, state, self._at, clones=clones))

    def sees_clones(self, clones: frozenset[Clone]) -> None:
        self._at += 1
        assert self.registrar.saw(Seen(self._at, STATE, self._at, clones=clones))

    def does(self, now: float = 0.0) -> list[Action]:
        return self.splitting.next_step(self.written, self.committed, now, may_begin=True)

    def holds_back(self) -> None:
        """Has the leader hold back, and begin file 3, whose first record is committed."""
        assert self.does() == [HoldBack((4,))]
        self.written = ends(3)
        self.splitting.held_back(2)
        assert self.does() == [], "the first record of the new file may be taken back yet"
        self.committed = ends(3)


def test_slots_are_given_away_once_the_record_that_follows_is_committed() -> None:
    leader = Leader()
    leader.holds_back()
    (action,) = leader.does()
    assert isinstance(action, Transact)
    swap = action.swap
    assert swap.gifts == ((4, frozenset(Seat(node, "c") for node in NODES)),)
    assert swap.state.split == ()
    assert leader.does() == [], "one at a time"
    leader.registrar.answered(swap.number, None)
    assert leader.does() == [], "it may still apply (R2)"
    leader.sees(swap.state)
    assert leader.does() == []
    assert not leader.splitting.holding


def test_a_split_waits_for_clones_of_all_that_are_in_sync() -> None:
    leader = Leader()
    leader.sees(STATE, clones_of=())
    assert leader.does() == []
    leader.sees(STATE)
    assert leader.does() == [HoldBack((4,))]


def test_a_split_that_is_paused_holds_nothing_back_and_one_that_already_does_is_carried_out() -> None:
    leader = Leader()
    leader.sees(replace(STATE, pause=Pause(True, "ann")))
    assert leader.does() == []
    leader.sees(replace(STATE, pause=Pause(False, "ann")))
    leader.holds_back()
    leader.sees(replace(STATE, pause=Pause(True, "ben")))
    (action,) = leader.does()
    assert isinstance(action, Transact)
    assert (action.swap.state.splits, action.swap.state.pause) == (1, Pause()), "the next one is not paused"


def test_a_split_of_small_files_begins_when_clones_lack_few_of_them_as_they_come_faster_than_they_are_sorted() -> None:
    leader = Leader(limits_for(64 * 1024))
    lacking = 16 * 1024 // 64
    leader.written = leader.committed = ends(3 + lacking)
    assert leader.does() == [], "files 2 to 258 are 257"
    leader.written = leader.committed = ends(2 + lacking)
    assert leader.does() == [HoldBack((4,))]
    leader = Leader(limits_for(512 * 1024 * 1024))
    leader.written = leader.committed = ends(3)
    assert leader.does() == [], "a new shard would read for long before it serves"


def test_a_split_of_small_files_waits_for_a_clone_that_is_stuck_though_it_lacks_few_of_them() -> None:
    leader = Leader(limits_for(64 * 1024))

    def clones(stuck: str) -> frozenset[Clone]:
        of_n2 = ReplicaKey("c", "run", 0, (), clone=CloneKey(0, stuck))
        keys = {"replica/4/n1": ReplicaKey("c", "run", 0, (), clone=CloneKey(1)), "replica/4/n2": of_n2}
        return clones_of(STATE, RegistrySnapshot(9, {name: RegistryEntry(key.value(), 9) for name, key in keys.items()}))

    leader.sees_clones(clones("Operation not permitted"))
    assert leader.does() == [], "slots that it got would not be served"
    leader.sees_clones(clones(""))
    assert leader.does() == [HoldBack((4,))]


@pytest.mark.parametrize("then", [(), (5,), (5, 6)], ids=["nothing", "the same", "more"])
def test_a_leader_ends_if_what_it_holds_slots_back_for_was_called_off_whatever_was_asked_for_since(
    then: tuple[int, ...],
) -> None:
    leader = Leader()
    leader.holds_back()
    leader.sees(replace(STATE, split=then))
    (action,) = leader.does()
    assert isinstance(action, EndProcess), "the new shards may get slots that were written to after the last file that they get"


def test_a_leader_ends_if_it_cannot_give_away_what_it_holds_back() -> None:
    leader = Leader()
    leader.holds_back()
    leader.sees(STATE, clones_of=())
    assert leader.does(1.0) == []
    assert isinstance(leader.does(Limits().split_max_s + 1.0)[0], EndProcess)
