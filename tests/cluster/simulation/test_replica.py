"""Single steps of the replica that a history rarely shows."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from eventstore_cluster.replica.actions import Begin, End, ReadRegistry, Send, Transact
from eventstore_cluster.replica.epochs import LastEpoch, Tail
from eventstore_cluster.replica.frames import Fetch, Join, Joined
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.registry_state import Leader, Member, Seen, ShardState
from eventstore_cluster.replica.replica import HANDED_OVER, Replica

ME = Leader(Member("n1", "i1"), "run1", "127.0.0.1:1")
OTHER = Member("n2", "i2")


def state(epoch: int = 1, *members: Member) -> ShardState:
    return ShardState(epoch, frozenset(members or (ME.member, OTHER)), ("n1", "n2"), 2)


def replica(*logs: Tail, earlier: tuple[str, ...] = ()) -> Replica:
    nonces = count()
    logs = logs or (Tail(),)
    return Replica(
        ME, earlier, logs, tuple(0 for _ in logs), limits=Limits(), new_nonce=lambda: str(next(nonces)), now=0.0
    )  # fmt: skip


def test_a_log_with_a_later_epoch_than_the_registry_knows_ends_the_process_with_the_next_step() -> None:
    own = replica(Tail().grow(7, (1, 4200)))
    (end,) = own.saw(Seen(1, state(6), 1), 0.0)
    assert isinstance(end, End)
    assert "cluster lead --accept-loss" in end.reason
    assert own.tick(1.0, 10.0) == []  # it does nothing more


def test_a_member_of_the_set_is_elected_when_nobody_leads_and_begins_an_epoch() -> None:
    own = replica()
    own.tick(0.0, 10.0)
    (elect,) = own.saw(Seen(5, state(3), 4), 0.0)
    assert isinstance(elect, Transact)
    assert (elect.swap.revision, elect.swap.leader_revision, elect.swap.state.epoch) == (4, 0, 4)
    assert elect.swap.leads == ME
    assert own.answered(elect.swap.number, 6, 0.1) == [Begin(4)]


def test_a_replica_outside_the_set_or_without_a_lease_is_not_elected() -> None:
    outside = replica()
    outside.tick(0.0, 10.0)
    assert outside.saw(Seen(5, state(3, OTHER), 4), 0.0) == []
    unleased = replica()
    assert unleased.saw(Seen(5, state(3), 4), 0.0) == []


def test_an_election_without_an_answer_is_won_when_its_effect_is_seen() -> None:
    own = replica()
    own.tick(0.0, 10.0)
    (elect,) = own.saw(Seen(5, state(3), 4), 0.0)
    assert isinstance(elect, Transact)
    assert own.answered(elect.swap.number, None, 1.0) == [ReadRegistry()]
    assert own.saw(Seen(6, elect.swap.state, 6, ME, 6), 1.1) == [Begin(4)]


def test_an_earlier_incarnation_of_the_own_folder_is_replaced_in_the_set() -> None:
    own = replica(earlier=("i0",))
    (rename,) = own.saw(Seen(5, state(3, Member("n1", "i0"), OTHER), 4), 0.0)
    assert isinstance(rename, Transact)
    assert rename.swap.state.in_sync == {ME.member, OTHER}


def test_logs_are_cut_to_the_last_epoch_that_both_have() -> None:
    own = Tail().grow(1, (1, 5000)).grow(3, (1, 7000))
    leader = Tail().grow(1, (1, 6000)).grow(2, (2, 5000)).grow(4, (2, 6000))
    answer = leader.at_most(own.last.epoch)
    assert answer == LastEpoch(2, (2, 5000))
    cut = own.cut(own.common_end(answer))
    assert cut == Tail().grow(1, (1, 5000))
    assert cut.common_end(leader.at_most(cut.last.epoch)) == cut.end


def leader_of_two(successor: str | None) -> tuple[Replica, Seen]:
    """Returns an open leader whose follower on n2 has all, at second 0.1, and what it sees of the registry."""
    own = replica()
    own.tick(0.0, 10.0)
    (elect,) = own.saw(Seen(5, state(3), 4), 0.0)
    assert isinstance(elect, Transact)
    own.answered(elect.swap.number, 6, 0.0)
    own.begun((Tail(),), ((1, 100),), 0.0)
    own.durable(((1, 100),), 0.0)
    own.received(1, Join(1, OTHER, "r2", ME.run, (LastEpoch(0, (0, 0)),)), 0.1)
    own.received(1, Fetch(1, 4, ((1, 100),), (0,)), 0.1)
    return own, Seen(7, replace(elect.swap.state, successor=successor), 7, ME, 6)


def test_a_leader_hands_over_to_a_member_that_keeps_up_and_reads_nothing_meanwhile() -> None:
    own, seen = leader_of_two("n2")
    assert own.may_read(0.2)
    (yields,) = own.saw(seen, 0.2)
    assert isinstance(yields, Transact)
    assert (yields.swap.yields, yields.swap.revision, yields.swap.leader_revision) == (True, 7, 6)
    assert not own.may_read(0.2)
    assert own.answered(yields.swap.number, 8, 0.3) == [End(HANDED_OVER)]


def test_a_leader_whose_hand_over_is_refused_reads_again() -> None:
    own, seen = leader_of_two("n2")
    (yields,) = own.saw(seen, 0.2)
    assert isinstance(yields, Transact)
    assert own.answered(yields.swap.number, None, 0.3) == [ReadRegistry()]
    assert not own.may_read(0.4)  # it may have been applied
    own.saw(replace(seen, at=9, revision=9, state=replace(seen.state, successor=None)), 0.5)
    assert own.may_read(0.5)


@pytest.mark.parametrize(("successor", "now"), [(None, 0.2), ("n1", 0.2), ("n3", 0.2), ("n2", 1.2)])
def test_nothing_is_handed_over_unasked_nor_to_itself_to_a_stranger_or_to_one_that_does_not_keep_up(
    successor: str | None, now: float
) -> None:
    own, seen = leader_of_two(successor)
    own.grown(((1, 200),), 0.2)
    assert own.saw(seen, now) == []


def test_a_join_that_comes_before_the_log_is_open_is_answered_when_it_is() -> None:
    own = replica()
    own.tick(0.0, 10.0)
    (elect,) = own.saw(Seen(5, state(3), 4), 0.0)
    assert isinstance(elect, Transact)
    own.answered(elect.swap.number, 6, 0.0)
    join = Join(1, OTHER, "r2", ME.run, (LastEpoch(0, (0, 0)),))
    for connection in (1, 2):
        assert own.received(connection, join, 0.1) == []
    own.disconnected(1, 0.1)
    answers = own.begun((Tail(),), ((1, 100),), 0.2)
    assert answers == [Send(2, Joined(1, 1, 4, (LastEpoch(0, (0, 0)),)))]
