"""Record batches of all events hold what `read_all` returns, with every filter, from any position on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import eventstore as es
from eventstore.records.arrow_page import schema
from tests.contract.subjects import Subject, collect, contract
from tests.contract.test_reading_all import FILTERS, SMALL_FILES, commits


def by_place(row: dict[str, Any]) -> tuple[str, int]:
    """Of shards, pages come in any order."""
    return row["aggregate_id"], row["version"]


def rows_of(events: list[es.Event]) -> list[dict[str, Any]]:
    return [
        {
            "sequence": event.sequence,
            "aggregate_id": event.aggregate_id,
            "version": event.version,
            "type": event.type,
            "timestamp": event.time,
            "command_id": event.command_id,
            "data": event.data,
            "is_json": event.is_json,
            "metadata": event.metadata,
            "tags": list(event.tags),
        }
        for event in events
    ]


def table(batches: list[Any]) -> list[dict[str, Any]]:
    whole = pa.Table.from_batches(batches, schema())
    whole.validate(full=True)
    return whole.to_pylist()


def different(number: int) -> list[es.NewEvent]:
    """Events with data and metadata of all lengths that are written differently, with tags and without."""
    sizes = (0, 1, 255, 256, 65_535, 65_536)
    data, metadata = bytes(sizes[number % 6]), [None, {"by": "x"}, b"", b"m" * sizes[number // 6 % 6]][number % 4]
    tags = [f"t:{number}", "all"] if number % 3 == 0 else ()
    return [es.NewEvent("T" * (1 + number * 7 % 60), data if number % 5 else {"n": number}, metadata, tags)] * (1 + number % 3)


@contract(**SMALL_FILES)
async def test_batches_have_the_events_of_read_all(subject: Subject) -> None:
    store = subject.store
    await store.append_many(commits(60))
    await store.append_many([es.Commit(f"other-{n % 7}", different(n), es.ANY) for n in range(40)])
    await store.append("many", [es.NewEvent("M", b"%d" % n) for n in range(100)], 0)
    for given in FILTERS:
        if "types" in given and not isinstance(given["types"], (list, set, tuple)):
            continue  # an iterator, which is read once
        expected = rows_of(await collect(store.read_all(**given)))
        found = table(await collect(store.read_all_arrow(**given)))
        assert sorted(found, key=by_place) == sorted(expected, key=by_place)
    tagged = es.Query(tags=["all"])
    assert len(table(await collect(store.read_all_arrow(query=tagged)))) == len(await collect(store.read_all(query=tagged)))


@contract(**SMALL_FILES)
async def test_batches_continue_at_a_position(subject: Subject) -> None:
    store = subject.store
    await store.append_many(commits(40, size=20_000))
    whole = table(await collect(store.read_all_arrow()))
    position, found = 0, list[Any]()
    while True:
        stream = store.read_all_arrow(position)
        batches = [batch async for batch in stream]
        if not batches:
            break
        found += batches
        position = stream.position
    assert sorted(table(found), key=by_place) == sorted(whole, key=by_place)
    first = store.read_all_arrow()
    async for batch in first:
        begun = [batch]
        break
    rest = await collect(store.read_all_arrow(first.position))
    assert sorted(table(begun + rest), key=by_place) == sorted(whole, key=by_place)
    await first.aclose()


@contract
async def test_an_empty_store_has_no_batches(subject: Subject) -> None:
    store = subject.store
    assert await collect(store.read_all_arrow()) == []


def test_a_page_that_is_cut_off_is_refused() -> None:
    from eventstore.errors import ProtocolError
    from eventstore.records.arrow_page import decode_arrow_page
    from eventstore.records.event_filter import EVERYTHING

    for records in (bytes(7), bytes(200), b"\xff" * 300):
        with pytest.raises(ProtocolError):
            decode_arrow_page(records, 0, EVERYTHING)
