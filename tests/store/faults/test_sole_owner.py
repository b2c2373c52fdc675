"""One process at a time owns a data folder, and its clock affects only timestamps."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eventstore.errors import FolderRefused
from eventstore.settings.store import StoreSettings
from eventstore.store.opening import open_folder
from eventstore.store.verification.folder_survey import held
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker
from tests.store.stepped import raw

HOLDER = """
import sys
from pathlib import Path
from eventstore.settings.store import StoreSettings
from eventstore.store.opening import open_folder
opened = open_folder(Path(sys.argv[1]), StoreSettings())
print("open", flush=True)
sys.stdin.read()
opened.close()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Starts another process that keeps the store open until its standard input closes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".mdb"}


def test_a_second_process_is_refused_with_the_holder_and_changes_nothing(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        before = files_in(tmp_path)
        with pytest.raises(FolderRefused, match=f"in use by process {process.pid}"):
            open_folder(tmp_path, StoreSettings())
        assert files_in(tmp_path) == before
        process.communicate()
    open_folder(tmp_path, StoreSettings()).close()


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    opened = open_folder(tmp_path, StoreSettings())
    assert opened.report.directory == "kept", "the probe found nothing wrong"
    opened.close()


def test_a_store_opens_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_folder(tmp_path / "data", StoreSettings())
    opened.engine.append_batch([raw("a", "c-1")])
    segment = opened.engine.take()
    assert segment is not None
    opened.engine.write(segment)
    opened.engine.mark_written(segment, durable=True)
    opened.close()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:  # a write that needs a new block
        disk.setattr(os, "pwrite", full)
        disk.setattr(Path, "write_bytes", full)
        opened = open_folder(tmp_path / "data", StoreSettings())
    assert opened.engine.version("a") == 1
    with pytest.raises(FolderRefused):
        open_folder(tmp_path / "data", StoreSettings())
    opened.close()


def test_a_second_open_in_the_same_process_is_refused(tmp_path: Path) -> None:
    opened = open_folder(tmp_path, StoreSettings())
    with pytest.raises(FolderRefused, match="in use"):
        open_folder(tmp_path, StoreSettings())
    opened.close()
    open_folder(tmp_path, StoreSettings()).close()


def test_a_child_that_began_during_a_verification_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    open_folder(tmp_path, StoreSettings()).close()
    reading, writing = os.pipe()
    with held(tmp_path):
        child = os.fork()
        if not child:
            os.close(writing)
            os.read(reading, 1)  # until the parent has looked
            os._exit(0)
    try:
        open_folder(tmp_path, StoreSettings()).close()
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_a_data_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    with pytest.raises(FolderRefused, match="is a file"):
        open_folder(path, StoreSettings())
    with pytest.raises(FolderRefused, match="is a file"):
        open_folder(path / "below", StoreSettings())
    assert path.read_bytes() == b"x"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(FolderRefused, match="cannot be written"):
        open_folder(tmp_path, StoreSettings())


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize("jump", [-3_600.0, 10 * 365 * 86_400.0], ids=["an hour back", "ten years ahead"])
def test_a_clock_that_jumps_changes_neither_order_nor_versions(opened: Maker, jump: float) -> None:
    clock, disk = Clock(), SimulatedDisk(0)
    store = opened(disk, clock=clock)

    def append(first: int, last: int) -> None:
        for number in range(first, last):
            store.append(raw(f"order-{number % 3}", f"command-{number}", when=None))

    append(0, 30)
    clock.seconds += jump
    append(30, 60)
    store.sort()
    store.close()
    store = opened(disk, clock=clock)
    clock.seconds -= 2 * jump
    append(60, 90)
    store.sort()
    state = store.state()
    assert [event.command_id for event in state] == [f"command-{number}" for number in range(90)]
    assert [event.sequence for event in state] == list(range(1, 91))
    for number in range(3):
        assert [event.version for event in store.read(f"order-{number}")] == list(range(1, 31))
    times = [event.timestamp for event in state]
    assert times != sorted(times), "the times are those of the clock"
    assert len(set(times)) == 3
