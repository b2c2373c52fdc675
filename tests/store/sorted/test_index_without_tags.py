"""Indexes of files with tags by a program that knew files of format 2, but not tags yet: they lack the columns of tags."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import eventstore as es
from eventstore import blocking
from eventstore.chunks.files import OsFiles
from eventstore.query import Query
from eventstore.records.event_filter import EventFilter
from eventstore.records.event_page import decode_page
from eventstore.settings.store import StoreSettings
from eventstore.store.opening import OpenStore, open_folder
from eventstore.store.sorted.event_index import open_index
from eventstore.store.sorted.index_format import FORMAT, TAG_COLUMNS
from tests.server_thread import ServerThread
from tests.waiting import wait_until

FIXTURE = Path(__file__).parents[2] / "fixtures" / "index-without-tags"
QUERIES = [
    Query(tags=["course:c1"]),
    Query(tags=["course:c1", "student:s7"]),
    Query(["T"], ["course:c2"]) | Query(tags=["student:s7"]),
    Query(["Other"], ["course:c1"]),
    Query(tags=["course:c3"]),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "data"))


def opened(folder: Path) -> OpenStore:
    return open_folder(folder, StoreSettings(sort=False), files=OsFiles(), clock=lambda: 1.0)


def events_of(store: OpenStore, wanted: EventFilter, events_max: int | None = None) -> list[es.Event]:
    found, after = [], 0
    while True:
        page = store.engine.scan(after, wanted, 1 << 20, events_max)
        found += [each for each in decode_page(page.records) if each.sequence > after and wanted.matches(each)]
        after = page.next
        if page.at_end:
            return found


def lacks_tags(path: Path) -> bool:
    header = open_index(OsFiles(), path).header
    assert header.format == FORMAT
    return not TAG_COLUMNS.keys() & header.columns.keys()


def test_no_event_is_hidden_and_the_indexes_are_reported_to_be_built_again(folder: Path) -> None:
    assert [lacks_tags(folder / f"events/000000000{number}.index") for number in (1, 2)] == [True, True]
    store = opened(folder)
    reported: list[int] = []
    store.engine.files.on_damage = reported.append
    events = events_of(store, EventFilter())
    assert (len(events), sum("course:c1" in each.tags for each in events), reported) == (23, 12, [])
    for _ in range(2):
        for query in QUERIES:
            for events_max in (None, 1, 3):
                found = events_of(store, EventFilter(query=query), events_max)
                assert found == [each for each in events if query.matches(each)]
    assert reported == [1, 2], "once each"
    store.close()


def test_a_server_builds_them_again_and_holds_conditions_meanwhile(folder: Path) -> None:
    with ServerThread(folder) as server, blocking.connect(server.address) as store:
        write = es.Write("acc-0", [es.NewEvent("T", b"", tags=["course:c1"])], es.ANY)
        with pytest.raises(es.ConditionFailed) as refused:
            store.commit([write], unless=Query(tags=["student:s7"]), after=0)
        assert refused.value.fields["sequence"] < 20, "of a sorted file"
        found, _ = store.query(Query(tags=["course:c1"]))
        assert len(found) == 12
        wait_until(lambda: not any(lacks_tags(path) for path in (folder / "events").glob("*.index")), "they are built again")
        assert store.query(Query(tags=["course:c1"]))[0] == found
