"""The metrics of an open store."""

from __future__ import annotations

from typing import Final, Protocol

from eventstore.metrics import Metric, counter, gauge, text
from eventstore.store.committer import EventCommitter
from eventstore.store.engine import StoreEngine
from eventstore.store.maintenance import Maintenance
from eventstore.store.opening import OpenStore


class CountedStore(Protocol):
    """The parts of an open store that the metrics read."""

    @property
    def opened(self) -> OpenStore: ...

    @property
    def engine(self) -> StoreEngine: ...

    @property
    def committer(self) -> EventCommitter: ...

    @property
    def maintenance(self) -> Maintenance: ...


def _attention(store: CountedStore) -> str | None:
    refused = store.committer.refused.why(store.committer.batches)
    return (
        (f"appends are refused: {refused}" if refused is not None else None)
        or store.maintenance.attention
        or store.maintenance.index_attention
        or store.engine.directory.attention
    )


STORE_METRICS: Final[tuple[Metric[CountedStore], ...]] = (
    text("store", "the store's uuid", lambda store: str(store.opened.uuid)),
    text("durability", "when an append is acknowledged: `sync` or `async`", lambda store: store.opened.settings.durability),
    counter(
        "events",
        "events stored; also the last sequence",
        lambda store: store.engine.visible_sequence,
        "its rate is the throughput",
    ),
    gauge("event_files", "event files, in all states", lambda store: len(store.engine.files.headers)),
    gauge(
        "sorted_files",
        "of these, sorted and indexed",
        lambda store: sum(header.sorted for header in store.engine.files.headers),
    ),
    gauge(
        "unsorted_files",
        "of these, covered by memory: the one being written, and those waiting to be sorted",
        lambda store: len(store.engine.tail.files),
        "it stays over 2: sorting does not keep up, or fails",
    ),
    gauge(
        "shared_bytes",
        "bytes of completed event files from before a split, sorted or not, which other shards have as well",
        lambda store: store.maintenance.foreign.shared,
    ),
    gauge(
        "foreign_bytes",
        "of these, in sorted files, those of events that other shards hand out: they stay, and are left out; an estimate",
        lambda store: store.maintenance.foreign.total,
    ),
    gauge("known_aggregates", "aggregates in the version cache", lambda store: len(store.engine.version_cache)),
    counter(
        "known_lookups", "commits and look-ups that asked the version cache", lambda store: store.engine.version_cache.asked
    ),
    counter(
        "known_misses",
        "of these, those whose aggregate it did not know",
        lambda store: store.engine.version_cache.misses,
        "its rate comes near that of appends: raise `cached_bytes_max`",
    ),
    counter(
        "directory_lookups",
        "aggregates looked up in the directory, also by reads and at the start",
        lambda store: store.engine.directory.lookups,
    ),
    counter(
        "duplicates",
        "repeated commands, answered with their first result",
        lambda store: store.engine.appender.duplicates,
        "it grows fast: clients lose answers and resend",
    ),
    counter(
        "conflicts",
        "appends at a version that is no longer the current one",
        lambda store: store.engine.appender.conflicts,
        "much contention on single aggregates",
    ),
    counter(
        "joint_commits",
        "commits about several aggregates, written or asserted, since the start",
        lambda store: store.engine.appender.joint_commits,
    ),
    counter(
        "joint_commits_apart",
        "of these, those whose aggregates have no common tag in braces: once a split has parted them, such a commit is refused",
        lambda store: store.engine.appender.joint_commits_apart,
        "before a split: give these aggregates ids with the same text in braces",
    ),
    counter("refused", "commits refused for their content", lambda store: store.engine.appender.refused, "a client is broken"),
    counter(
        "batches",
        "write and sync operations",
        lambda store: store.committer.batches,
        "`events / batches`: how well appends share syncs",
    ),
    counter(
        "refused_batches",
        "write and sync operations that failed: what they were to write was refused",
        lambda store: store.committer.refused.count,
        "it grows: the disk is full; `attention` has its folder",
    ),
    counter(
        "batches_in_place",
        "of the batches, for a lone client, without a thread",
        lambda store: store.committer.batches_in_place,
    ),
    counter(
        "slow_writes",
        "write and sync operations that took 5 ms or more",
        lambda store: store.committer.pace.slow,
        "it grows: the disk stalls. Even a lone client is then served by a thread, so that a stall does not stop the others",
    ),
    counter(
        "write_microseconds",
        "time spent in write and sync",
        lambda store: round(store.committer.write_seconds * 1_000_000),
        "`write_seconds / batches` is the latency of the disk",
    ),
    gauge(
        "waiting_bytes",
        "bytes appended and not written yet",
        lambda store: store.committer.waiting_bytes,
        "it is near `waiting_bytes_max`: the disk is the bottleneck",
    ),
    counter(
        "sort_failures",
        "sorts that failed; they are retried every 30 s",
        lambda store: store.maintenance.failures,
        "it grows: the log gives the reason, mostly a full disk",
    ),
    gauge(
        "sort_stopped_at_file",
        "number of the corrupt event file that stops sorting; 0: none",
        lambda store: store.maintenance.stopped_at,
        "it is not 0: see [what to do](OPERATIONS.md#when-something-goes-wrong)",
    ),
    gauge(
        "directory_damaged",
        "1: the LMDB directory is damaged, and the indexes answer instead, more slowly",
        lambda store: store.engine.directory.damage is not None,
        "it is 1: restart at a convenient time; the directory is then rebuilt, in some seconds per million aggregates of each "
        "file",
    ),
    text("attention", "what an operator has to do, if anything", _attention),
    gauge(
        "torn_bytes_at_start",
        "bytes of a torn batch cut off at the last start",
        lambda store: store.opened.report.torn_bytes,
        "over 0: the previous process died while writing",
    ),
    gauge(
        "poisoned",
        "1: the store takes no more appends",
        lambda store: store.engine.failed is not None,
        "at once: see [what to do](OPERATIONS.md#when-something-goes-wrong)",
    ),
)
