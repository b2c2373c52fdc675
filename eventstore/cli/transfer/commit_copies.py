"""Commits as they are appended to another store: each only if its aggregates have the versions before it.

A commit of several aggregates is appended as one. If only some of its records are there, because another shard has the rest
since a split, or the rest is damaged or not wanted, these are the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from eventstore.model import ANY
from eventstore.records.commit import NO_FINGERPRINT, CommitView
from eventstore.records.raw_commit import JointWrites, with_fingerprint
from eventstore.store.append import NewCommit


def together(views: Iterable[CommitView]) -> Iterator[list[CommitView]]:
    """Yields the records of each commit. They are given in the order of their sequences."""
    held: list[CommitView] = []
    for view in views:
        if held and begin_of_commit(view) != begin_of_commit(held[0]):
            yield held
            held = []
        held.append(view)
    if held:
        yield held


def begin_of_commit(view: CommitView) -> int:
    """Returns the sequence of the first event of all that was written by one commit."""
    return view.sequence if view.joint is None else view.sequence - view.joint.events_before


def end_of_commit(view: CommitView) -> int:
    """Returns the sequence of the last event of all that was written by one commit."""
    return view.last_sequence if view.joint is None else begin_of_commit(view) + view.joint.events - 1


def is_whole(views: Sequence[CommitView]) -> bool:
    """Whether all records of a commit are there."""
    joint = views[0].joint
    return joint is None or len(views) == joint.records


def copy_of(views: Sequence[CommitView]) -> NewCommit:
    """Returns what is to be appended for the records of one commit."""
    first = views[0]
    if len(views) == 1:
        return first.aggregate_id, first.first_version - 1, first.command_id, first.time, _events(first)
    writes = tuple((view.aggregate_id, view.first_version - 1, _events(view)) for view in views)
    return JointWrites(writes), ANY, first.command_id, first.time, b""


def bytes_of(views: Sequence[CommitView]) -> int:
    """Returns how many bytes of events a commit has."""
    return sum(len(view.events) for view in views)


def _events(view: CommitView) -> bytes:
    return view.events if view.fingerprint == NO_FINGERPRINT else with_fingerprint(view.events, view.fingerprint)
