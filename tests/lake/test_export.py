"""The tables of a lake have each event of the domain exactly once, wherever an export was ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import eventstore as es
import eventstore.domain as d
from eventstore.client.blocking.store import BlockingStore
from eventstore.domain.encoding.event_type import event_type
from eventstore.lake.export import Exported, export_events
from eventstore.lake.progress import LakeProgress, TypeGroup
from eventstore.lake.tables import DeltaTables
from tests.cluster.led_shards import LedShards
from tests.lake import shop_before, shop_later
from tests.lake.shop import Paid, Placed, app
from tests.server_thread import ServerThread
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def placed(number: int) -> es.NewEvent:
    items = ("a", "b", "c" * 100_000)[: number % 4]  # a few of these fill a page, and so a batch
    return event_type(Placed).encode(Placed(UUID(int=number), Decimal(number) / 4, NOON, items))


def paid(number: int) -> es.NewEvent:
    return event_type(Paid).encode(Paid(number))


def append(store: BlockingStore, first: int, count: int) -> None:
    """Orders of one event or several, and events that no class is for."""
    for number in range(first, first + count):
        store.append(f"order-{number}", [placed(number), *map(paid, range(number % 4)), es.NewEvent("other", b"x")], 0)


def export(store: BlockingStore, folder: Path, domain: d.Domain = app, chunk_events: int = 7) -> Exported:
    progress = LakeProgress(folder)
    try:
        return export_events(store, domain, progress, DeltaTables(folder, progress.lake), chunk_events=chunk_events)
    finally:
        progress.close()


def keys(folder: Path, type_: str) -> list[tuple[str, int]]:
    rows = DeltaTable(DeltaTables(folder, "").path(type_)).to_pyarrow_table().to_pylist()
    return sorted((row["aggregate_id"], row["version"]) for row in rows)


def check(store: BlockingStore, folder: Path, types: tuple[str, ...] = ("shop.Placed", "shop.Paid")) -> None:
    """Compares the tables with the store."""
    for name in types:
        expected = sorted((event.aggregate_id, event.version) for event in store.read_all(types=[name]))
        assert keys(folder, name) == expected


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockingStore]:
    with ServerThread(tmp_path / "data") as server, es.blocking.connect(server.address) as connected:
        yield connected


def test_each_run_adds_what_is_new_in_columns_of_the_classes_types(tmp_path: Path, store: BlockingStore) -> None:
    lake = tmp_path / "lake"
    assert export(store, lake) == (0, 0)
    append(store, 1, 20)
    assert export(store, lake) == (50, 2)
    assert export(store, lake) == (0, 0)
    append(store, 21, 3)
    assert export(store, lake).events == 3 + 1 + 2 + 3
    check(store, lake)
    table = DeltaTable(DeltaTables(lake, "").path("shop.Placed")).to_pyarrow_table()
    types = {field.name: field.type for field in table.schema}
    assert types["total"] == pa.decimal128(38, 18)
    assert types["at"] == pa.timestamp("us", "UTC")
    (row,) = [row for row in table.to_pylist() if row["aggregate_id"] == "order-5"]
    assert (row["customer"], row["total"], row["at"], row["items"]) == (str(UUID(int=5)), Decimal("1.25"), NOON, ["a"])
    assert DeltaTables(lake, "").types() == ["shop.Paid", "shop.Placed"]


class Killed(BaseException):
    pass


class Steps:
    """Kills an export after so many steps: a step is before, or after, something becomes durable."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self) -> None:
        if not self.left:
            raise Killed
        self.left -= 1


class KilledProgress(LakeProgress):
    steps: Steps

    def save(self, place: int, group: TypeGroup) -> None:
        self.steps.step()
        super().save(place, group)
        self.steps.step()


class KilledTables(DeltaTables):
    steps: Steps

    def append(self, type_: str, chunk: int, rows: pa.Table) -> None:
        self.steps.step()
        super().append(type_, chunk, rows)
        self.steps.step()


def killed_export(store: BlockingStore, folder: Path, steps: Steps) -> bool:
    """Returns whether it was killed."""
    progress = KilledProgress(folder)
    tables = KilledTables(folder, progress.lake)
    progress.steps = tables.steps = steps
    try:
        export_events(store, app, progress, tables, chunk_events=7)
        return False
    except Killed:
        return True
    finally:
        progress.close()


def check_killed_everywhere(store: BlockingStore, tmp_path: Path) -> int:
    """Ends an export at each of its steps, appends more, ends the next one at the first steps, and lets another one finish."""
    append(store, 1, 40)
    count = 0
    while killed_export(store, tmp_path / f"lake-{count}", Steps(count)):
        count += 1
    for step in range(count):
        lake = tmp_path / f"lake-{step}"
        append(store, 100 + step, 1)
        killed_export(store, lake, Steps(step % 5))
        export(store, lake)
        check(store, lake)
        assert export(store, lake) == (0, 0)
    return count


def test_an_export_that_was_killed_at_any_step_is_continued(tmp_path: Path, store: BlockingStore) -> None:
    assert check_killed_everywhere(store, tmp_path) > 12


@pytest.mark.heavy
def test_so_is_one_of_several_shards(tmp_path: Path) -> None:
    with LedShards(tmp_path / "shards", 3) as shards, es.blocking.connect(shards.address) as store:
        check_killed_everywhere(store, tmp_path)


def _killed_after_a_commit(command: list[str], lake: Path) -> bool:
    """Runs a process until it has made the next commit. Returns whether it ended by itself."""

    def commits() -> int:
        return len(list(lake.glob("*/_delta_log/*.json")))

    before = commits()
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until(lambda: process.poll() is not None or commits() > before, "the next commit")
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
    finally:
        code = process.wait(60)
    assert code in (0, -signal.SIGKILL)
    return code == 0


@pytest.mark.heavy
def test_a_process_that_is_killed_again_and_again_adds_each_event_once(tmp_path: Path, store: BlockingStore) -> None:
    append(store, 1, 100)
    lake = tmp_path / "lake"
    command = [sys.executable, "-m", "eventstore", "lake", f"delta:{lake}", "--domain", "tests.lake.shop:app"]
    command += ["--store", str(store._connection.address), "--chunk-events", "20", "--no-progress"]
    kills = 0
    while not _killed_after_a_commit(command, lake):
        kills += 1
    assert kills > 1
    check(store, lake)


def test_a_class_that_comes_later_gets_its_earlier_events_and_a_new_field_a_column(
    tmp_path: Path, store: BlockingStore
) -> None:
    append(store, 1, 9)
    lake = tmp_path / "lake"
    export(store, lake, shop_before.app)
    assert DeltaTables(lake, "").types() == ["shop.Paid"]
    append(store, 20, 2)
    export(store, lake, shop_later.app)
    check(store, lake)
    rows = DeltaTable(DeltaTables(lake, "").path("shop.Paid")).to_pyarrow_table().to_pylist()
    assert {row["currency"] for row in rows if row["aggregate_id"] == "order-21"} == {"EUR"}


def test_what_it_cannot_be_sure_of_is_refused(tmp_path: Path, store: BlockingStore) -> None:
    lake = tmp_path / "lake"
    append(store, 1, 2)
    export(store, lake)
    held = LakeProgress(lake)
    with pytest.raises(es.FolderRefused):
        LakeProgress(lake)
    held.close()
    (lake / "eventstore.json").rename(tmp_path / "away")
    with pytest.raises(es.FolderRefused, match="which says what is in them"):
        export(store, lake)
    (tmp_path / "away").rename(lake / "eventstore.json")
    with ServerThread(tmp_path / "other") as server, es.blocking.connect(server.address) as other:
        append(other, 1, 5)
        with pytest.raises(es.EventStoreError):
            export(other, lake)
    store.append("bad", [es.NewEvent("shop.Paid", {"cents": "many"})], 0)
    with pytest.raises(es.PayloadInvalid, match="cents"):
        export(store, lake)


@pytest.mark.parametrize("name", ["a/b", "..", "_x", "ü%", ".", "A b"])
def test_a_type_of_any_name_has_a_folder_of_its_own(tmp_path: Path, name: str) -> None:
    tables = DeltaTables(tmp_path, "lake")
    assert tables.path(name).parent == tmp_path
    assert tables.path(name).name[0] not in "._"
    tables.append(name, 3, pa.table({"n": [1]}))
    assert tables.types() == [name]
    assert tables.chunk(name) == 3
    assert tables.chunk("missing") == 0
