"""What a worker tells its store of itself, as a projector does: that it is there, and how far its reactions are.

A worker that has gone leaves no trace in a store otherwise, and the reactions that it ran would stand still unseen.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import trio

from eventstore.client.aio.store import NetworkStore
from eventstore.errors import EventStoreError
from eventstore.following.log import uuid_and_last_sequence
from eventstore.server.reactions.reaction_runner import Reactions
from eventstore.server.work.worked_shards import WorkedShards

_TELL_S: Final = 5.0


async def tell_of_worker(domain: str, shards: WorkedShards, reactions: Reactions | None) -> None:
    """Tells each shard every few seconds, until cancelled. `domain`: as `module:attribute`."""
    while True:
        for number, store in shards.stores.items():
            with suppress(EventStoreError):  # it is away, older, or this identity may not: only a figure is missing
                await _tell(f"worker {domain}", store, reactions, f"@{number}" if shards.has_several else "")
        await trio.sleep(_TELL_S)


async def _tell(name: str, store: NetworkStore, reactions: Reactions | None, suffix: str) -> None:
    if not store.connected:
        return
    progress = [] if reactions is None else [each for each in reactions.progress() if each.name.endswith(suffix)]
    if progress:
        position, oldest_us = min(each.position for each in progress), None
        lag_us = max((each.lag_microseconds for each in progress if each.lag_events), default=None)
        if lag_us is not None:
            oldest_us = time.time_ns() // 1_000 - lag_us
    else:
        position, oldest_us = (await uuid_and_last_sequence(store))[1], None
    await store.note_projection(name, position, oldest_us, sum(each.parked for each in progress))
