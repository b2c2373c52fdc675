"""Event mailboxes: which changes of a batch depend on others."""

from __future__ import annotations

from typing import Any

from eventstore_mailbox.core.state import AggregateQueue, CommandMailbox, Entry, EventMailbox


def new_mailbox() -> tuple[EventMailbox, AggregateQueue, AggregateQueue]:
    events = EventMailbox(100, 1000, None)
    mailbox = CommandMailbox(0, events)
    return events, AggregateQueue("a", mailbox), AggregateQueue("b", mailbox)


def add(events: EventMailbox, lane: AggregateQueue, change: str) -> None:
    entry: Entry[Any, Any] = Entry(lane.aggregate_id, change, change)
    entry.lane = lane
    events.add(lane, entry, change)


def test_a_change_depends_on_the_previous_one_of_its_aggregate() -> None:
    events, a, b = new_mailbox()
    for lane, change in ((a, "a1"), (b, "b1"), (a, "a2"), (a, "a3")):
        add(events, lane, change)
    draft = events.take()
    assert draft is not None
    assert (draft.changes, draft.dependents) == (["a1", "b1", "a2", "a3"], [2, 3])


def test_after_the_changes_of_an_aggregate_are_removed_its_next_one_depends_on_nothing() -> None:
    events, a, b = new_mailbox()
    for lane, change in ((a, "a1"), (b, "b1"), (a, "a2")):
        add(events, lane, change)
    events.remove([a])
    for lane, change in ((a, "a1 again"), (b, "b2"), (a, "a2 again")):
        add(events, lane, change)
    draft = events.take()
    assert draft is not None
    assert (draft.changes, draft.dependents) == (["b1", "a1 again", "b2", "a2 again"], [2, 3])
