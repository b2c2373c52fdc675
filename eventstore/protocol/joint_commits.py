"""COMMIT_JOINTLY as a commit of the store, on both sides."""

from __future__ import annotations

from eventstore.model import ANY, EXISTS, Committed
from eventstore.protocol.requests import CommitJointly, CommittedJointly
from eventstore.records.raw_commit import AppendCondition, JointWrites, RawJointCommit


def request_of(raw: RawJointCommit) -> CommitJointly:
    """Returns the request for a commit that `encode_joint_commit` made."""
    joint, _, command_id, timestamp, _ = raw
    rows = [(name, _encoded(expected), events) for name, expected, events in joint.writes if isinstance(events, bytes)]
    asserted = [(name, _encoded(expected), None) for name, expected in joint.only_if]
    return CommitJointly(command_id, timestamp, (*rows, *asserted))


def raw_of(request: CommitJointly) -> RawJointCommit:
    """Returns the commit that a request asks for; its events are not checked yet."""
    writes = tuple((name, _decoded(expected), events) for name, expected, events in request.aggregates if events is not None)
    only_if = tuple((name, _decoded(expected)) for name, expected, events in request.aggregates if events is None)
    return JointWrites(writes, only_if), ANY, request.command_id, request.timestamp, b""


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
