"""What a projector says about itself: to its server, and by the /metrics and /health of `eventstore project --http`."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from eventstore.domain.projections.projection import Projection, wanted_by
from eventstore.domain.projections.projector import Progress
from eventstore.errors import Closed, ConnectionLost, EventStoreError
from eventstore.following.log import Followable, last_sequence
from eventstore.metrics import Metric, MetricSource, counter, gauge, text
from eventstore.server.feature import Feature

if TYPE_CHECKING:
    from eventstore.client.aio.store import NetworkStore

_LOOK_SECONDS: Final = 5.0


class ShardLag(NamedTuple):
    """Of one shard, or of a store (the shard is None): as `ProjectionWatch` has it of all."""

    sequence: int = 0
    parked_keys: int = 0
    oldest_us: int | None = None


class ProjectionWatch:
    """Counts what the projector has written, and looks regularly at what it has not.

    `sequence`: its checkpoint. `last_sequence`: the store's. Both are sums over several shards. `oldest_us`: the time of the
    oldest event that it has not folded, None if there is none; events that its filter leaves out do not count.
    """

    def __init__(self, projection: Projection[Any]) -> None:
        self.projection = projection
        self.sequence = self.last_sequence = self.events = self.rows = self.parked_keys = 0
        self.oldest_us: int | None = None
        self.parts: dict[int | None, ShardLag] = {}
        self._taken = trio.Event()
        self.feature = Feature(metrics=[MetricSource(PROJECTION_METRICS, lambda: self)], attention=lambda: self.attention)

    def take(self, progress: Progress) -> None:
        """Counts a written batch."""
        self.sequence, self.parked_keys = progress.checkpoint, progress.parked_keys
        part = (progress.checkpoint, progress.parked_keys)
        if progress.shard is not None:
            part = (progress.sequence, progress.parked_of_shard)
        before = self.parts.get(progress.shard)
        self.parts[progress.shard] = ShardLag(*part, None if before is None or progress.caught_up else before.oldest_us)
        self.events += progress.events
        self.rows += progress.rows
        self._taken.set()
        if progress.caught_up:
            self.oldest_us = None

    async def look_regularly(self, store: NetworkStore) -> None:
        """Looks at the store every few seconds, and tells it what was found, until cancelled."""
        while True:
            with suppress(Closed):  # the projector ends by it
                await self.look(store)
                await self.tell(store)
            if self._taken.is_set():
                await trio.sleep(_LOOK_SECONDS)
            else:
                with trio.move_on_after(_LOOK_SECONDS):
                    await self._taken.wait()

    async def tell(self, store: NetworkStore) -> None:
        """Tells the store, or each shard, how far the table is, if something was read of it."""
        told_of: list[tuple[int | None, NetworkStore]] = [*store.shards.items()] or [(None, store)]
        for shard, told in told_of:
            part = self.parts.get(shard)
            if part is not None:
                with suppress(EventStoreError):  # it is away, older, or this identity may not: only a figure is missing
                    await told.note_projection(self.projection.name, part.sequence, part.oldest_us, part.parked_keys)

    async def leave(self, store: NetworkStore) -> None:
        """Tells the store that the projection was to end here: it is not missed."""
        with suppress(EventStoreError):
            await store.end_projection(self.projection.name)

    async def look(self, store: Followable) -> None:
        """Finds out where the store ends, and the oldest event that is not folded; of all shards, unless one is away."""
        wanted, found, end, whole = wanted_by(self.projection), list[int](), 0, True
        parts: list[tuple[int | None, Followable]] = [*store.shards.items()] or [(None, store)]
        for shard, part in parts:
            after, oldest = self.parts.get(shard, ShardLag()).sequence, list[int]()
            try:
                last = await last_sequence(part)
                if last > after:
                    async for event in part.read_all(after, *wanted, limit=1):
                        oldest.append(event.timestamp)
            except ConnectionLost:  # the projector waits for it, and says so
                whole = False
                continue
            end += last
            found += oldest
            if shard in self.parts:
                self.parts[shard] = self.parts[shard]._replace(oldest_us=min(oldest, default=None))
        if whole:
            self.last_sequence, self.oldest_us = end, min(found, default=None)

    @property
    def lag_events(self) -> int:
        return 0 if self.oldest_us is None else self.last_sequence - self.sequence

    @property
    def lag_microseconds(self) -> int:
        return 0 if self.oldest_us is None else max(0, int(time.time() * 1_000_000) - self.oldest_us)

    @property
    def attention(self) -> str | None:
        """What an operator has to do, if anything."""
        if not self.parked_keys:
            return None
        return f"{self.parked_keys} keys are parked; eventstore_parked lists them, --retry-parked folds what they skipped"


PROJECTION_METRICS: Final[tuple[Metric[ProjectionWatch], ...]] = (
    text("projection", "name of the projection", lambda watch: watch.projection.name),
    gauge("projection_sequence", "sequence up to which the table is complete", lambda watch: watch.sequence),
    gauge(
        "projection_lag_events",
        "events of the log after that, of any type; 0 if none of them is for this table",
        lambda watch: watch.lag_events,
        "it grows: folding or the database is slow, or stuck",
    ),
    gauge(
        "projection_lag_microseconds",
        "age of the oldest event that the table lacks; 0: none",
        lambda watch: watch.lag_microseconds,
        "it grows",
    ),
    gauge(
        "projection_parked_keys",
        "keys that are parked",
        lambda watch: watch.parked_keys,
        "it is not 0: mend the projection, then `--retry-parked`",
    ),
    counter("projection_events", "events folded since the start", lambda watch: watch.events),
    counter("projection_rows", "rows written or deleted since the start", lambda watch: watch.rows),
)
