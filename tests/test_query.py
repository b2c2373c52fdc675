"""Queries as values: what they let pass, and how they travel."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.errors import InvalidArgument
from eventstore.query import ITEMS_MAX, QUERY_BYTES_MAX, Query, QueryItem

names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
items = st.builds(QueryItem, st.frozensets(names, max_size=4), st.sets(names, max_size=4).map(sorted).map(tuple))
queries = st.lists(items, min_size=1, max_size=5).map(tuple).map(Query._of)


@given(queries)
def test_a_query_arrives_as_it_was(query: Query) -> None:
    assert Query.unpacked(query.packed()) == query


@given(st.binary(max_size=80))
def test_any_bytes_are_a_query_or_refused(packed: bytes) -> None:
    try:
        query = Query.unpacked(packed)
    except InvalidArgument as error:
        assert error.fields["field"] in ("query", "types", "tags")
    else:
        assert Query.unpacked(query.packed()) == query


def test_threads_read_queries_at_the_same_time() -> None:
    packed = [Query([f"T-{number}"] * 3, [f"t:{number}-{each}" for each in range(30)]).packed() for number in range(8)]

    def read(number: int) -> bool:
        return all(Query.unpacked(packed[number]).packed() == packed[number] for _ in range(400))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(read, range(8)))
    finally:
        sys.setswitchinterval(before)


def test_a_query_has_limits() -> None:
    with pytest.raises(InvalidArgument, match="0 items"):
        Query.unpacked(b"")
    with pytest.raises(InvalidArgument, match=f"{ITEMS_MAX + 1} items"):
        Query.unpacked(b"\x00\x00" * (ITEMS_MAX + 1))
    large = Query._of(
        tuple(QueryItem(frozenset(f"{number}-{each}".ljust(255) for each in range(9)), ()) for number in range(60))
    )
    with pytest.raises(InvalidArgument, match=f"the limit is {QUERY_BYTES_MAX}"):
        large.packed()
    with pytest.raises(InvalidArgument, match="malformed"):
        Query.unpacked(bytes(QUERY_BYTES_MAX + 1))
