"""A checkpoint names its event, and a log that begins with another's events is continued at the last one that both have."""

from __future__ import annotations

from pathlib import Path

import pytest

import eventstore as es
from eventstore.following.checkpoint import Checkpoint
from eventstore.following.log import confirmed


def test_a_log_with_the_same_events_up_to_a_sequence_is_continued_there_or_before() -> None:
    place = Checkpoint(40, "x" * 32)
    assert [place.inherited(through) for through in (50, 40, 39)] == [place, place, Checkpoint(39)]


async def test_a_checkpoint_is_confirmed_by_the_event_that_it_names(tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        for number in range(3):
            await store.append(f"a-{number}", [es.NewEvent("T")], es.ANY)
        events = [event async for event in store.read_all()]
        place = Checkpoint.at(events[1])
        assert await confirmed(store, "a reader", place, "begin again") == place
        assert await confirmed(store, "a reader", Checkpoint(2), "begin again") == place, "it gets the identity"
        assert await confirmed(store, "a reader", Checkpoint(0), "begin again") == Checkpoint(0)
        assert await confirmed(store, "a reader", Checkpoint(4), "begin again") is None
        for wrong in (Checkpoint(3, place.identity), Checkpoint(4, place.identity), Checkpoint(4, "none")):
            with pytest.raises(es.Diverged, match=f"a reader stands at the event of sequence {wrong.sequence}, .* begin again"):
                await confirmed(store, "a reader", wrong, "begin again")
