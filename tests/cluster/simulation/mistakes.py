"""Planted mistakes: each leaves out one rule. A simulator that does not find them proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from eventstore_cluster.replica.actions import Action, Transact
from eventstore_cluster.replica.epochs import LastEpoch, Tail
from eventstore_cluster.replica.leading import Leading
from eventstore_cluster.replica.places import Ends
from eventstore_cluster.replica.registrar import Registrar
from eventstore_cluster.replica.registry_state import Member, Seen, Swap
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replica.sessions import Session, Sessions
from tests.cluster.simulation.disk import KINDS, Disk
from tests.cluster.simulation.process import Process


@dataclass(frozen=True)
class Mistake:
    """`seeds`: the simulator must find it within so many."""

    rule: str
    what: str
    owner: type
    method: str
    wrong: Callable[..., Any]
    seeds: int = 400

    def planted(self) -> Any:
        return mock.patch.object(self.owner, self.method, self.wrong)


def _counts_what_is_seen(registrar: Registrar) -> frozenset[Member]:
    return registrar.state.in_sync


def _read_settles(registrar: Registrar, swap: Swap, seen: Seen) -> bool:
    return seen.revision >= swap.revision


_answered = Registrar.answered


def _lost_is_refused(registrar: Registrar, number: int, applied: int | None) -> None:
    _answered(registrar, number, applied or 0)


_still = Replica._decide


def _resumes(replica: Replica, now: float) -> list[Action]:
    seen = replica.registrar.seen
    if seen is not None and seen.leader is not None and seen.leader.member.node == replica.me.member.node:
        replica.registrar.seen = replace(seen, leader=replica.me)
    return _still(replica, now)


def _takes_back(process: Process) -> None:
    disk = process.machine.disk
    disk.cut(disk.synced_ends)
    leading = process.replica.leading
    assert leading is not None
    leading.written = (*disk.ends, process.document_end)


def _own_end(tail: Tail, epoch: int) -> LastEpoch:
    return LastEpoch(epoch, tail.end)


def _any_session(sessions: Sessions, number: int, connection: int) -> Session | None:
    """Counts a Fetch of an earlier connection for the node's latest session."""
    known: dict[int, str] = sessions.__dict__.setdefault("known", {})
    for session in sessions:
        known[session.number] = session.member.node
    return next((session for session in sessions if session.member.node == known.get(number)), None)


def _drops_all(leading: Leading) -> bool:
    return len(leading._registrar.state.in_sync) > 1


def _adds_at_once(leading: Leading, session: Session) -> list[Action]:
    state = leading._registrar.state
    if leading._registrar.unanswered is not None or session.member in state.in_sync or session.acked is None:
        return []
    return leading._propose(frozenset(each for each in state.in_sync if each.node != session.member.node) | {session.member})


def _wiped_under_its_name(disk: Disk) -> None:
    disk.records = tuple([] for _ in range(KINDS))
    disk.synced = [0] * KINDS
    disk.documents = {}


def _reads_before_open(replica: Replica, now: float) -> bool:
    return replica.leading is not None and not replica.ended and now < replica._lease_until


def _reads_without_lease(replica: Replica, now: float) -> bool:
    return replica.leading is not None and replica.leading.committed is not None and not replica.ended


def _reads_while_yielding(replica: Replica, now: float) -> bool:
    return _reads_without_lease(replica, now) and now < replica._lease_until


def _anyone_competes(replica: Replica, now: float) -> list[Action]:
    """Elects a replica that is not in the set."""
    seen = replica.registrar.seen
    if seen is None or seen.leader is not None or replica.registrar.unanswered is not None or now >= replica._lease_until:
        return []
    elected = replace(seen.state, epoch=seen.state.epoch + 1, in_sync=seen.state.in_sync | {replica.me.member})
    return [Transact(replica.registrar.propose(elected, 0, leads=replica.me))]


def _commits_own_sync(leading: Leading, member: Member) -> Ends:
    return leading.synced


_durable_at = Leading._durable_at


def _documents_are_not_waited_for(leading: Leading, member: Member) -> Ends:
    return (*_durable_at(leading, member)[:KINDS], leading.synced[KINDS])


MISTAKES = (
    Mistake("R1", "a member that is being added does not count before the answer", Registrar, "counting", _counts_what_is_seen),
    Mistake("R1", "a member is added before it has what is committed", Leading, "_maybe_add", _adds_at_once),
    Mistake("R2", "a read that shows the old state settles a transaction", Registrar, "_settled", _read_settles),
    Mistake("R2", "a lost answer is taken for a refusal", Registrar, "answered", _lost_is_refused),
    Mistake("R3", "a new run resumes the leadership of its node", Replica, "_decide", _resumes),
    Mistake("R3", "a leader with a full disk takes back what was not synced", Process, "disk_full", _takes_back),
    Mistake("R4", "the leader answers its own end for an epoch it does not have", Tail, "at_most", _own_end),
    Mistake("R4", "a Fetch of an earlier connection counts", Sessions, "find", _any_session),
    Mistake("R5", "the set shrinks below its least size", Leading, "_may_drop", _drops_all),
    Mistake("R9", "a wiped folder keeps its place in the set", Disk, "wipe", _wiped_under_its_name),
    Mistake("R10", "a leader reads before its epoch's record is committed", Replica, "may_read", _reads_before_open),
    Mistake("R11", "a leader reads without looking at its lease", Replica, "may_read", _reads_without_lease),
    Mistake("R11", "a leader reads while it hands over", Replica, "may_read", _reads_while_yielding),
    Mistake(
        "R14", "a leader answers for documents that others do not have", Leading, "_durable_at", _documents_are_not_waited_for
    ),
    Mistake("election", "a replica outside the set is elected", Replica, "_compete", _anyone_competes),
    Mistake("acknowledged", "the leader counts its own sync for everyone", Leading, "_durable_at", _commits_own_sync),
)
