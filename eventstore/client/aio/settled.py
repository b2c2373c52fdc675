"""Waits for the outcomes of some rows of a batch, which may be there before those of the others."""

from __future__ import annotations

import anyio

from eventstore.client.session.batch import BatchSlice, Q, R


async def settled(part: BatchSlice[anyio.Event, R, Q]) -> None:
    """Returns once the outcomes of these rows are there."""
    if not part.batch.done.is_set():
        await part.batch.done.wait()
    while (signal := part.waiting(anyio.Event)) is not None:
        await signal.wait()
