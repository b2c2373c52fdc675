"""Queries as values: what they let pass, and how they travel."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.errors import InvalidArgument
from eventstore.query import ITEMS_MAX, QUERY_BYTES_MAX, Query, QueryItem

names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
items = st.builds(QueryItem, st.frozensets(names, max_size=4), st.sets(names, max_size=4).map(sorted).map(tuple))
queries = st.lists(items, min_size=1, max_size=5).map(tuple).map(Query.of)


@given(queries)
def test_a_query_arrives_as_it_was(made: Query) -> None:
    assert Query.unpacked(made.packed()) == made


@given(st.binary(max_size=80))
def test_any_bytes_are_a_query_or_refused(packed: bytes) -> None:
    with suppress(InvalidArgument):
        found = Query.unpacked(packed)
        assert Query.unpacked(found.packed()) == found


def test_a_query_has_limits() -> None:
    with pytest.raises(InvalidArgument, match="0 items"):
        Query.unpacked(b"")
    with pytest.raises(InvalidArgument, match=f"{ITEMS_MAX + 1} items"):
        Query.unpacked(b"\x00\x00" * (ITEMS_MAX + 1))
    large = Query.of(
        tuple(QueryItem(frozenset(f"{number}-{each}".ljust(255) for each in range(9)), ()) for number in range(60))
    )
    with pytest.raises(InvalidArgument, match=f"the limit is {QUERY_BYTES_MAX}"):
        large.packed()
    with pytest.raises(InvalidArgument, match="malformed"):
        Query.unpacked(bytes(QUERY_BYTES_MAX + 1))
