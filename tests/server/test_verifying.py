"""A server reads its completed files again and again, and says which of them are damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import eventstore as es
from eventstore.blocking import connect
from eventstore.chunks.files import OsFiles
from eventstore.server.verification import verifying
from eventstore.store.sorted.index_format import FORMAT, IndexHeader, read_header
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import wait_until

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.mark.long
def test_rot_in_a_sorted_file_of_a_single_store_is_found_reported_and_over_when_the_file_is_restored(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", file_size_bytes=16 * 1024, verify_rate=4 << 30, alarm_quiet_s=1) as server,
        connect(server.address) as store,
    ):
        for number in range(100):
            store.append(f"a-{number}", [es.NewEvent("Counted", bytes(500))], 0)
        wait_until(lambda: (tmp_path / "data/events/0000000001.index").exists(), "the first file is sorted")
        wait_until(lambda: int(store.stats()["verified_bytes"] or 0) > 0, "files are read")
        assert store.stats()["attention"] is None
        path = tmp_path / "data/events/0000000001.events"
        good = path.read_bytes()
        damaged = bytearray(good)
        damaged[9000] ^= 1
        path.write_bytes(damaged)
        wait_until(lambda: store.stats()["rot_files"], "rot is found")
        found = store.stats()
        assert "corrupt at byte offset" in str(found["attention"])
        assert "0000000001.events" in str(found["attention"])
        assert (found["rot_found"], found["rot_mended"]) == (1, 0)
        path.write_bytes(good)
        wait_until(lambda: not store.stats()["rot_files"], "the file is good again")
        path.rename(tmp_path / "moved")
        wait_until(lambda: "0000000001.events is missing" in str(store.stats()["attention"]), "a file that is gone is named")
        (tmp_path / "moved").rename(path)
        wait_until(lambda: not store.stats()["rot_files"], "the file is there again")
        wait_until(lambda: store.stats()["attention"] is None, "the alarm is over")


def test_the_index_that_an_older_version_wrote_is_built_again_once_its_file_was_read(tmp_path: Path) -> None:
    data = Path(shutil.copytree(FIXTURES / "format-1", tmp_path / "data"))
    for old in (FIXTURES / "index-2").iterdir():
        shutil.copy(old, data / "events")
    with (
        ServerThread(data, file_size_bytes=12 * 1024, preallocate_bytes=4096, verify_rate=4 << 30) as server,
        connect(server.address) as store,
    ):
        before = list(store.read_all())
        wait_until(lambda: {header_of(data, number).format for number in (1, 2, 3)} == {FORMAT}, "all have the new format")
        assert list(store.read_all()) == before
        aggregates = {event.aggregate_id for event in before if not event.aggregate_id.startswith("$")}
        for name in aggregates:
            assert list(store.read(name)) == [event for event in before if event.aggregate_id == name]


def header_of(data: Path, number: int) -> IndexHeader:
    path = data / f"events/{number:010d}.index"
    if not path.exists():
        path = FIXTURES / "index-2/0000000001.index"  # it is not sorted yet
    return read_header(OsFiles().open(path), str(path))


def test_nothing_is_read_at_a_rate_of_0(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", file_size_bytes=16 * 1024, verify_rate=0) as server,
        connect(server.address) as store,
    ):
        for number in range(60):
            store.append(f"a-{number}", [es.NewEvent("Counted", bytes(500))], 0)
        wait_until(lambda: (tmp_path / "data/events/0000000001.index").exists(), "the first file is sorted")
        assert store.stats()["verified_bytes"] == 0


def test_a_pass_over_no_completed_file_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "_PAUSE_S", 0.05)
    data = tmp_path / "data"
    with ServerThread(data, file_size_bytes=16 * 1024, verify_rate=4 << 30) as server, connect(server.address) as store:
        wait_until((data / verifying.DOCUMENT).exists, "the first pass has ended")
        assert store.stats()["verified_passes"] == 0
        for number in range(40):
            store.append(f"a-{number}", [es.NewEvent("Counted", bytes(500))], 0)
        wait_until(lambda: store.stats()["verified_passes"], "a pass that has read a sorted file counts")
        assert int(store.stats()["verified_bytes"] or 0) > 0
