"""Pages of aggregates: from the directory or, if it is damaged, the indexes, merged with the unsorted files."""

from __future__ import annotations

import threading

import pytest

from eventstore.aggregate_info import IdRange, id_range
from eventstore.errors import StorageFull
from eventstore.model import NewEvent
from eventstore.store.memory import ordered_ids
from tests.store.conftest import Maker
from tests.store.stepped import Stepped, raw

EVERY = IdRange("", "")


@pytest.fixture(params=[1, 3, 4096])
def _run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_ids, "_RUN_IDS", request.param)


def versions(store: Stepped) -> list[tuple[str, int]]:
    return sorted({event.aggregate_id: event.version for event in store.state()}.items())


def paged(store: Stepped, limit: int, prefix: str = "") -> list[tuple[str, int]]:
    rows: list[tuple[str, int]] = []
    while True:
        page = store.engine.list_aggregates(id_range(prefix, rows[-1][0] if rows else None, limit), limit)
        rows += page
        if len(page) < limit:
            return rows


@pytest.mark.usefixtures("_run")
def test_pages_of_any_size_give_every_aggregate_once(filled: Stepped) -> None:
    """And the list follows what is appended and sorted after it was asked for."""
    for number in range(12):
        for limit in (1, 2, 3, 5, 1_000):
            assert paged(filled, limit) == versions(filled)
            assert paged(filled, limit, "order-1") == [row for row in versions(filled) if row[0].startswith("order-1")]
        filled.append(raw(f"order-{number * 7 % 11 + 3}", f"more-{number}"))
        if number in (4, 8):
            filled.sort(files=1)


@pytest.mark.usefixtures("_run")
def test_what_is_not_visible_is_not_listed_and_pages_are_full_nevertheless(opened: Maker) -> None:
    store = opened()
    store.append(*(raw(f"order-{number}", "first") for number in (1, 5)))
    store.engine.append_batch([raw(f"order-{number}", "pending") for number in (0, 2, 3, 4, 5)])
    assert store.engine.list_aggregates(EVERY, 2) == [("order-1", 1), ("order-5", 1)]
    store.persist()
    assert paged(store, 2) == [("order-0", 1), ("order-1", 1), ("order-2", 1), ("order-3", 1), ("order-4", 1), ("order-5", 2)]


@pytest.mark.usefixtures("_run")
def test_ids_that_were_undone_are_gone_and_later_ones_are_found(opened: Maker) -> None:
    store = opened()
    store.append(raw("b", "first"))
    for name in ("c", "a"):
        store.engine.append_batch([raw(name, "undone"), raw(f"{name}-more", "undone")])
        assert store.engine.list_aggregates(EVERY, 9) == [("b", 1)]  # the ids are known by now
        segment = store.engine.take()
        store.engine.roll_back(StorageFull("full", path="/data"))
        assert segment is not None
    store.append(raw("d", "kept"), raw("a", "kept"))
    assert store.engine.list_aggregates(EVERY, 9) == [("a", 1), ("b", 1), ("d", 1)]


def test_a_list_is_made_while_others_append(opened: Maker) -> None:
    store = opened()
    store.append(raw("order-0", "first"))
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            rows = paged(store, 100)
            assert rows == sorted(rows)
            assert len({name for name, _ in rows}) == len(rows)
            seen.append(len(rows))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 1_500):
        store.append(raw(f"order-{number}", "c", NewEvent("T")))
    done.set()
    reader.join()
    assert seen == sorted(seen)
    assert len(paged(store, 1_000)) == 1_500
