"""COMMIT_JOINTLY as a commit of the store, on both sides."""

from __future__ import annotations

from eventstore.event_identity import LogPosition
from eventstore.model import ANY, EXISTS, Committed
from eventstore.protocol.reader_start import ReaderStart
from eventstore.protocol.requests import CommitJointly, CommittedJointly, CommitUnless
from eventstore.query import Query
from eventstore.records.raw_commit import AppendCondition, JointWrites, RawJointCommit, Unless


def request_of(raw: RawJointCommit, start: LogPosition, layout: int) -> CommitJointly | CommitUnless:
    """Returns the request for a commit that `encode_joint_commit` made. `start`: the place of its condition, if it has one;
    `layout`: of the slots of its shard.
    """
    joint, _, command_id, timestamp, _ = raw
    rows = [(name, _encoded(expected), events) for name, expected, events in joint.writes if isinstance(events, bytes)]
    asserted = [(name, _encoded(expected), None) for name, expected in joint.only_if]
    if (unless := joint.unless) is not None:
        after = ReaderStart(start, layout).wire
        return CommitUnless(command_id, timestamp, unless.query.packed(), after, unless.scope, (*rows, *asserted))
    return CommitJointly(command_id, timestamp, (*rows, *asserted))


def raw_of(request: CommitJointly | CommitUnless) -> RawJointCommit:
    """Returns the commit that a request asks for; its events are not checked yet."""
    rows = request.aggregates
    writes = tuple([(name, _decoded(expected), events) for name, expected, events in rows if events is not None])
    asserted = () if len(writes) == len(rows) else [(name, _decoded(each)) for name, each, events in rows if events is None]
    unless = None
    if isinstance(request, CommitUnless):
        start = ReaderStart.parse("after", request.after).stored
        unless = Unless(Query.unpacked(request.query), start, request.scope)
    return JointWrites(writes, tuple(asserted), unless), ANY, request.command_id, request.timestamp, b""


def committed_of(raw: RawJointCommit, answer: CommittedJointly) -> list[Committed]:
    """Returns what became of each aggregate that was written."""
    return [
        Committed(write[0], place.version, place.sequence, answer.duplicate, answer.durability)
        for write, place in zip(raw[0].writes, answer.places, strict=True)
    ]


def _encoded(expected: AppendCondition) -> int | bool | None:
    if expected is ANY:
        return None
    return True if expected is EXISTS else expected if isinstance(expected, int) else None


def _decoded(expected: int | bool | None) -> AppendCondition:
    if expected is None:
        return ANY
    return EXISTS if expected is True else expected
