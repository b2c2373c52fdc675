"""What follows what in a batch."""

from __future__ import annotations

from typing import Any

from eventstore_mailbox.command_mailbox import CommandMailbox
from eventstore_mailbox.entry import Entry
from eventstore_mailbox.event_mailbox import EventMailbox
from eventstore_mailbox.lane import Lane


def made() -> tuple[EventMailbox, Lane, Lane]:
    events = EventMailbox(100, 1000, None)
    mailbox = CommandMailbox(0, events)
    return events, Lane("a", mailbox), Lane("b", mailbox)


def add(events: EventMailbox, lane: Lane, change: str) -> None:
    entry: Entry[Any, Any] = Entry(lane.aggregate_id, change, change)
    entry.lane = lane
    events.add(lane, entry, change)


def test_a_change_follows_the_one_before_it_of_its_aggregate() -> None:
    events, a, b = made()
    for lane, change in ((a, "a1"), (b, "b1"), (a, "a2"), (a, "a3")):
        add(events, lane, change)
    draft = events.take()
    assert draft is not None
    assert (draft.changes, draft.followers) == (["a1", "b1", "a2", "a3"], [2, 3])


def test_after_the_changes_of_an_aggregate_were_dropped_its_next_one_follows_nothing() -> None:
    events, a, b = made()
    for lane, change in ((a, "a1"), (b, "b1"), (a, "a2")):
        add(events, lane, change)
    events.drop([a])
    for lane, change in ((a, "a1 again"), (b, "b2"), (a, "a2 again")):
        add(events, lane, change)
    draft = events.take()
    assert draft is not None
    assert (draft.changes, draft.followers) == (["b1", "a1 again", "b2", "a2 again"], [2, 3])
