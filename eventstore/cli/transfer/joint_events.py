"""Finds the events of joint commits in a log, also in one whose filter leaves out some of them, or that has several shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from eventstore.cli.transfer.event_lines import JointMark
from eventstore.model import Event
from eventstore.records.event_page import commit_end

Marked: TypeAlias = tuple[Event, int | None, JointMark | None]


def marked_events(events: Iterable[Event], shard_of: Callable[[], int | None]) -> Iterator[Marked]:
    """Yields the events with their shards, and those of a joint commit one after the other, with its mark.

    It keeps a joint commit of each shard in memory, at most. `shard_of`: returns the shard of the event that was taken last.
    """
    held: dict[int | None, list[Event]] = {}
    for event in events:
        shard = shard_of()
        found = held.get(shard)
        if found is not None and event.sequence > commit_end(found[0]):  # a filter has left out its last event
            yield from _together(held.pop(shard), shard)
            found = None
        if found is None:
            if not event.commit_continues:
                yield event, shard, None
                continue
            found = held[shard] = []
        found.append(event)
        if event.sequence == commit_end(found[0]):
            yield from _together(held.pop(shard), shard)
    for shard, found in held.items():
        yield from _together(found, shard)


def _together(events: list[Event], shard: int | None) -> Iterator[Marked]:
    """Yields what was found of a joint commit. Of one aggregate it is a commit as others are."""
    is_joint = len({event.aggregate_id for event in events}) > 1
    mark = JointMark(commit_end(events[0]), len(events)) if is_joint else None
    for event in events:
        yield event, shard, mark
