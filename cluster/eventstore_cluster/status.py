"""The shards of a running cluster and their figures, asked from each of them: what `eventstore cluster status` shows."""

from __future__ import annotations

import json
import time
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from eventstore.client.address import Address, parse_address, parse_addresses
from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.blocking.store import BlockingStore, connect
from eventstore.client.options import ClientOptions, scheme_of_environment
from eventstore.client.routing.table import leader_address
from eventstore.errors import ConnectionLost, EventStoreError
from eventstore.flat import Scalar
from eventstore.protocol.requests import Map, Stats
from eventstore.records.cluster_map import ClusterMap, Shard, slots_text

SILENT_S: Final = 1.5
"""A replica that answers asks its leader for more twice in a second."""
_NAME: Final = "eventstore cluster status"
_ANSWER_S: Final = 3.0
"""How long a shard may be silent that is asked for its figures. One of a node that hangs, until its lease is over, must not
hide the others for longer than a new leader takes."""
_AT_ONCE: Final = 32
"""Shards that are asked at the same time, each by a thread."""


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a replica is behind its leader.

    Attributes:
        seconds: since it was level with the leader.
        bytes: of events that it has not stored; None while it is not connected.
        silent_s: seconds since it last asked for more, as it does several times a second; None while it is not connected.
    """

    seconds: float
    bytes: int | None
    silent_seconds: float | None


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A shard. A figure is None if the shard does not say it, or does not answer. Only the registry knows `node`, `replicas`,
    `in_sync`, `leader_since`, `leader_reason` and `successor`.

    Attributes:
        error: why the shard does not answer.
        node: the node that leads it.
        replicas: the nodes that keep one.
        in_sync: the nodes whose replicas are in sync.
        behind: how far each other replica is behind, by node, as the leader sees it.
        leader_since: since when it leads, ISO 8601.
        leader_reason: why the leader before it left, or why there is none.
        successor: whom it is to hand over to.
        log_bytes: what a replica has to copy.
        shared_bytes: of files from before a split.
        foreign_bytes: about how many of the shared bytes are of events that other shards hand out.
        attention: what an operator has to know of it.
    """

    shard: int
    slots: str
    leader: str | None
    epoch: int
    pid: int | None = None
    events: int | None = None
    events_a_second: float | None = None
    resident_bytes: int | None = None
    event_files: int | None = None
    sorted_files: int | None = None
    reactions_lag_events: int | None = None
    error: str | None = None
    node: str | None = None
    replicas: list[str] | None = None
    in_sync: list[str] | None = None
    behind: dict[str, Behind] | None = None
    leader_since: str | None = None
    leader_reason: str | None = None
    successor: str | None = None
    log_bytes: int | None = None
    shared_bytes: int | None = None
    foreign_bytes: int | None = None
    attention: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster and its shards.

    Attributes:
        cluster: its uuid; None if the server is a single store, which is shown as one shard.
        nodes: the nodes that run.
        clocks: by how many seconds each node's clock is ahead of etcd's, or behind it if negative; only nodes that differ by
            more than a second.
        preparing: how far each replica is of the shards that are to be split off.
        paused: what a person has paused.
        trouble: what keeps the node that was asked from its work.
        format: what is to be known of the cluster's format; None: it is the newest one, or not known.
    """

    cluster: str | None
    map_version: int
    layout: int
    shards: list[ShardRow]
    nodes: list[str] | None = None
    clocks: dict[str, float] | None = None
    preparing: list[str] | None = None
    paused: list[str] | None = None
    trouble: str | None = None
    format: str | None = None

    def tree(self) -> dict[str, object]:
        """Returns the status for JSON."""
        return asdict(self)


def cluster_status(store: str, interval_s: float) -> ClusterStatus:
    """Asks the server at `store` for the map, and each shard twice for its figures, `interval_s` apart.

    Raises:
        ConnectionLost, InvalidArgument: the server at `store` cannot be reached. A shard that cannot be is a row with an error.
    """
    with BlockingConnection(parse_addresses(store), ClientOptions(name=_NAME)) as entry:
        known = entry.call(Map())
        figures = {} if known.cluster is None else entry.call(Stats())
        asked = entry.address
    found = status_of(known, asked, interval_s)
    trouble = figures.get("trouble")
    shards = with_troubles(found.shards, _troubles(figures.get("troubles")))
    return replace(found, shards=shards, trouble=None if trouble is None else str(trouble))


def with_troubles(rows: Sequence[ShardRow], troubles: Mapping[int, str]) -> list[ShardRow]:
    """Returns the rows with what is known of shards besides: why they are not served, or what a person has to know."""
    return [_with_trouble(row, troubles.get(row.shard)) for row in rows]


def _with_trouble(row: ShardRow, trouble: str | None) -> ShardRow:
    if trouble is None:
        return row
    return replace(row, error=trouble) if row.leader is None else replace(row, attention=row.attention or trouble)


def _troubles(text: Scalar) -> dict[int, str]:
    try:
        return {int(shard): str(trouble) for shard, trouble in json.loads(str(text)).items()}
    except (ValueError, AttributeError):
        return {}


def status_of(known: ClusterMap, asked: Address | None, interval_s: float, only: Container[int] | None = None) -> ClusterStatus:
    """Asks each shard of a map twice for its figures, or `only` some. `asked`: where the map came from, if from a server."""
    shards = [_Asked(each, address_of(known, each, asked)) for each in known.shards if only is None or each.shard in only]
    with ExitStack() as stack, ThreadPoolExecutor(_AT_ONCE) as threads:
        for shard in shards:
            stack.callback(shard.close)
        before = list(threads.map(_Asked.first_figures, shards))
        if interval_s > 0:
            time.sleep(interval_s)
        now = list(threads.map(_Asked.figures, shards))
    rows = [shard.row(then, found, until - at) for shard, (then, at), (found, until) in zip(shards, before, now, strict=True)]
    cluster = None if known.cluster is None else known.cluster.hex()
    return ClusterStatus(cluster, known.version, known.layout, rows)


def address_of(known: ClusterMap, shard: Shard, asked: Address | None) -> Address | None:
    """Returns where a shard listens; None if no process serves it. `asked`: where the map came from.

    A shard that listens on all addresses of its machine has the host that was asked. A single store is there.
    """
    if shard.leader is None:
        return asked if known.cluster is None else None
    if asked is not None:
        return leader_address(shard.leader, asked)
    return parse_address(f"{scheme_of_environment()}://{shard.leader}")


@dataclass(slots=True)
class _Asked:
    """A shard that is asked for its figures, until it does not answer.

    Attributes:
        error: why it does not answer.
    """

    shard: Shard
    address: Address | None
    store: BlockingStore | None = None
    error: EventStoreError | None = None

    def first_figures(self) -> tuple[dict[str, Scalar], float]:
        """Connects to the shard, then returns the same as `figures`."""
        if self.address is None:
            self.error = ConnectionLost("no process serves it")
        else:
            try:
                self.store = connect(
                    str(self.address), connect_timeout=_ANSWER_S, reconnect_timeout=0, silence_timeout=_ANSWER_S, name=_NAME
                ).__enter__()
            except EventStoreError as error:
                self.error = error
        return self.figures()

    def figures(self) -> tuple[dict[str, Scalar], float]:
        """Returns the shard's figures, empty if it does not answer, and when it was asked."""
        if self.store is not None and self.error is None:
            try:
                return self.store.stats(), time.monotonic()
            except EventStoreError as error:
                self.error = error
        return {}, time.monotonic()

    def close(self) -> None:
        """Ends its connection."""
        if self.store is not None:
            self.store.close()

    def row(self, before: dict[str, Scalar], now: dict[str, Scalar], seconds: float) -> ShardRow:
        """Returns the row of the shard, from its figures `before` and `now`, `seconds` apart."""
        then, events = _number(before, "events"), _number(now, "events")
        return ShardRow(
            shard=self.shard.shard,
            slots=slots_text(self.shard.slots),
            leader=None if self.address is None else str(self.address).partition("://")[2],
            epoch=self.shard.epoch,
            pid=_number(now, "process_id"),
            events=events,
            events_a_second=None if then is None or events is None or seconds <= 0 else (events - then) / seconds,
            resident_bytes=_number(now, "resident_bytes"),
            event_files=_number(now, "event_files"),
            sorted_files=_number(now, "sorted_files"),
            reactions_lag_events=_number(now, "reactions_lag_events"),
            error=None if self.error is None else _why_lost(self.error),
            log_bytes=_number(now, "log_bytes"),
            shared_bytes=_number(now, "shared_bytes"),
            foreign_bytes=_number(now, "foreign_bytes"),
            behind=_behind(now.get("replicas_behind")),
            attention=str(said) if (said := now.get("attention") or now.get("reactions_failure")) is not None else None,
        )


def _why_lost(error: EventStoreError) -> str:
    """Returns why a shard does not answer. If the process that would say it is away, returns where to find the reason."""
    if not isinstance(error, ConnectionLost) or str(error.fields.get("cause", "")).startswith("TLS failed"):
        return error.message  # a server has answered
    return f"{error.message}; the log of its node says why"


def _number(figures: dict[str, Scalar], name: str) -> int | None:
    value = figures.get(name)
    return value if isinstance(value, int) else None


def _behind(text: Scalar) -> dict[str, Behind] | None:
    """Returns what the text says; None: the shard has no replicas, or its server is of another version."""
    try:
        found: Any = json.loads(str(text))
        return {str(node): _behind_of(each) for node, each in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def _behind_of(found: dict[str, Any]) -> Behind:
    size, silent = found["bytes"], found.get("silent_seconds")
    return Behind(float(found["seconds"]), None if size is None else int(size), None if silent is None else float(silent))
