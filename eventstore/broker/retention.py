"""Retention: finds the oldest message chunks that may be deleted, by number, age, bytes, and committed offsets.

A chunk is deleted only once the next chunk is completed, too, because the next chunk's state record says where each queue
begins. The current chunk and the last completed one always stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.topics import Topics
from eventstore.chunks.header import FOOTER_BYTES, ChunkHeader
from eventstore.records.state_record import QueueKey
from eventstore.settings.broker import BrokerSettings


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A chunk that is not deleted because a group still has messages in it to consume."""

    chunk: int
    group: str
    topic: str
    queue: int


def outdated(headers: Mapping[int, ChunkHeader], settings: BrokerSettings, now: int) -> list[int]:
    """Returns the chunks that exceed the retention rules, the oldest first. `now` is in microseconds."""
    completed = [headers[number] for number in sorted(headers) if headers[number].completed]
    left, size = len(completed), sum(header.end + FOOTER_BYTES for header in completed)
    created = _created(completed)
    found = []
    for header, following in pairwise(completed):
        rules = []
        if settings.retained_chunks_max is not None:
            rules.append(left > settings.retained_chunks_max)
        if settings.retained_age_s is not None:  # its last message came when the next chunk was begun
            rules.append(now - created[following.number] > settings.retained_age_s * 1_000_000)
        if settings.retained_bytes_max is not None:
            rules.append(size > settings.retained_bytes_max)
        if not rules or not (any(rules) if settings.retention == "any" else all(rules)):
            break
        found.append(header.number)
        left, size = left - 1, size - header.end - FOOTER_BYTES
    return found


def oldest_created(headers: Mapping[int, ChunkHeader]) -> int:
    """Returns when the oldest chunk was created, in microseconds; 0 if there is none."""
    return min((header.created for header in headers.values()), default=0)


def _created(headers: Sequence[ChunkHeader]) -> dict[int, int]:
    """Returns when each chunk was created: no later than the chunks after it, whatever the clock said."""
    found: dict[int, int] = {}
    latest: int | None = None
    for header in reversed(headers):
        found[header.number] = latest = header.created if latest is None else min(latest, header.created)
    return found


def held_back(chunk: int, begins: Mapping[QueueKey, int], topics: Topics, groups: Groups) -> HeldBack | None:
    """Returns a group that has messages in this chunk to consume. `begins`: the first offset of each queue after it."""
    for topic in topics.by_name.values():
        for queue in topic.queues:
            below = begins.get((topic.id, queue), 0)
            group = groups.offsets.unconsumed(topic.name, queue, below) if below else None
            if group is not None:
                return HeldBack(chunk, group, topic.name, queue)
    return None
