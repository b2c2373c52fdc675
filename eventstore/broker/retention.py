"""Which of the oldest message chunks may be deleted: by number, age and bytes, and by what the groups have consumed.

A chunk goes only when the one behind it is completed as well: that one then says where every queue begins. The ongoing chunk,
and the last completed one, always stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from eventstore.broker.groups import Groups
from eventstore.broker.settings import BrokerSettings
from eventstore.broker.state_record import QueueKey
from eventstore.broker.topics import Topics
from eventstore.chunks.header import FOOTER_BYTES, ChunkHeader


@dataclass(frozen=True, slots=True)
class Held:
    """A chunk that would be deleted, but for a group that still has messages of it to consume."""

    chunk: int
    group: str
    topic: str
    queue: int


def outdated(headers: Mapping[int, ChunkHeader], settings: BrokerSettings, now: int) -> list[int]:
    """The chunks that the rules want deleted, the oldest first. `now`: in microseconds."""
    completed = [headers[number] for number in sorted(headers) if headers[number].completed]
    left, size = len(completed), sum(header.end + FOOTER_BYTES for header in completed)
    found = []
    for header, following in pairwise(completed):
        rules = []
        if settings.retained_chunks_max is not None:
            rules.append(left > settings.retained_chunks_max)
        if settings.retained_age_s is not None:  # its last message came when the next chunk was begun
            rules.append(now - following.created > settings.retained_age_s * 1_000_000)
        if settings.retained_bytes_max is not None:
            rules.append(size > settings.retained_bytes_max)
        if not rules or not (any(rules) if settings.retention == "any" else all(rules)):
            break
        found.append(header.number)
        left, size = left - 1, size - header.end - FOOTER_BYTES
    return found


def held_back(chunk: int, begins: Mapping[QueueKey, int], topics: Topics, groups: Groups) -> Held | None:
    """Who has not consumed everything of this chunk. `begins`: where each queue stands behind it."""
    for topic in topics.by_name.values():
        for queue in topic.queues:
            below = begins.get((topic.id, queue), 0)
            group = groups.offsets.unconsumed(topic.name, queue, below) if below else None
            if group is not None:
                return Held(chunk, group, topic.name, queue)
    return None
