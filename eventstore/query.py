"""Queries: which events a reader or a decision is about, by their types and tags, across aggregates.

    es.Query(types=["Subscribed"], tags=["course:c1"]) | es.Query(tags=["student:s7"])

The meaning is that of the DCB specification: an item lets an event pass that has one of its types, if it names any, and all of
its tags; a query lets an event pass if one of its items does. A query without types and tags lets every event pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from eventstore import flat
from eventstore.errors import InvalidArgument
from eventstore.fields import check_text, shown
from eventstore.model import FILTER_TYPES_MAX, TYPE_BYTES_MAX, Event
from eventstore.tags import TAGS_MAX, checked_tags

ITEMS_MAX: Final = 64
QUERY_BYTES_MAX: Final = 65_536
_KEPT_MAX: Final = 64
"""Of queries that were read: a server checks each when its request comes, and reads it when it takes the request."""
_VALUES_MAX: Final = ITEMS_MAX * (2 + FILTER_TYPES_MAX + TAGS_MAX)


class QueryItem(NamedTuple):
    """`types`: one of them; empty: any. `tags`: all of them, in the order in which they are stored."""

    types: frozenset[str]
    tags: tuple[str, ...]

    def passes(self, type_: str, tags: frozenset[str]) -> bool:
        """Whether an event of this type passes that has these tags."""
        return (not self.types or type_ in self.types) and tags.issuperset(self.tags)


@dataclass(frozen=True, slots=True, init=False)
class Query:
    """A condition on types and tags: one of up to 256 `types`, if any are given, and all of up to 32 `tags`. `|` joins up to 64
    of them to a query that lets an event pass if one of them does.
    """

    items: tuple[QueryItem, ...]
    by_tags: bool = field(compare=False, repr=False)
    """Whether each item has tags, so that what may pass is found by them alone."""

    def __init__(self, types: Iterable[str] = (), tags: Iterable[str] = ()) -> None:
        """Raises InvalidArgument: a limit is broken."""
        self._have((QueryItem(_checked_types(types), checked_tags(tags)),))

    def _have(self, items: tuple[QueryItem, ...]) -> None:
        object.__setattr__(self, "items", items)
        object.__setattr__(self, "by_tags", all(item.tags for item in items))

    def __or__(self, other: Query) -> Query:
        if not isinstance(other, Query):
            return NotImplemented
        return Query.of(tuple(dict.fromkeys((*self.items, *other.items))))

    @classmethod
    def of(cls, items: tuple[QueryItem, ...]) -> Query:
        """Returns the query of these items, as other queries have them. Raises InvalidArgument: none, or more than 64."""
        if not 0 < len(items) <= ITEMS_MAX:
            what = f"a query of {len(items)} items, allowed are 1 to {ITEMS_MAX}"
            raise InvalidArgument(what, field="query", limit=ITEMS_MAX, value=len(items))
        query = cls.__new__(cls)
        query._have(items)
        return query

    def matches(self, event: Event) -> bool:
        """Whether the event passes."""
        type_, tags = event[2], frozenset(event.tags)
        return any(item.passes(type_, tags) for item in self.items)

    def may_match_in(self, records: bytes) -> bool:
        """Returns False if no event in these records can pass, because a name that each item needs is not in their bytes."""
        return any(
            all(tag.encode() in records for tag in item.tags)
            and (not item.types or any(name.encode() in records for name in item.types))
            for item in self.items
        )

    def packed(self) -> bytes:
        """Returns the query as it travels: flat msgpack, for each item the number of its types, the types ascending, the number
        of its tags, the tags.

        Raises:
            InvalidArgument: it takes more than 64 KiB.
        """
        values: list[flat.Scalar] = []
        for item in self.items:
            values += [len(item.types), *sorted(item.types), len(item.tags), *item.tags]
        packed = flat.encode(values)
        if len(packed) > QUERY_BYTES_MAX:
            what = f"a query of {len(packed)} bytes, the limit is {QUERY_BYTES_MAX}"
            raise InvalidArgument(what, field="query", limit=QUERY_BYTES_MAX, value=len(packed))
        return packed

    @staticmethod
    def unpacked(packed: bytes) -> Query:
        """Reads what `packed` returns, from outside. Raises InvalidArgument."""
        return _unpacked(packed)


@lru_cache(_KEPT_MAX)
def _unpacked(packed: bytes) -> Query:
    try:
        values = flat.Decoder(QUERY_BYTES_MAX, _VALUES_MAX).decode(packed)  # its own: blocking clients come on any thread
    except flat.Malformed as error:
        raise InvalidArgument(f"the query is malformed: {error}", field="query") from None
    items, at = list[QueryItem](), 0
    while at < len(values) and len(items) <= ITEMS_MAX:
        types, at = _names(values, at)
        tags, at = _names(values, at)
        items.append(QueryItem(_checked_types(types), checked_tags(tags)))
    return Query.of(tuple(items))


def check_query(query: object) -> Query:
    """Returns `query` if it is one. Raises InvalidArgument."""
    if not isinstance(query, Query):
        raise InvalidArgument(f"query is {shown(query)}; make one by Query(types=…, tags=…)", field="query", value=shown(query))
    return query


def _names(values: list[flat.Scalar], at: int) -> tuple[list[str], int]:
    count = values[at] if at < len(values) else None
    if not isinstance(count, int) or not 0 <= count < len(values) - at:
        raise InvalidArgument("the query is malformed: the number of names does not fit", field="query")
    end = at + 1 + count
    return values[at + 1 : end], end  # type: ignore[return-value] # each name is checked


def _checked_types(types: Iterable[str]) -> frozenset[str]:
    try:
        names = None if isinstance(types, str | bytes) else frozenset(types)
    except TypeError:
        names = None
    if names is None:
        raise InvalidArgument(f"types is {shown(types)}; give a list of event types", field="types", value=shown(types))
    if len(names) > FILTER_TYPES_MAX:
        what = f"{len(names)} event types, the limit is {FILTER_TYPES_MAX}"
        raise InvalidArgument(what, field="types", limit=FILTER_TYPES_MAX, value=len(names))
    for name in names:
        check_text("types", name, 1, TYPE_BYTES_MAX)
    return names
