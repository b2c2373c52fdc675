"""What a projector says of itself: how far it is, and how old the oldest event is that its table lacks."""

from __future__ import annotations

import time
from pathlib import Path

import eventstore as es
from eventstore.domain.projections.projector import Progress
from eventstore.server.projection_watch import ProjectionWatch
from tests.domain.projections.test_projection import ByOwner

MINUTE_US = 60_000_000


async def test_the_lag_is_that_of_the_oldest_event_of_its_types_that_is_not_folded(tmp_path: Path) -> None:
    a_minute_ago = int(time.time() * 1_000_000) - MINUTE_US
    watch = ProjectionWatch(ByOwner())
    async with es.open_store(tmp_path / "data") as store:
        for name, kind in (("a", "Opened"), ("b", "Other"), ("c", "Opened"), ("d", "Other")):
            await store.append_many([es.Commit(name, [es.NewEvent(kind, {})], 0, name, a_minute_ago)])
        await watch.look(store)
        assert (watch.lag_events, watch.last_sequence) == (4, 4)
        assert MINUTE_US <= watch.lag_microseconds < 2 * MINUTE_US
        watch.take(Progress(1, 1, 1, caught_up=False))
        await watch.look(store)
        assert watch.lag_events == 3
        watch.take(Progress(1, 1, 3, caught_up=False, parked_keys=2))
        await watch.look(store)
        assert (watch.lag_events, watch.lag_microseconds) == (0, 0), "what is left is not for this projection"
    assert (watch.sequence, watch.events, watch.rows) == (3, 2, 2)
    assert watch.attention is not None
    assert "2 keys are parked" in watch.attention
