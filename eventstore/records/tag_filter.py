"""Filters the messages of a topic by tag: `paid | cancelled`, or `*` for all of them.

The broker compares hashes first, without reading the message, and then the tag itself, because two tags may have the same hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from eventstore import flat
from eventstore.errors import InvalidArgument
from eventstore.fields import check_text, shown
from eventstore.records.message import HEADER_BYTES, TEXT_BYTES_MAX, text_hash

EXPRESSION_BYTES_MAX: Final = 4096
TAGS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The wanted tags.

    Attributes:
        packed: their bytes in a record, where the tag follows the header.
    """

    tags: tuple[str, ...]
    hashes: frozenset[int]
    packed: tuple[bytes, ...]

    def matches(self, record: bytes) -> bool:
        return record.startswith(self.packed, HEADER_BYTES)


def parse_tags(expression: object) -> TagFilter | None:
    """Returns the filter for an expression; None lets every message pass.

    Raises:
        InvalidArgument: it does not parse.
    """
    if expression is None:
        return None
    text = check_text("tags", expression, 1, EXPRESSION_BYTES_MAX)
    tags = tuple(sorted({part.strip() for part in text.split("|")}))
    if tags == ("*",):
        return None
    if "" in tags or "*" in tags or len(tags) > TAGS_MAX or any(len(tag.encode()) > TEXT_BYTES_MAX for tag in tags):
        raise InvalidArgument(
            f"tags is {shown(expression)}; write * for all, or 1 to {TAGS_MAX} tags of 1 to {TEXT_BYTES_MAX} bytes "
            "with | between them",
            field="tags",
            value=shown(expression),
        )
    return TagFilter(tags, frozenset(map(text_hash, tags)), tuple(flat.encode((tag,)) for tag in tags))
