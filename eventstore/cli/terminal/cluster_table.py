"""Draws the shards of a cluster as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.cli.terminal.output import make_table, print_note, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Group

    from eventstore_cluster.status import Behind, ClusterStatus, ShardRow

_COLUMNS = ("shard", "slots", "leader", "epoch", "events", "events/s", "resident", "sorted", "lag of reactions")
_REPLICA_COLUMNS = ("shard", "led by", "since", "because", "replicas", "in sync", "behind")
_MEGABYTE = 1_000_000
SPLIT_NOTE = "After a split, the events and files of a shard include the older events that other shards serve now."


def print_cluster(found: ClusterStatus) -> None:
    """Prints what `cluster status` shows."""
    print_table(None, _COLUMNS, map(_cells, found.shards))
    if found.nodes is not None:
        print()
        print_table(None, _REPLICA_COLUMNS, map(_replica_cells, found.shards))
    if found.layout > 1:
        print_note(SPLIT_NOTE)
        if foreign := foreign_text(found):
            print_note(foreign)
    for line in _attention(found):
        print_note(line)


def drawn_cluster(found: ClusterStatus) -> Group:
    """Returns the same, to be drawn by rich."""
    from rich.console import Group

    title = "; ".join(filter(None, [lost_shards(found), *_attention(found)])) or None
    tables = [make_table(title, _COLUMNS, map(_cells, found.shards))]
    if found.nodes is not None:
        tables.append(make_table(None, _REPLICA_COLUMNS, map(_replica_cells, found.shards)))
    return Group(*tables)


def lost_shards(found: ClusterStatus) -> str | None:
    """Returns which shards cannot be reached, and why; None if all can."""
    return "; ".join(f"shard {each.shard}: {each.error}" for each in found.shards if each.error is not None) or None


def foreign_text(found: ClusterStatus) -> str | None:
    """Returns how much shards keep of what others hand out since splits; None if that is nothing, or not known."""
    each = [
        f"shard {row.shard} {_size(row.foreign_bytes)} of {_size(row.shared_bytes)}"
        for row in found.shards
        if row.foreign_bytes and row.shared_bytes
    ]
    return f"In files from before a split, other shards serve about: {', '.join(each)}." if each else None


def _attention(found: ClusterStatus) -> list[str]:
    """Returns what a person has to know of shards that can be reached, and of nodes."""
    from eventstore_cluster.registry.node_clocks import clock_trouble

    said = [f"shard {each.shard}: {each.attention}" for each in found.shards if each.attention and each.error is None]
    clocks = clock_trouble(found.clocks or {})
    return [
        *filter(None, (found.trouble,)),
        *said,
        *([] if clocks is None else [clocks]),
        *(found.preparing or ()),
        *(found.paused or ()),
        *filter(None, (found.format,)),
    ]


def _cells(row: ShardRow) -> tuple[object, ...]:
    return (
        row.shard,
        row.slots.replace("-", "–"),
        row.leader,
        row.epoch,
        row.events,
        None if row.events_a_second is None else round(row.events_a_second),
        None if row.resident_bytes is None else f"{row.resident_bytes / _MEGABYTE:.0f} MB",
        None if row.event_files is None else f"{row.sorted_files}/{row.event_files}",
        row.reactions_lag_events,
    )


def _replica_cells(row: ShardRow) -> tuple[object, ...]:
    since = None if row.leader_since is None else row.leader_since.removesuffix("+00:00").replace("T", " ")
    replicas, in_sync = " ".join(row.replicas or ()), " ".join(row.in_sync or ())
    led_by = row.node if row.successor is None else f"{row.node}, to hand over to {row.successor}"
    return row.shard, led_by, since, row.leader_reason, replicas, in_sync, _behind(row.behind)


def _behind(found: Mapping[str, Behind] | None) -> str | None:
    """Returns how far the followers are behind, those first that are furthest."""
    if found is None:
        return None
    sorted_by = sorted(found.items(), key=lambda each: (-each[1].seconds, each[0]))
    return ", ".join(f"{node} {_lag(lag)}" for node, lag in sorted_by)


def _lag(lag: Behind) -> str:
    from eventstore_cluster.status import SILENT_S

    if lag.bytes is None:
        return f"away {lag.seconds:.1f} s"
    if lag.silent_seconds is not None and lag.silent_seconds > SILENT_S:
        return f"silent {lag.silent_seconds:.1f} s"
    return f"{lag.seconds:.1f} s {_size(lag.bytes)}"


def _size(size: int) -> str:
    return f"{size} B" if size < 1_000 else f"{size / 1_000:.0f} kB" if size < _MEGABYTE else f"{size / _MEGABYTE:.0f} MB"
