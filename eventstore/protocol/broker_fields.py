"""Checks of what several requests to the broker have: topic, queue, offset, tags, group, member, generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, check_text

OFFSET_MAX: Final = 2**63 - 1
TIME_MIN: Final = -(2**63)
QUEUE_MAX: Final = 65_535
TAGS_BYTES_MAX: Final = 4_096

WirePlace: TypeAlias = "tuple[str, int, int]"
"""Topic, queue, queue offset."""


def check_member(group: object, member: object) -> None:
    check_text("group", group)
    check_text("member", member)


def check_generation(generation: object) -> None:
    check_int("generation", generation, 0, OFFSET_MAX)


def check_tags(tags: object) -> None:
    if tags is not None:
        check_text("tags", tags, 1, TAGS_BYTES_MAX)


def check_count(field: str, rows: Sequence[object], limit: int) -> None:
    if not 1 <= len(rows) <= limit:
        raise InvalidArgument(
            f"{len(rows)} {field} in one frame, allowed are 1 to {limit}", field=field, limit=limit, value=len(rows)
        )


def check_places(field: str, places: Sequence[WirePlace], limit: int) -> None:
    check_count(field, places, limit)
    for topic, queue, offset in places:
        check_text("topic", topic)
        check_int("queue", queue, 0, QUEUE_MAX)
        check_int("offset", offset, 0, OFFSET_MAX)
