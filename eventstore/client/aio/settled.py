"""Waits for the outcomes of some rows of a batch, which may be there before those of the others."""

from __future__ import annotations

import anyio

from eventstore.client.aio.limited import in_time
from eventstore.client.limit import active
from eventstore.client.session.batch import BatchSlice, Q, R


async def settled(part: BatchSlice[anyio.Event, R, Q]) -> None:
    """Returns once the outcomes of these rows are there. Raises TimedOut."""
    done = part.batch.done
    if not done.is_set():
        await (in_time(done.wait) if active else done.wait())
    while (signal := part.waiting(anyio.Event)) is not None:
        await in_time(signal.wait)
