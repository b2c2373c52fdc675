"""The map of the directory changes its size only while no thread of this process reads it: LMDB demands it, unchecked."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from eventstore.store.sorted.directory import Directory
from eventstore.store.sorted.event_index import open_index
from eventstore.store.sorted.map_gate import MapGate
from tests.simulated_disk import SimulatedDisk
from tests.store.sorted.directory_pages import Many
from tests.store.stepped import EVENTS
from tests.waiting import DEADLINE_SECONDS, wait_until

SMALL_MAP_BYTES = 32 * 1024


class Watched:
    """LMDB's environment, with a record of which transactions were open when the map changed its size."""

    def __init__(self, environment: lmdb.Environment) -> None:
        self._environment = environment
        self._open: list[int] = []
        self.held: threading.Thread | None = None
        self.inside, self.may_leave = threading.Event(), threading.Event()
        self.open_at_change: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._environment, name)

    @contextmanager
    def begin(self, **arguments: bool) -> Iterator[lmdb.Transaction]:
        with self._environment.begin(**arguments) as transaction:
            self._open.append(1)
            try:
                if threading.current_thread() is self.held:
                    self.inside.set()
                    assert self.may_leave.wait(DEADLINE_SECONDS)
                yield transaction
            finally:
                self._open.pop()

    def set_mapsize(self, size: int) -> None:
        self.open_at_change.append(len(self._open))
        self.may_leave.set()  # the change does not wait for the reader: let the test fail, not hang
        self._environment.set_mapsize(size)


def add_files(directory: Directory, disk: SimulatedDisk) -> None:
    """Adds all sorted files, which takes a larger map."""
    for name in disk.names(EVENTS):
        if name.endswith(".index"):
            directory.add_file(open_index(disk, EVENTS / name))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Directory, Watched]]:
    directory = Directory(tmp_path / "small", SMALL_MAP_BYTES)
    environment = Watched(directory._env)
    directory._env = environment  # type: ignore[assignment]
    yield directory, environment
    directory.close()


def hold_a_reader(directory: Directory, environment: Watched) -> threading.Thread:
    """Starts a thread that stays in its look-up until `may_leave` is set."""
    reader = threading.Thread(target=directory.get, args=(b"customer-0042",), daemon=True)
    environment.held = reader
    reader.start()
    assert environment.inside.wait(DEADLINE_SECONDS)
    return reader


def test_a_map_that_grows_waits_for_the_readers_of_this_process(many: Many, watched: tuple[Directory, Watched]) -> None:
    directory, environment = watched
    reader = hold_a_reader(directory, environment)
    writer = threading.Thread(target=add_files, args=(directory, many[0]), daemon=True)
    writer.start()
    wait_until(lambda: directory.gate.changing or environment.open_at_change or not writer.is_alive(), "the map changes")
    assert environment.open_at_change == []
    assert directory.gate.changing
    late = threading.Thread(target=directory.get, args=(b"customer-0042",), daemon=True)
    late.start()  # begins while the map is about to change: waits, and is not forgotten
    environment.may_leave.set()
    for thread in reader, writer, late:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()
    assert environment.open_at_change
    assert set(environment.open_at_change) == {0}
    assert directory.get(b"customer-0042") is not None


def test_a_map_that_another_process_made_larger_is_adopted_while_nobody_reads(
    many: Many, watched: tuple[Directory, Watched], tmp_path: Path
) -> None:
    directory, environment = watched
    reader = hold_a_reader(directory, environment)
    program = (
        "import sys, lmdb\n"
        "environment = lmdb.open(sys.argv[1], map_size=1 << 26, max_dbs=2)\n"
        "with environment.begin(write=True) as transaction:\n"
        "    table = environment.open_db(sys.argv[2].encode(), txn=transaction)\n"
        "    for number in range(2000):\n"
        "        transaction.put(b'%06d' % number, bytes(100), db=table)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "small"), "files-2"], check=True)
    counted: list[int] = []
    second = threading.Thread(target=lambda: counted.append(directory.count()), daemon=True)
    second.start()
    wait_until(lambda: directory.gate.changing or environment.open_at_change, "the map is about to change")
    assert environment.open_at_change == []
    environment.may_leave.set()
    for thread in reader, second:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()
    assert counted == [0]
    assert environment.open_at_change == [0]


def test_a_change_and_many_readers_do_not_wait_for_each_other_for_ever() -> None:
    gate, inside, seen = MapGate(), [0], set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            with gate:
                seen.add(inside[0])

    readers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for reader in readers:
        reader.start()
    for _ in range(300):
        with gate.alone():
            inside[0] = 1
            inside[0] = 0
    done.set()
    for reader in readers:
        reader.join(DEADLINE_SECONDS)
        assert not reader.is_alive()
    assert seen == {0}
