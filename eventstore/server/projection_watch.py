"""What a projector says about itself: to its server, and by the /metrics and /health of `eventstore project --http`.

The figures of several projections have the label `projection`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from eventstore.domain.projections.projection import Projection, wanted_by
from eventstore.domain.projections.projector import Progress
from eventstore.errors import Closed, ConnectionLost, EventStoreError
from eventstore.following.log import Followable, last_sequence
from eventstore.metrics import LabelledCollector, LabelledFigures, LabelledMetric, Metric, MetricSource, counter, gauge, text
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
    oldest event that it has not folded, None if there is none; events that its filter leaves out do not count. `failure`: why
    it waits to begin again, or has ended; None: it runs.
    """

    def __init__(self, projection: Projection[Any]) -> None:
        self.projection = projection
        self.sequence = self.last_sequence = self.events = self.rows = self.parked_keys = 0
        self.oldest_us: int | None = None
        self.failure: str | None = None
        self.parts: dict[int | None, ShardLag] = {}
        self.taken = trio.Event()
        self._nothing: dict[int | None, int] = {}  # up to where there is nothing for it after its checkpoint

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
        self.taken.set()
        self.failure = None
        if progress.caught_up:
            self.oldest_us = None

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

    async def look(self, store: Followable, ends: Mapping[int | None, int] | None = None) -> None:
        """Finds out the oldest event that is not folded; of all shards, unless one is away. `ends`: of the store now."""
        ends = await ends_of(store) if ends is None else ends
        found, whole, parts = list[int](), True, _parts_of(store)
        for shard, part in parts.items():
            try:
                oldest = await self._oldest(shard, part, ends[shard])
            except (KeyError, ConnectionLost):  # the projector waits for it, and says so
                whole = False
                continue
            found += oldest
            if shard in self.parts:
                self.parts[shard] = self.parts[shard]._replace(oldest_us=min(oldest, default=None))
        if whole:
            self.last_sequence, self.oldest_us = sum(ends[shard] for shard in parts), min(found, default=None)

    async def _oldest(self, shard: int | None, part: Followable, end: int) -> list[int]:
        checkpoint = self.parts.get(shard, ShardLag()).sequence
        after = max(checkpoint, self._nothing.get(shard, 0))
        if after >= end:
            self._nothing[shard] = end  # which may be less: of another store
            return []
        read = part.read_all(after, *wanted_by(self.projection), limit=1)
        async for event in read:
            return [event.timestamp]
        ((self._nothing[shard], _),) = read.position.shards.values()
        return []

    @property
    def lag_events(self) -> int:
        return 0 if self.oldest_us is None else self.last_sequence - self.sequence

    @property
    def lag_microseconds(self) -> int:
        return 0 if self.oldest_us is None else max(0, int(time.time() * 1_000_000) - self.oldest_us)

    @property
    def attention(self) -> str | None:
        """What an operator has to do, if anything."""
        if self.failure is not None:
            return self.failure
        if not self.parked_keys:
            return None
        return f"{self.parked_keys} keys are parked; eventstore_parked lists them, --retry-parked folds what they skipped"


async def ends_of(store: Followable) -> dict[int | None, int]:
    """Returns the sequence of the last event by shard (None: of the store), without those that are away."""
    ends = dict[int | None, int]()
    for shard, part in _parts_of(store).items():
        with suppress(ConnectionLost):
            ends[shard] = await last_sequence(part)
    return ends


def _parts_of(store: Followable) -> dict[int | None, Followable]:
    return dict[int | None, Followable](store.shards.items()) or {None: store}


class ProjectionWatches:
    """What the projections of a process say about themselves. `by_name`: each; `feature`: of all."""

    def __init__(self, projections: Iterable[Projection[Any]]) -> None:
        self.by_name = {each.name: ProjectionWatch(each) for each in projections}
        self.feature = Feature(collectors=[_ProjectionCollector(self)], attention=lambda: self.attention)
        if len(self.by_name) == 1:
            (watch,) = self.by_name.values()
            self.feature = Feature(metrics=[MetricSource(PROJECTION_METRICS, lambda: watch)], attention=lambda: watch.attention)

    @property
    def attention(self) -> str | None:
        """What an operator has to do, if anything."""
        found = ((name, watch.attention) for name, watch in self.by_name.items())
        return next((f"{name}: {attention}" for name, attention in found if attention is not None), None)

    async def look_regularly(self, store: NetworkStore) -> None:
        """Looks at the store every few seconds, and tells it what was found, until cancelled."""
        watches = self.by_name.values()
        while True:
            with suppress(Closed):  # the projectors end by it
                ends = await ends_of(store)
                for watch in watches:
                    await watch.look(store, ends)
                    if watch.failure is None:  # one that has failed is silent, as its process would be if it ran alone
                        await watch.tell(store)
            with trio.move_on_after(_LOOK_SECONDS):
                for watch in watches:
                    if not watch.taken.is_set():
                        await watch.taken.wait()
                        break
                else:
                    await trio.sleep_forever()

    async def leave(self, store: NetworkStore) -> None:
        """Tells the store that the projections were to end here: they are not missed."""
        for watch in self.by_name.values():
            await watch.leave(store)


class _ProjectionCollector(LabelledCollector):
    """Exports the figures of each projection, labelled with its name."""

    def __init__(self, watches: ProjectionWatches) -> None:
        self.declared = PROJECTION_LABELLED
        self._watches = watches

    def collect(self) -> Iterator[LabelledFigures]:
        families = {each.name: LabelledFigures(each) for each in PROJECTION_LABELLED}
        for name, watch in self._watches.by_name.items():
            for metric in PROJECTION_METRICS:
                if metric.name in families and (value := metric.read(watch)) is not None:
                    unit = 1_000_000 if metric.name.endswith("_microseconds") else 1
                    families[metric.name].add([name], float(value) / unit)
            families[PROJECTION_WAITING.name].add([name], float(watch.failure is not None))
        yield from families.values()


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
PROJECTION_WAITING: Final = LabelledMetric(
    "projection_waiting", "gauge", "1: it has failed, and waits to begin again, or has ended; others continue", ("projection",)
)
PROJECTION_LABELLED: Final = (
    *(LabelledMetric(each.name, each.kind, each.help, ("projection",)) for each in PROJECTION_METRICS if each.kind != "text"),
    PROJECTION_WAITING,
)
"""Of several projections in a process."""
