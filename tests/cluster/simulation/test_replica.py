"""Single steps of the replica that a history rarely shows."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from eventstore_cluster.replica.actions import (
    Action,
    Begin,
    BeginFile,
    CommitTo,
    CutTo,
    EndProcess,
    Follow,
    ReadRegistry,
    SendFrame,
    Serve,
    Store,
    Transact,
)
from eventstore_cluster.replica.epochs import LastEpoch, LogTail
from eventstore_cluster.replica.following import Following
from eventstore_cluster.replica.frames import Data, Fetch, FetchAhead, Joined, JoinFrame, NotLeading, Stored
from eventstore_cluster.replica.leading import HandingOver, Moving, Sessions
from eventstore_cluster.replica.limits import Limits, limits_for
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replica.registrar import Registrar
from eventstore_cluster.replica.registry_state import HISTORY_MAX, Known, Leader, Pause, Seat, Seen, ShardState
from eventstore_cluster.replica.replica import HANDED_OVER, Replica

ME = Leader(Seat("n1", "i1"), "run1", "127.0.0.1:1")
OTHER = Seat("n2", "i2")
PAUSED = Pause(True, "ann")


def state(epoch: int = 1, *members: Seat) -> ShardState:
    return ShardState(epoch, frozenset(members or (ME.member, OTHER)), ("n1", "n2"), 2)


def replica(*logs: LogTail, earlier: tuple[str, ...] = ()) -> Replica:
    nonces = count()
    logs = logs or (LogTail(),)
    return Replica(
        ME, earlier, logs, tuple(0 for _ in logs), limits=Limits(), new_nonce=lambda: str(next(nonces)), now=0.0
    )  # fmt: skip


def test_a_log_with_a_later_epoch_than_the_registry_knows_ends_the_process_with_the_next_step() -> None:
    own = replica(LogTail().grow(7, (1, 4200)))
    (end,) = own.saw(Seen(1, state(6), 1), 0.0)
    assert isinstance(end, EndProcess)
    assert "cluster lead --accept-loss" in end.reason
    assert own.tick(1.0, 10.0) == []  # it does nothing more


@pytest.mark.parametrize(
    ("known", "ends"),
    [
        (None, False),
        (Known(1, 4, "n4"), False),
        (Known(1, 9, "n4"), False),  # the keys were carried over to another etcd, whose revisions are its own
        (Known(1, 3, "n3"), False),
        (Known(1, 5, "n5"), True),
        (Known(1, 3, "n5"), True),  # it was changed since it was restored
        (Known(0, 9, "n9"), False),  # a person has begun a new generation since
        (Known(2, 1, "n9"), True),
    ],
)
def test_a_registry_older_than_what_the_node_has_heard_of_ends_the_process(known: Known | None, ends: bool) -> None:
    own = Replica(
        ME, (), (LogTail(),), (0,), limits=Limits(), new_nonce=lambda: "n", now=0.0, known=known
    )  # fmt: skip
    found = own.saw(Seen(7, replace(state(6, OTHER), nonce="n4", history=("n2", "n3")), 4), 0.0)
    assert (
        own.ended
        == ends
        == any(isinstance(each, EndProcess) and "restored from an older copy" in each.reason for each in found)
    )


def test_a_run_ends_when_the_registry_has_lost_what_it_has_seen_there_itself() -> None:
    own = Replica(
        ME, (), (LogTail(),), (0,), limits=Limits(), new_nonce=lambda: "n", now=0.0, known=Known(1, 2, "n2")
    )  # fmt: skip
    older = replace(state(6, OTHER), nonce="n3", history=("n2",))
    assert own.saw(Seen(9, older.written_by("n4"), 4, ME, 1), 0.0) != []
    assert not own.ended
    assert any(isinstance(each, EndProcess) for each in own.saw(Seen(12, older.written_by("m4"), 5, ME, 1), 1.0))


def test_whether_a_registry_is_older_is_told_by_its_latest_changes_alone() -> None:
    changed = ShardState(6, frozenset(), (), 2, nonce="n0")
    for number in range(1, HISTORY_MAX + 3):
        changed = changed.written_by(f"n{number}")
    assert len(changed.history) == HISTORY_MAX
    seen = Seen(90, changed, 90)
    assert not Known(1, 2, "n2").is_later_than(seen.state, seen.revision)  # among them
    assert not Known(1, 1, "n1").is_later_than(seen.state, seen.revision)  # before them
    assert Known(1, 91, "m1").is_later_than(seen.state, seen.revision)


def test_a_run_that_leads_as_another_incarnation_of_its_folder_ends() -> None:
    own = replica()
    led = Leader(Seat("n1", "i0"), ME.run, ME.address)  # a split made the clone the leader, and the folder had to be left
    (end,) = own.saw(Seen(5, state(3, led.member, OTHER), 4, led, 4), 0.0)
    assert isinstance(end, EndProcess)
    assert own.tick(1.0, 10.0) == []


@pytest.mark.parametrize("successor", [None, "n2"])
def test_a_replica_that_others_do_not_reach_is_elected_only_if_no_other_one_is(successor: str | None) -> None:
    own, limits = replica(), Limits()
    own.unreached = True
    own.tick(0.0, 10.0)
    vacant = replace(state(3), successor=successor)
    assert own.saw(Seen(5, vacant, 4), 0.0) == []
    turn = limits.head_start_s + limits.rank_s * len(vacant.replicas)  # of the last one that others reach
    assert not any(isinstance(each, Transact) for each in own.tick(turn, 10.0))
    (elect,) = [each for each in own.tick(turn + limits.unreached_s, 10.0) if isinstance(each, Transact)]
    assert elect.swap.leads == ME


def test_a_replica_that_others_do_not_reach_does_not_wait_if_it_alone_is_left_or_is_named_or_when_they_do_again() -> None:
    alone, left, named, other = replica(), replica(), replica(), replica()
    for each in (alone, left, named, other):
        each.unreached = True
        each.tick(0.0, 10.0)
    (elect,) = alone.saw(Seen(5, replace(state(3, ME.member), in_sync_min=1), 4), 0.0)
    assert isinstance(elect, Transact)
    (elect,) = left.saw(Seen(5, replace(state(3), leader=OTHER), 4), 0.0)  # the other one has led, and is gone
    assert isinstance(elect, Transact)
    (elect,) = named.saw(Seen(5, replace(state(3), successor="n1"), 4), 0.0)  # or it would never be handed leadership
    assert isinstance(elect, Transact)
    assert other.saw(Seen(5, state(3), 4), 0.0) == []
    other.unreached = False
    (elect,) = other.tick(0.1, 10.0)
    assert isinstance(elect, Transact)


def test_a_member_of_the_set_is_elected_when_nobody_leads_and_begins_an_epoch() -> None:
    own = replica()
    own.tick(0.0, 10.0)
    (elect,) = own.saw(Seen(5, state(3), 4), 0.0)
    assert isinstance(elect, Transact)
    assert (elect.swap.revision, elect.swap.leader_revision, elect.swap.state.epoch) == (4, 0, 4)
    assert elect.swap.leads == ME
    assert own.answered(elect.swap.number, 6, 0.1) == [Begin(4)]


def test_while_moves_are_paused_no_step_is_begun_and_nothing_is_copied() -> None:
    me, third = ME.member, Seat("n3", "i3")
    wanted = replace(state(4), leader=me, wanted=("n1", "n3"), before=("n1", "n2"))

    def moving(state: ShardState, **seen: Any) -> Moving:
        registrar = Registrar(lambda: "n")
        registrar.seen = Seen(9, state, 8, ME, 7, **seen)
        return Moving(registrar, me)

    (begins,) = moving(wanted).next_step([me])
    assert isinstance(begins, Transact)
    assert (begins.swap.state.replicas, begins.swap.takes) == (("n1", "n2", "n3"), 0)
    assert moving(wanted, pause_all=PAUSED).next_step([me]) == []
    named = replace(wanted, replicas=("n1", "n2", "n3"))
    assert moving(named, holds=0).may_copy(third)
    assert not moving(named, holds=0, pause_all=PAUSED).may_copy(third)
    assert moving(named, holds=0, pause_all=PAUSED).may_copy(OTHER)  # a follower that was there before
    assert moving(replace(wanted, pause=PAUSED)).next_step([me]) == [], "those of this shard alone"
    assert not moving(replace(named, pause=PAUSED), holds=0).may_copy(third)
    (frees,) = moving(state(4), holds=0, pause_all=PAUSED).next_step([me])  # taken back meanwhile
    assert isinstance(frees, Transact)
    assert frees.swap.frees == 0
    assert moving(named, holds=0, pause_all=PAUSED).next_step([me]) == []


def test_a_shard_that_is_paused_alone_lets_another_copy_and_takes_its_turn_again_when_it_is_resumed() -> None:
    me, third = ME.member, Seat("n3", "i3")
    named = replace(state(4), leader=me, replicas=("n1", "n2", "n3"), wanted=("n1", "n3"), before=("n1", "n2"))

    def moving(state: ShardState, **seen: Any) -> Moving:
        registrar = Registrar(lambda: "n")
        registrar.seen = Seen(9, state, 8, ME, 7, **seen)
        return Moving(registrar, me)

    paused = replace(named, pause=PAUSED)
    (frees,) = moving(paused, holds=1).next_step([me])
    assert isinstance(frees, Transact)
    assert (frees.swap.frees, frees.swap.takes, frees.swap.state.wanted) == (1, None, ("n1", "n3"))
    assert moving(paused, holds=None).next_step([me]) == []
    assert not moving(named, holds=None).may_copy(third)
    assert moving(named, ticket=None).next_step([me]) == []
    (takes,) = moving(named, ticket=0).next_step([me])
    assert isinstance(takes, Transact)
    assert (takes.swap.takes, takes.swap.frees) == (0, None)


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
    (rename,) = own.saw(Seen(5, state(3, Seat("n1", "i0"), OTHER), 4), 0.0)
    assert isinstance(rename, Transact)
    assert rename.swap.state.in_sync == {ME.member, OTHER}


def test_logs_are_cut_to_the_last_epoch_that_both_have() -> None:
    own = LogTail().grow(1, (1, 5000)).grow(3, (1, 7000))
    leader = LogTail().grow(1, (1, 6000)).grow(2, (2, 5000)).grow(4, (2, 6000))
    answer = leader.at_most(own.last.epoch)
    assert answer == LastEpoch(2, (2, 5000))
    cut = own.cut(own.common_end(answer))
    assert cut == LogTail().grow(1, (1, 5000))
    assert cut.common_end(leader.at_most(cut.last.epoch)) == cut.end


def leader_of_two(successor: str | None) -> tuple[Replica, Seen]:
    """Returns an open leader whose follower on n2 has all, at second 0.1, and what it sees of the registry."""
    own = replica()
    own.tick(0.0, 10.0)
    (elect,) = own.saw(Seen(5, state(3), 4), 0.0)
    assert isinstance(elect, Transact)
    own.answered(elect.swap.number, 6, 0.0)
    own.begun((LogTail(),), ((1, 100),), 0.0)
    own.durable(((1, 100),), 0.0)
    own.received(1, JoinFrame(1, OTHER, "r2", ME.run, (LastEpoch(0, (0, 0)),)), 0.1)
    own.received(1, Fetch(1, 4, ((1, 100),), (0,)), 0.1)
    return own, Seen(7, replace(elect.swap.state, successor=successor), 7, ME, 6)


def is_spare(own: Replica, now: float) -> bool:
    assert own.leading is not None
    return own.registrar.state.has_spare(own.leading.keeping_up(now))


def test_a_replica_is_spare_while_more_keep_up_than_have_to_acknowledge() -> None:
    own, seen = leader_of_two(None)
    third = Seat("n3", "i3")
    own.saw(replace(seen, state=replace(seen.state, in_sync=seen.state.in_sync | {third})), 0.1)
    assert not is_spare(own, 0.1), "the third one is in sync, and away: the next leader cannot do without this one"
    own.received(2, JoinFrame(1, third, "r3", ME.run, (LastEpoch(0, (0, 0)),)), 0.1)
    own.received(2, Fetch(2, 4, ((1, 100),), (0,)), 0.1)
    assert is_spare(own, 0.1)
    own.disconnected(2, 0.2)
    assert not is_spare(own, 0.2)


def yielding() -> tuple[Replica, Seen, Transact]:
    """Returns a leader that hands over to n2, which has fetched since it was named."""
    own, seen = leader_of_two("n2")
    (asks,) = own.saw(seen, 0.15)
    assert isinstance(asks, Serve), "the Fetch that is held is answered, so that another one comes"
    assert own.may_read(0.15)
    (yields,) = own.received(1, Fetch(1, 4, ((1, 100),), (0,)), 0.2)
    assert isinstance(yields, Transact)
    return own, seen, yields


def test_a_leader_hands_over_to_a_member_that_keeps_up_and_reads_nothing_meanwhile() -> None:
    own, _, yields = yielding()
    assert (yields.swap.yields, yields.swap.revision, yields.swap.leader_revision) == (True, 7, 6)
    assert not own.may_read(0.2)
    assert own.answered(yields.swap.number, 8, 0.3) == [EndProcess(HANDED_OVER)]
    assert not is_spare(own, 0.3), "the next leader waits for it: two have to acknowledge"


def test_a_leader_waits_for_a_successor_that_does_not_fetch_and_hands_over_when_it_does() -> None:
    own, seen = leader_of_two("n2")
    (asks,) = own.saw(seen, 0.2)
    assert isinstance(asks, Serve)
    assert own.saw(seen, 0.4) == [], "its last Fetch, a moment before it was named, says nothing"
    assert [action for action in own.tick(0.5, 10.0) if not isinstance(action, ReadRegistry)] == []
    (yields,) = own.received(1, Fetch(1, 4, ((1, 100),), (0,)), 0.6)
    assert isinstance(yields, Transact)
    assert yields.swap.yields


def test_a_fetch_that_was_on_its_way_when_the_successor_was_named_does_not_count() -> None:
    own, seen = leader_of_two(None)
    own.grown(((1, 200),), 0.1)  # its Fetch is answered: the next one is on its way
    assert own.saw(replace(seen, state=replace(seen.state, successor="n2")), 0.15) == []
    *_, asks = own.received(1, Fetch(1, 4, ((1, 200),), (0,)), 0.16)
    assert isinstance(asks, Serve)
    *_, yields = own.received(1, Fetch(1, 4, ((1, 200),), (0,)), 0.2)
    assert isinstance(yields, Transact)


def test_a_leader_waits_for_a_successor_without_a_lease_which_could_not_be_elected() -> None:
    own, seen = leader_of_two("n2")
    without = replace(seen, running=frozenset({ME.member}))
    assert own.saw(without, 0.15) == []
    own.received(1, Fetch(1, 4, ((1, 100),), (0,)), 0.2)
    (asks,) = own.saw(replace(seen, running=frozenset({ME.member, OTHER})), 0.25)
    assert isinstance(asks, Serve)
    (yields,) = own.received(1, Fetch(1, 4, ((1, 100),), (0,)), 0.3)
    assert isinstance(yields, Transact)
    assert yields.swap.yields


def large_at(own: Replica) -> LogEnds:
    """A leader that serves has written so much that it begins a new file before it hands over; returns where it ends."""
    ends = ((1, Limits().hand_over_file_bytes + 1),)
    own.serves()
    own.grown(ends, 0.1)
    own.durable(ends, 0.1)
    return ends


def handing_over_a_large_file() -> tuple[Replica, Limits]:
    """Returns a leader that hands over to n2, and has had a file begun after one that is not sorted there."""
    own, seen = leader_of_two("n2")
    large = large_at(own)
    assert own.received(1, Fetch(1, 4, large, (0,)), 0.12) != []
    (begins,) = own.saw(seen, 0.15)
    assert begins == BeginFile()
    assert own.received(1, Fetch(1, 4, large, (0,)), 0.18) == [], "it is being written"
    own.grown(((2, 4200),), 0.2)
    own.durable(((2, 4200),), 0.2)
    return own, Limits()


def test_a_successor_first_sorts_what_it_would_read_before_it_answers() -> None:
    own, _ = handing_over_a_large_file()
    for second in (0.3, 0.4, 0.5):
        assert not any(isinstance(each, Transact) for each in own.received(1, Fetch(1, 4, ((2, 4200),), (0,), 0), second))
    *_, yields = own.received(1, Fetch(1, 4, ((2, 4200),), (0,), 1), 0.6)
    assert isinstance(yields, Transact)
    assert yields.swap.yields


def test_a_successor_may_lack_few_small_files_as_they_come_faster_than_they_are_sorted() -> None:
    session = Sessions().begin(OTHER, 1, 0.0)
    session.sorted_through = 1

    def waits(file: int, size: int) -> bool:
        return HandingOver(limits_for(size), 0.0).next_step(((file, 100),), session, 1.0, may_begin=True) is not None

    assert not waits(66, 64 * 1024), "files 2 to 65 have 4 MiB"
    assert waits(67, 64 * 1024)
    assert waits(3, 512 * 1024 * 1024)


def test_a_successor_that_does_not_sort_leads_in_the_end() -> None:
    own, limits = handing_over_a_large_file()
    *_, yields = own.received(1, Fetch(1, 4, ((2, 4200),), (0,), 0), 0.2 + limits.hand_over_sort_s)
    assert isinstance(yields, Transact)


def test_a_successor_that_is_killed_while_it_sorts_has_the_whole_time_when_it_is_back() -> None:
    own, limits = handing_over_a_large_file()
    own.disconnected(1, 0.3)
    back, later = Seat("n2", "i3"), 0.3 + limits.hand_over_sort_s
    assert own.registrar.seen is not None
    seen = own.registrar.seen
    own.saw(replace(seen, state=replace(seen.state, in_sync=frozenset({ME.member, back}))), later)
    own.received(2, JoinFrame(1, back, "r3", ME.run, (LastEpoch(4, (2, 4200)),)), later)
    for second in (1.0, 2.0, limits.hand_over_sort_s):
        found = own.received(2, Fetch(2, 4, ((2, 4200),), (0,), 0), later + second)
        assert not any(isinstance(each, Transact) for each in found), second
    *_, yields = own.received(2, Fetch(2, 4, ((2, 4200),), (0,), 1), later + limits.hand_over_sort_s)
    assert isinstance(yields, Transact)
    assert yields.swap.yields


def test_files_are_not_begun_for_a_hand_over_again_and_again() -> None:
    own, limits = handing_over_a_large_file()
    found, number = list[type[Action]](), 2
    for at in range(10):
        large, second = (number, limits.hand_over_file_bytes + 1), 1.0 + at
        own.grown((large,), second)
        own.durable((large,), second)
        *_, last = own.received(1, Fetch(1, 4, (large,), (0,), number - 1), second)
        found.append(type(last))
        number += 1
    assert found[: limits.files_begun_max] == [*[BeginFile] * (limits.files_begun_max - 1), Transact]


def test_a_successor_that_was_behind_for_long_sorts_nevertheless() -> None:
    own, seen = leader_of_two("n2")
    large = large_at(own)
    assert own.saw(seen, 1.5) == [], "it is behind"
    assert BeginFile() in own.received(1, Fetch(1, 4, large, (0,)), 1.5 + Limits().hand_over_sort_s + 1.0)


def test_no_file_is_begun_for_a_hand_over_while_appends_are_refused() -> None:
    own, seen = leader_of_two(None)
    large, third = large_at(own), Seat("n3", "i3")
    three = replace(seen.state, in_sync=seen.state.in_sync | {third}, in_sync_min=3)
    own.saw(replace(seen, state=three), 0.2)
    later = 0.3 + Limits().lag_max_s  # n3 is away, and needed
    own.received(1, Fetch(1, 4, large, (0,)), later)
    assert own.leading is not None
    assert not own.leading.takes_appends(later)
    assert BeginFile() not in own.saw(replace(seen, state=replace(three, successor="n2")), later)
    own.received(2, JoinFrame(1, third, "r3", ME.run, (LastEpoch(0, (0, 0)),)), later)
    assert BeginFile() in own.received(2, Fetch(2, 4, large, (0,)), later)


def test_no_file_is_begun_by_a_leader_that_stops() -> None:
    own, seen = leader_of_two("n2")
    large = large_at(own)
    own.received(1, Fetch(1, 4, large, (0,)), 0.12)
    own.serves(until_now=True)
    assert BeginFile() not in own.saw(seen, 0.15)


def test_a_leader_whose_hand_over_is_refused_reads_again() -> None:
    own, seen, yields = yielding()
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


@pytest.mark.parametrize(
    ("epoch", "of_log", "joined", "cuts"), [(5, 3, 5, True), (5, 3, 4, False), (5, 3, 6, False), (5, 6, 5, False)]
)
def test_a_follower_is_cut_by_the_leader_of_its_epoch_alone_and_by_none_that_is_older_than_its_log(
    epoch: int, of_log: int, joined: int, cuts: bool
) -> None:
    following = Following(ME.member, ME.run, (LogTail().grow(of_log, (1, 200)),), (0,), Limits())
    leader = Leader(OTHER, "r2", "127.0.0.1:2")
    assert following.follow(leader, epoch, 0.0) == [Follow(leader)]
    (join,) = following.connected(1, leader.run, 0.0, asks_ahead=True)
    assert isinstance(join, SendFrame)
    found = following.received(1, Joined(1, 1, joined, (LastEpoch(of_log, (1, 100)),)), 0.1)
    assert found == ([CutTo(((1, 100),))] if cuts else [])


def at(end: int) -> LogEnds:
    return ((1, end),)


def storing(*, asks_ahead: bool = True) -> Following:
    """Returns a follower in session 1 of epoch 1, whose log ends at byte 100, and whose disk writes on to byte 200."""
    own = Following(ME.member, ME.run, (LogTail().grow(1, (1, 100)),), (7,), Limits())
    own.follow(Leader(OTHER, "run2"), 1, 0.0)
    own.connected(1, "run2", 0.0, asks_ahead=asks_ahead)
    assert own.received(1, Joined(1, 1, 1, (LastEpoch(1, (1, 100)),)), 0.0) == [SendFrame(1, Fetch(1, 1, at(100), (7,)))]
    data = Data(1, 1, at(100), at(0), "to 200")
    assert own.received(1, data, 0.1) == [CommitTo(at(0)), Store(data)]
    ahead = [SendFrame(1, FetchAhead(1, 1, at(200), (8,)))]
    assert own.storing(at(200), (8,)) == (ahead if asks_ahead else [])
    own.check_invariants()
    return own


def stored(own: Following, end: int, crc: int) -> list[Action]:
    found = own.stored((LogTail().grow(1, (1, end)),), (crc,))
    own.check_invariants()
    return found


def test_a_follower_asks_for_what_follows_while_it_stores_and_acknowledges_only_what_is_stored() -> None:
    own = storing()
    ahead = Data(1, 1, at(200), at(200), "to 300")
    assert own.received(1, ahead, 0.2) == [], "it is stored after what comes before it"
    assert own.received(1, ahead, 0.2) == [], "once more, which nobody asked for"
    assert stored(own, 200, 8) == [SendFrame(1, Stored(1, 1, at(200))), CommitTo(at(200)), Store(ahead)]
    assert own.storing(at(300), (9,)) == [SendFrame(1, FetchAhead(1, 1, at(300), (9,)))]
    assert stored(own, 300, 9) == [SendFrame(1, Stored(1, 1, at(300)))], "its question is at the leader already"
    last = Data(1, 1, at(300), at(300), "to 400")
    assert own.received(1, last, 0.3) == [CommitTo(at(300)), Store(last)]
    assert stored(own, 400, 6) == [SendFrame(1, Fetch(1, 1, at(400), (6,)))], "what was stored at once"


def test_a_follower_of_an_older_leader_does_not_ask_ahead() -> None:
    own = storing(asks_ahead=False)
    assert stored(own, 200, 8) == [SendFrame(1, Fetch(1, 1, at(200), (8,)))]


def test_a_follower_asks_again_if_there_is_nothing_yet_while_it_stores() -> None:
    own = storing()
    assert own.received(1, Data(1, 1, at(200), at(100), None), 0.6) == [
        CommitTo(at(100)),
        SendFrame(1, FetchAhead(1, 1, at(200), (8,))),
    ]
    assert stored(own, 200, 8) == [SendFrame(1, Stored(1, 1, at(200)))]


def test_what_came_ahead_is_not_stored_in_another_session() -> None:
    own = storing()
    own.received(1, Data(1, 1, at(200), at(0), "to 300"), 0.2)
    own.received(1, NotLeading(1), 0.3)
    own.check_invariants()
    (join,) = stored(own, 200, 8)
    assert isinstance(join, SendFrame)
    assert isinstance(join.frame, JoinFrame)
    own = storing()
    own.received(1, Data(1, 1, at(200), at(0), "to 300"), 0.2)
    own.follow(Leader(OTHER, "run3"), 2, 0.3)
    assert stored(own, 200, 8) == [], "it is not connected yet"


def test_only_what_a_follower_has_stored_is_acknowledged_not_what_it_asks_for() -> None:
    own, _ = leader_of_two(None)
    own.grown(at(200), 0.1)
    own.durable(at(200), 0.1)
    leading = own.leading
    assert leading is not None
    assert own.received(1, FetchAhead(1, 4, at(200), (0,)), 0.2) == []
    assert (leading.committed, leading.lags(0.2)[0].end) == (at(100), (1, 100))
    assert own.received(1, Stored(1, 4, at(200), 3), 0.3) == [CommitTo(at(200))]
    (session,) = leading.sessions
    assert session.sorted_through == 3
    own.check_invariants()
    (serves,) = own.grown(at(300), 0.4)
    assert serves == Serve(1, 1, 4, at(200), (0,), at(200)), "what it asked for is still waited for"


@pytest.mark.parametrize("frame", [FetchAhead(1, 4, at(300), (0,)), Stored(1, 4, at(300))])
def test_a_follower_that_is_beyond_the_log_joins_again(frame: FetchAhead | Stored) -> None:
    own, _ = leader_of_two(None)
    assert own.received(1, frame, 0.2) == [SendFrame(1, NotLeading(4))]
    assert own.received(1, Stored(1, 4, at(100)), 0.3) == [SendFrame(1, NotLeading(4))], "that session is over"


def test_a_join_that_comes_before_the_log_is_open_is_answered_when_it_is() -> None:
    own = replica()
    own.tick(0.0, 10.0)
    (elect,) = own.saw(Seen(5, state(3), 4), 0.0)
    assert isinstance(elect, Transact)
    own.answered(elect.swap.number, 6, 0.0)
    join = JoinFrame(1, OTHER, "r2", ME.run, (LastEpoch(0, (0, 0)),))
    for connection in (1, 2):
        assert own.received(connection, join, 0.1) == []
    own.disconnected(1, 0.1)
    answers = own.begun((LogTail(),), ((1, 100),), 0.2)
    assert answers == [SendFrame(2, Joined(1, 1, 4, (LastEpoch(0, (0, 0)),)))]


def test_after_accepted_loss_a_follower_takes_no_more_for_committed_than_its_log_still_has() -> None:
    log = LogTail().grow(1, (3, 5000))
    own = Following(ME.member, ME.run, (log,), (0,), Limits())
    own.follow(Leader(OTHER, "run2"), 1, 0.0)
    own.connected(1, "run2", 0.0, asks_ahead=True)
    own.received(1, Joined(1, 1, 1, (LastEpoch(1, (3, 5000)),)), 0.0)
    assert own.received(1, Data(1, 1, ((3, 5000),), ((3, 5000),), None), 0.0)[0] == CommitTo(((3, 5000),))
    own.follow(Leader(OTHER, "run3"), 2, 0.0)  # of a replica that lacks some of it: a person had it lead
    own.connected(2, "run3", 0.0, asks_ahead=True)
    assert own.received(2, Joined(2, 1, 2, (LastEpoch(1, (1, 4800)),)), 0.0) == [CutTo(((1, 4800),))]
    assert own.stored((log.cut((1, 4800)),), (0,))[0] == CommitTo(((1, 4800),)), "else it sorts what may be cut again (R6)"
    assert own.committed == ((1, 4800),)
    own.check_invariants()
