"""A crash at every single operation of a store's life, in every mode: what was acknowledged is there, byte for byte.

The script appends, zeroes ahead, rolls from file to file, sorts and indexes, lists in the directory, closes and opens
again. Each run of it is stopped before the nth operation on the disk; then the store is opened from what is left, and
judged. The last judgement is the sharpest: when every command is sent once more, as clients do that got no answer, the
store must be exactly what it would be without the crash.
"""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import pytest

from eventstore.model import Event, NewEvent
from eventstore.store.appending import COMMITTED, DUPLICATE, RawCommit
from eventstore.store.events import EventsCheck
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk
from tests.store.stepped import Stepped, forget_directory, raw, spare_the_probe

RUNS: list[tuple[CrashMode, int]] = [("kept", 1), ("lost", 1), ("sectors", 1), ("sectors", 2)]
count_events = EventsCheck()


def batches() -> list[list[RawCommit]]:
    """Commits of one and of several events, small and larger than a file, on few aggregates; three to five in a batch."""
    rng = random.Random("batches")
    made = []
    for batch in range(22):
        commits = []
        for place in range(rng.randint(1, 5)):
            count = rng.choice((1, 1, 1, 2, 5))
            size = 9_000 if (batch, place) == (11, 0) else rng.choice((0, 10, 60, 300))
            events = [NewEvent(rng.choice(("Placed", "Paid")), bytes([number]) * size, b"m") for number in range(count)]
            commits.append(raw(f"order-{rng.randint(1, 6)}", f"command-{batch}-{place}", *events))
        made.append(commits)
    return made


BATCHES = batches()
EVENTS_OF = {(commit[0], commit[2]): count_events(commit[4])[0] for batch in BATCHES for commit in batch}
SORT_AFTER = (9, 16)
REOPEN_AFTER = 13


Command = tuple[str, str]


@dataclass
class Life:
    """A store going through the script, and what its clients were told: the commits acknowledged, and where each of them is."""

    disk: SimulatedDisk
    directory: Path
    acknowledged: dict[Command, tuple[int, int]] = field(default_factory=dict)
    store: Stepped | None = None

    def open(self) -> Stepped:
        self.store = Stepped(self.disk, self.directory)
        return self.store

    def run(self, store: Stepped) -> Stepped:
        """The script. Returns the store, which is another one after it was closed and opened again."""
        for number, batch in enumerate(BATCHES):
            for commit, outcome in zip(batch, store.append(*batch), strict=True):
                assert outcome[0] in (COMMITTED, DUPLICATE), outcome
                self.acknowledged[commit[0], commit[2]] = (outcome[1], outcome[2])  # type: ignore[assignment] # two ints
            store.engine.writer.zero_ahead.step()
            if number in SORT_AFTER:
                store.sort()
            if number == REOPEN_AFTER:
                store.close()
                store = self.open()
        return store


def judge(store: Stepped, told: Life, reference: list[Event]) -> None:
    """The promise of FAULTS.md, but for the retries."""
    state = store.state()
    assert [event.sequence for event in state] == list(range(1, len(state) + 1))
    by_command: dict[Command, list[Event]] = {}
    versions: dict[str, int] = {}
    for event in state:
        assert event.version == versions.get(event.aggregate_id, 0) + 1
        versions[event.aggregate_id] = event.version
        by_command.setdefault((event.aggregate_id, event.command_id), []).append(event)
    for (aggregate_id, command_id), (version, sequence) in told.acknowledged.items():
        last = by_command[aggregate_id, command_id][-1]
        assert (last.version, last.sequence) == (version, sequence)
        view = store.engine.find_command(aggregate_id, command_id)
        assert view is not None
        assert (view.last_version, view.last_sequence) == (version, sequence)
    assert state == reference[: len(state)], "byte for byte"
    assert len(state) == sum(EVENTS_OF[command] for command in by_command), "each commit whole or not at all"
    for aggregate_id, version in versions.items():
        assert store.engine.version(aggregate_id) == version
        assert store.read(aggregate_id) == [event for event in state if event.aggregate_id == aggregate_id]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Event], int]:
    """What the script leaves without a crash, and how many operations it takes."""
    life = Life(SimulatedDisk(0), tmp_path_factory.mktemp("reference"))
    store = life.run(life.open())
    state, operations = store.state(), life.disk.operations
    store.close()
    return state, operations


@contextmanager
def explained(disk: SimulatedDisk, mode: CrashMode, seed: int, nth: int) -> Iterator[None]:
    """Says how to run a failure again."""
    try:
        yield
    except BaseException as error:
        trace = "\n".join(disk.trace[-12:])
        error.add_note(f"crash mode {mode!r}, seed {seed}, before operation {nth}; the last operations were:\n{trace}")
        raise


def crashes(mode: CrashMode, seed: int, folder: Path) -> Iterator[tuple[int, SimulatedDisk, Life]]:
    """For each operation of the script the disk that is left when it is stopped there, and what clients were told by then.

    The directory is as it was then after every other crash, and gone after the others.
    """
    life, left = Life(SimulatedDisk(seed), folder / "lmdb"), deque[tuple[SimulatedDisk, Life]]()

    def look(disk: SimulatedDisk) -> None:
        crashed, directory = disk.crash(mode), folder / f"lmdb-{life.disk.operations}"
        left.append((crashed, replace(life, disk=crashed, directory=directory, acknowledged=life.acknowledged.copy())))
        if life.disk.operations % 2 == 0 and life.directory.exists():
            shutil.copytree(life.directory, directory, ignore=shutil.ignore_patterns("in-use"))

    life.disk.at_each_operation(look)
    life.run(life.open()).abandon()
    for nth in range(1, len(left) + 1):
        disk, told = left.popleft()
        yield nth, disk, told
        forget_directory(told.directory)


def crashed_at(nth: int, mode: CrashMode, seed: int, folder: Path) -> tuple[SimulatedDisk, Life]:
    """One of them, to run a failure again."""
    return next((disk, life) for each, disk, life in crashes(mode, seed, folder) if each == nth)


@pytest.mark.parametrize(("mode", "seed"), RUNS)
def test_after_a_crash_at_any_operation_every_acknowledged_event_is_there_and_retries_converge(
    mode: CrashMode, seed: int, tmp_path: Path, reference: tuple[list[Event], int]
) -> None:
    expected, operations = reference
    nth = 0
    for nth, disk, life in crashes(mode, seed, tmp_path):
        with explained(disk, mode, seed, nth):
            store = life.open()
            judge(store, life, expected)
            store = life.run(store)
            assert store.state() == expected
            store.close()
    assert nth == operations


@pytest.mark.parametrize(("mode", "seed"), RUNS)
def test_recovering_again_gives_the_same_state_and_what_was_appended_in_between_however_it_ends(
    mode: CrashMode, seed: int, tmp_path: Path, reference: tuple[list[Event], int]
) -> None:
    _, operations = reference
    for nth, disk, life in islice(crashes(mode, seed, tmp_path), seed - 1, operations, 3):
        with explained(disk, mode, seed, nth):
            store = life.open()
            for second in CRASH_MODES:
                store.append(raw("order-7", f"after the crash, {second}"))
                state = store.state()
                store.abandon()
                spare_the_probe(life.directory)
                life.disk = life.disk.crash(second)
                store = life.open()
                assert store.state() == state, f"second crash {second!r}"
            store.abandon()


@pytest.mark.parametrize(("mode", "seed"), RUNS)
def test_a_crash_at_any_operation_of_a_recovery_loses_nothing_either(
    mode: CrashMode, seed: int, tmp_path: Path, reference: tuple[list[Event], int]
) -> None:
    expected, operations = reference
    for nth, disk, life in islice(crashes(mode, seed, tmp_path), 2 + seed, operations, 11):
        step = 0
        crashed = True
        while crashed:
            step += 1
            life.disk = disk.crash("kept")  # the same disk again
            life.disk.crash_at(step)
            with explained(life.disk, mode, seed, nth):
                try:
                    life.open().abandon()
                    crashed = False
                except SimulatedCrash:
                    pass
                spare_the_probe(life.directory)
                life.disk = life.disk.crash(CRASH_MODES[step % 3])
                store = life.open()
                judge(store, life, expected)
                store.abandon()
                spare_the_probe(life.directory)
