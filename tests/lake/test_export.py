"""The tables of a lake have each event of the domain exactly once, wherever an export was ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias
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
from eventstore.lake.tables import DeltaTables, IcebergTables, folder_name
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


Kind: TypeAlias = type[DeltaTables | IcebergTables]
both = pytest.mark.parametrize("kind", [DeltaTables, IcebergTables], ids=["delta", "iceberg"])


def export(store: BlockingStore, folder: Path, kind: Kind, domain: d.Domain = app, chunk_events: int = 7) -> Exported:
    progress = LakeProgress(folder, kind.kind)
    try:
        with closing(kind(folder, progress.lake)) as tables:
            return export_events(store, domain, progress, tables, chunk_events=chunk_events)
    finally:
        progress.close()


def table(folder: Path, kind: Kind, type_: str) -> pa.Table:
    with closing(kind(folder, "")) as tables:
        if isinstance(tables, IcebergTables):
            return tables.table(type_).scan().to_arrow()
        return DeltaTable(tables.path(type_)).to_pyarrow_table()


def types(folder: Path, kind: Kind) -> list[str]:
    with closing(kind(folder, "")) as tables:
        return tables.types()


def keys(folder: Path, kind: Kind, type_: str) -> list[tuple[str, int]]:
    return sorted((row["aggregate_id"], row["version"]) for row in table(folder, kind, type_).to_pylist())


def check(store: BlockingStore, folder: Path, kind: Kind) -> None:
    """Compares the tables with the store."""
    for name in ("shop.Placed", "shop.Paid"):
        expected = sorted((event.aggregate_id, event.version) for event in store.read_all(types=[name]))
        assert keys(folder, kind, name) == expected


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockingStore]:
    with ServerThread(tmp_path / "data") as server, es.blocking.connect(server.address) as connected:
        yield connected


@both
def test_each_run_adds_what_is_new_in_columns_of_the_classes_types(tmp_path: Path, store: BlockingStore, kind: Kind) -> None:
    lake = tmp_path / "lake"
    assert export(store, lake, kind) == (0, 0)
    append(store, 1, 20)
    assert export(store, lake, kind) == (50, 2)
    assert export(store, lake, kind) == (0, 0)
    append(store, 21, 3)
    assert export(store, lake, kind).events == 3 + 1 + 2 + 3
    check(store, lake, kind)
    placed_orders = table(lake, kind, "shop.Placed")
    assert placed_orders.schema.field("total").type == pa.decimal128(38, 18)
    assert placed_orders.schema.field("at").type == pa.timestamp("us", "UTC")
    (row,) = [row for row in placed_orders.to_pylist() if row["aggregate_id"] == "order-5"]
    assert (row["customer"], row["total"], row["at"], row["items"]) == (str(UUID(int=5)), Decimal("1.25"), NOON, ["a"])
    assert types(lake, kind) == ["shop.Paid", "shop.Placed"]


@both
def test_a_class_that_is_gone_for_a_while_continues_where_it_was(tmp_path: Path, store: BlockingStore, kind: Kind) -> None:
    lake = tmp_path / "lake"
    append(store, 1, 10)
    export(store, lake, kind)
    append(store, 11, 10)
    assert export(store, lake, kind, shop_before.app).tables == 1
    append(store, 21, 10)
    export(store, lake, kind)
    check(store, lake, kind)


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


class KilledTables:
    """Steps before and after tables get rows."""

    def __init__(self, tables: DeltaTables | IcebergTables, steps: Steps) -> None:
        self._tables, self._steps = tables, steps
        self.kind, self.chunk, self.close = tables.kind, tables.chunk, tables.close

    def append(self, type_: str, chunk: int, rows: pa.Table) -> None:
        self._steps.step()
        self._tables.append(type_, chunk, rows)
        self._steps.step()


def killed_export(store: BlockingStore, folder: Path, kind: Kind, steps: Steps) -> bool:
    """Returns whether it was killed."""
    progress = KilledProgress(folder, kind.kind)
    progress.steps = steps
    try:
        with closing(KilledTables(kind(folder, progress.lake), steps)) as tables:
            export_events(store, app, progress, tables, chunk_events=7)
        return False
    except Killed:
        return True
    finally:
        progress.close()


def check_killed_everywhere(store: BlockingStore, tmp_path: Path, kind: Kind) -> int:
    """Ends an export at each of its steps, appends more, ends the next one at the first steps, and lets another one finish."""
    append(store, 1, 40)
    count = 0
    while killed_export(store, tmp_path / f"lake-{count}", kind, Steps(count)):
        count += 1
    for step in range(count):
        lake = tmp_path / f"lake-{step}"
        append(store, 100 + step, 1)
        killed_export(store, lake, kind, Steps(step % 5))
        export(store, lake, kind)
        check(store, lake, kind)
        assert export(store, lake, kind) == (0, 0)
    return count


@both
def test_an_export_that_was_killed_at_any_step_is_continued(tmp_path: Path, store: BlockingStore, kind: Kind) -> None:
    assert check_killed_everywhere(store, tmp_path, kind) > 12


@pytest.mark.heavy
def test_so_is_one_of_several_shards(tmp_path: Path) -> None:
    with LedShards(tmp_path / "shards", 3) as shards, es.blocking.connect(shards.address) as store:
        check_killed_everywhere(store, tmp_path, DeltaTables)


def _killed_after(command: list[str], lake: Path, kind: Kind, files: int) -> bool:
    """Runs a process until it has written so many files of commits. Returns whether it ended by itself."""

    def commits() -> int:
        return len(list(lake.glob("*/_delta_log/*.json" if kind is DeltaTables else "*/metadata/*.json")))

    before = commits()
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until(lambda: process.poll() is not None or commits() >= before + files, "the next commit")
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
    finally:
        code = process.wait(60)
    assert code in (0, -signal.SIGKILL)
    return code == 0


@both
@pytest.mark.heavy
def test_a_process_that_is_killed_again_and_again_adds_each_event_once(
    tmp_path: Path, store: BlockingStore, kind: Kind
) -> None:
    append(store, 1, 100)
    lake = tmp_path / "lake"
    command = [sys.executable, "-m", "eventstore", "lake", f"{kind.kind}:{lake}", "--domain", "tests.lake.shop:app"]
    command += ["--store", str(store._connection.address), "--chunk-events", "20", "--no-progress"]
    kills = 0
    while not _killed_after(command, lake, kind, files=1 + kills % 7):
        kills += 1
    assert kills > 1
    check(store, lake, kind)


@both
def test_a_class_that_comes_later_gets_its_earlier_events_and_a_field_a_column(
    tmp_path: Path, store: BlockingStore, kind: Kind
) -> None:
    append(store, 1, 9)
    lake = tmp_path / "lake"
    export(store, lake, kind, shop_before.app)
    assert types(lake, kind) == ["shop.Paid"]
    append(store, 20, 2)
    export(store, lake, kind, shop_later.app)
    check(store, lake, kind)
    rows = table(lake, kind, "shop.Paid").to_pylist()
    assert {row["currency"] for row in rows if row["aggregate_id"] == "order-21"} == {"EUR"}


def test_what_it_cannot_be_sure_of_is_refused(tmp_path: Path, store: BlockingStore) -> None:
    lake = tmp_path / "lake"
    append(store, 1, 2)
    export(store, lake, DeltaTables)
    held = LakeProgress(lake, "delta")
    with pytest.raises(es.FolderRefused):
        LakeProgress(lake, "delta")
    held.close()
    with pytest.raises(es.FolderRefused, match="tables of delta"):
        export(store, lake, IcebergTables)
    (lake / "eventstore.json").rename(tmp_path / "away")
    with pytest.raises(es.FolderRefused, match="which says what is in them"):
        export(store, lake, DeltaTables)
    (tmp_path / "away").rename(lake / "eventstore.json")
    with ServerThread(tmp_path / "other") as server, es.blocking.connect(server.address) as other:
        append(other, 1, 5)
        with pytest.raises(es.EventStoreError):
            export(other, lake, DeltaTables)
    store.append("bad", [es.NewEvent("shop.Paid", {"cents": "many"})], 0)
    with pytest.raises(es.PayloadInvalid, match="cents"):
        export(store, lake, DeltaTables)


@pytest.mark.parametrize("name", ["a/b", "..", "_x", "ü%", ".", "A b"])
@both
def test_a_type_of_any_name_has_a_folder_of_its_own(tmp_path: Path, name: str, kind: Kind) -> None:
    assert folder_name(name)[0] not in "._"
    with closing(kind(tmp_path, "lake")) as tables:
        tables.append(name, 3, pa.table({"n": [1]}))
        assert (tmp_path / folder_name(name)).is_dir()
        assert tables.types() == [name]
        assert tables.chunk(name) == 3
        assert tables.chunk("missing") == 0
        tables.append(name, 4, pa.table({"n": [2]}))
        with pytest.raises(es.FolderRefused, match="takes no events"):
            tables.append(name, 5, pa.table({"n": ["3"]}))
        assert tables.chunk(name) == 4
    assert table(tmp_path, kind, name).num_rows == 2
