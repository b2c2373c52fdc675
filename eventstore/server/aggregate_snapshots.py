"""Snapshots of aggregates as a part of a server or worker: their folder, their metrics, what they need an operator for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from eventstore.chunks.files import Files, OsFiles
from eventstore.domain.domain import Domain
from eventstore.domain.snapshots.snapshot_folder import SnapshotFolder
from eventstore.domain.snapshots.snapshots import Snapshots
from eventstore.metrics import LabelledCollector, LabelledFigures, LabelledMetric, Metric, MetricSource, counter, gauge
from eventstore.server.feature import Feature
from eventstore.settings.server import ServerSettings

SNAPSHOTS: Final = "snapshots"
_DRAIN_S_MAX: Final = 2.0
"""How long a stop waits for snapshots: without them the next start has more to replay."""
SNAPSHOT_DIFFERS: Final = LabelledMetric(
    "snapshot_differs",
    "gauge",
    "1: a full replay of this aggregate gives another value of this attribute than its snapshot; those of its class are off",
    ("class", "aggregate", "attribute"),
)
SNAPSHOT_METRICS: Final[tuple[Metric[Snapshots], ...]] = (
    gauge("snapshots", "aggregates that have a snapshot", lambda snapshots: snapshots.folder.count),
    gauge("snapshot_bytes", "space that snapshots take, in whole blocks", lambda snapshots: snapshots.folder.bytes_used),
    counter("snapshots_written", "snapshots written", lambda snapshots: snapshots.written),
    counter(
        "snapshots_used",
        "aggregates restored from a snapshot and the events after it",
        lambda snapshots: snapshots.used,
    ),
    counter(
        "snapshots_outdated",
        "snapshots ignored because other code has made them",
        lambda snapshots: snapshots.outdated,
    ),
    counter(
        "snapshots_foreign",
        "snapshots ignored because they are of another store, or stand at an event that the store does not have",
        lambda snapshots: snapshots.foreign,
        "it grows without a restore, and without a loss that was accepted",
    ),
    counter(
        "snapshots_damaged",
        "snapshots ignored because they are not whole",
        lambda snapshots: snapshots.damaged,
        "it grows without a power failure: the disk returns other bytes than were written",
    ),
    counter(
        "snapshots_dropped",
        "snapshots removed to keep to `snapshot_bytes_max`",
        lambda snapshots: snapshots.folder.dropped,
        "it grows as fast as `snapshots_written`: raise `snapshot_bytes_max`",
    ),
    counter(
        "snapshots_unwritable",
        "aggregates without a snapshot because their state cannot be written",
        lambda snapshots: snapshots.unwritable,
        "it grows: the log names the class and the attribute",
    ),
    counter(
        "snapshot_failures",
        "snapshots that the disk refused",
        lambda snapshots: snapshots.failures,
        "it grows",
    ),
    counter("snapshots_compared", "snapshots compared with a full replay", lambda snapshots: snapshots.compared),
    gauge(
        "snapshots_switched_off",
        "classes whose snapshots are switched off, because one was not what a full replay gave",
        lambda snapshots: len(snapshots.differing),
        "it is not 0: `/health` and the log name class, aggregate and attribute",
    ),
)


def snapshots_of(
    settings: ServerSettings, domain: Domain, folder: Path | None, store: str, files: Files | None = None
) -> Snapshots | None:
    """Returns the snapshots of a domain in a folder. `store`: its uuid. None: there is no folder, no handler, or they are
    switched off.
    """
    if folder is None or not domain.handlers or not settings.snapshot_events:
        return None
    files = files or OsFiles()
    kept = SnapshotFolder(files, folder, settings.snapshot_bytes_max)
    return Snapshots(files, kept, domain, store, settings.snapshot_events)


def snapshot_feature(snapshots: Snapshots) -> Feature:
    """Returns what a server or worker has to run and to say about its snapshots. Its mailboxes are drained before."""

    async def drain(seconds: float) -> None:
        with trio.move_on_after(min(seconds, _DRAIN_S_MAX)):
            await snapshots.flush()

    return Feature(
        metrics=[MetricSource(SNAPSHOT_METRICS, lambda: snapshots)],
        collectors=[_DifferenceCollector(snapshots)],
        attention=lambda: _attention(snapshots),
        run=snapshots.run,
        drain=drain,
    )


def _attention(snapshots: Snapshots) -> str | None:
    found = list(snapshots.differing.values())
    if not found:
        return None
    kind, aggregate_id, field = found[0]
    more = f" ({len(found)} classes in all)" if len(found) > 1 else ""
    return (
        f"a snapshot is not what a full replay gives: {kind}, aggregate {aggregate_id!a}, attribute {field}; snapshots of "
        f"this class are switched off{more}"
    )


class _DifferenceCollector(LabelledCollector):
    """Exports the first difference of each class."""

    declared = (SNAPSHOT_DIFFERS,)

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[LabelledFigures]:
        family = LabelledFigures(SNAPSHOT_DIFFERS)
        for each in list(self._snapshots.differing.values()):
            family.add(each, 1)
        yield family
