"""Takes a snapshot of a running server, with a bounded number of requests."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from eventstore.cli.terminal.shard_rows import members_of
from eventstore.errors import ConnectionLost, UnknownGroup, UnknownOperation, UnknownTopic
from eventstore.protocol.broker_info import last_chunks

if TYPE_CHECKING:
    from eventstore.client.blocking.store import BlockingStore
    from eventstore.flat import Scalar
    from eventstore.protocol.broker_info import ChunkInfo, QueueInfo
    from eventstore.protocol.reaction_info import ReactionInfo

TOPICS_MAX: Final = 50
GROUPS_MAX: Final = 50
COUNTED: Final = ("events", "requests", "connections", "subscriptions")
"""The figures that a node does not have: those of its shards are added up."""
_CHUNKS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic, all its queues together. `written` and `read` are messages a second, `…_bytes` bytes a second."""

    topic: str
    queues: int
    messages: int
    written: int
    written_bytes: int
    read: int
    read_bytes: int


class QueueRow(NamedTuple):
    """A queue. `shard`: its shard, at a node of several."""

    topic: str
    queue: int
    state: str
    begin: int
    end: int
    written: int
    read: int
    shard: int | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """`backlog`: messages to consume; `dead`: dead letters that are kept."""

    group: str
    members: int
    generation: int
    backlog: int
    dead: int


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """The rates are None in the first snapshot. `topics_total` and `groups_total` count also those not listed. `missing`: why
    topics, groups or reactions are not known: a shard cannot be reached. `layout`: above 1 shards were split, and what they
    have in common is counted more than once.
    """

    stats: dict[str, Scalar]
    at: float
    events_a_second: float | None
    requests_a_second: float | None
    reactions: list[ReactionInfo]
    topics: list[TopicRow]
    queues: list[QueueRow]
    groups: list[GroupRow]
    chunks: list[ChunkInfo]
    topics_total: int
    groups_total: int
    missing: str | None = None
    layout: int = 1

    def tree(self) -> dict[str, object]:
        """Returns the snapshot for JSON."""
        return {
            "events_a_second": self.events_a_second,
            "requests_a_second": self.requests_a_second,
            "reactions": [members_of(each) for each in self.reactions],
            "topics": [asdict(row) for row in self.topics],
            "queues": [members_of(row) for row in self.queues],
            "groups": [asdict(row) for row in self.groups],
            "chunks": [members_of(each) for each in self.chunks],
            "topics_total": self.topics_total,
            "groups_total": self.groups_total,
            "missing": self.missing,
            "layout": self.layout,
            "figures": self.stats,
        }


def take_snapshot(store: BlockingStore, before: ServerSnapshot | None) -> ServerSnapshot:
    """Takes a snapshot. Rates are counted since `before`; at a node of several shards over all of them.

    Raises:
        ConnectionLost: the server cannot be reached. Of a node whose shards cannot all be, there is what it says itself.
    """
    stats, at = store.stats(), time.monotonic()
    try:
        stats |= _counted(store)
        found = _completed(store, stats, at, _rates(stats, at, before))
        return replace(found, layout=store.cluster_map().layout) if store.shards else found
    except ConnectionLost as error:
        return ServerSnapshot(stats, at, *_rates(stats, at, before), [], [], [], [], [], 0, 0, error.message)


def _counted(store: BlockingStore) -> dict[str, Scalar]:
    """Returns what all shards have counted; nothing of a server, or of a node of one shard, which says it itself."""
    found = [shard.stats() for shard in store.shards.values()]
    return {} if len(found) <= 1 else {name: sum(_count(each.get(name)) for each in found) for name in COUNTED}


def _count(figure: Scalar) -> int:
    return figure if isinstance(figure, int) else 0


def _completed(
    store: BlockingStore, stats: dict[str, Scalar], at: float, rates: tuple[float | None, float | None]
) -> ServerSnapshot:
    broker = store.broker
    try:
        topics, groups = broker.topics(), broker.groups()
    except UnknownOperation:  # a server without a broker
        topics, groups = [], []
    rows: list[TopicRow] = []
    queue_rows: list[QueueRow] = []
    dead: dict[str, int] = {}
    for topic in sorted(topics, key=lambda each: (":" in each.name, each.name))[:TOPICS_MAX]:
        try:
            queues = broker.queues(topic.name)
        except UnknownTopic:  # deleted meanwhile
            continue
        rows.append(_topic_row(topic.name, queues))
        queue_rows += [
            QueueRow(topic.name, each.queue, each.state, each.begin, each.end, each.written, each.read, each.shard)
            for each in queues
        ]
        if topic.name.startswith("dead:"):
            dead[topic.name.removeprefix("dead:")] = rows[-1].messages
    group_rows: list[GroupRow] = []
    for group in groups[:GROUPS_MAX]:
        try:
            backlog = broker.group(group.name).backlog
        except UnknownGroup:
            continue
        group_rows.append(GroupRow(group.name, group.members, group.generation, backlog, dead.get(group.name, 0)))
    chunks = last_chunks(broker.chunks(), _CHUNKS_SHOWN) if topics else []
    return ServerSnapshot(
        stats,
        at,
        *rates,
        _reactions(store),
        rows,
        queue_rows,
        group_rows,
        chunks,
        len(topics),
        len(groups),
    )


def _reactions(store: BlockingStore) -> list[ReactionInfo]:
    """Returns the reactions and publications that run here, at the address of a node those of all its shards."""
    try:
        return store.reactions.progress()
    except UnknownOperation:
        return []


def _topic_row(name: str, queues: list[QueueInfo]) -> TopicRow:
    totals = [sum(column) for column in zip(*(each[4:8] for each in queues), strict=True)] or [0, 0, 0, 0]
    return TopicRow(name, len(queues), sum(each.end - each.begin for each in queues), *totals)


def _rates(stats: dict[str, Scalar], at: float, before: ServerSnapshot | None) -> tuple[float | None, float | None]:
    return _rate("events", stats, at, before), _rate("requests", stats, at, before)


def _rate(name: str, stats: dict[str, Scalar], at: float, before: ServerSnapshot | None) -> float | None:
    now, then = stats.get(name), None if before is None else before.stats.get(name)
    if before is None or not isinstance(now, int) or not isinstance(then, int) or at <= before.at:
        return None
    return max(0, now - then) / (at - before.at)
