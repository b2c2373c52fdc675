"""Crashes at every operation of a store's life, in every mode: acknowledged events exist, byte for byte.

The script appends, zeroes ahead, rolls from file to file, sorts and indexes, adds files to the directory, closes and opens
again. Each run is stopped before the nth operation on the disk; then the store is opened from the rest of the disk and checked.
The last check is the strictest: after every command is sent again, as clients without an answer do, the store must equal one
that never crashed.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from eventstore.model import ANY, Event, NewEvent
from eventstore.store.append import COMMITTED, DUPLICATE, NewCommit
from eventstore.store.event_checks import EventsCheck
from tests.crash_harness import RUNS, after_each_crash, crash_in_recovery
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedDisk
from tests.store.stepped import Stepped, forget_directory, raw, spare_the_probe, together

count_events = EventsCheck()
TAGS = ("a", "b")


def batches() -> list[list[NewCommit]]:
    """Returns batches of up to five commits: of one and several events, small and larger than a file, on few aggregates."""
    rng = random.Random("batches")
    made = []
    for batch in range(22):
        commits = []
        for place in range(rng.randint(1, 5)):
            count = rng.choice((1, 1, 1, 2, 5))
            size = 9_000 if (batch, place) == (11, 0) else rng.choice((0, 10, 60, 300))
            events = [
                NewEvent(rng.choice(("Placed", "Paid")), bytes([number]) * size, b"m", TAGS[: number % 3])
                for number in range(count)
            ]
            command = f"command-{batch}-{place}"
            if (batch + place) % 3:
                commits.append(raw(f"order-{rng.randint(1, 6)}", command, *events))
            else:
                names = rng.sample(range(1, 7), rng.randint(2, 4))
                commits.append(together(command, *((f"order-{name}", ANY, events[: 1 + name % 2]) for name in names)))
        made.append(commits)
    return made


def members(commit: NewCommit) -> list[tuple[str, bytes]]:
    """Returns the aggregates of a commit with their events."""
    if isinstance(commit[0], str):
        assert isinstance(commit[4], bytes)
        return [(commit[0], commit[4])]
    return [(name, events) for name, _, events in commit[0].writes if isinstance(events, bytes)]


BATCHES = batches()
EVENTS_OF = {
    (aggregate_id, commit[2]): count_events(events)[0]
    for batch in BATCHES
    for commit in batch
    for aggregate_id, events in members(commit)
}
SORT_AFTER = (9, 16)
REOPEN_AFTER = 13


Command = tuple[str, str]


@dataclass
class Life:
    """A store going through the script, and the commits acknowledged to its clients with their positions."""

    disk: SimulatedDisk
    directory: Path
    acknowledged: dict[Command, tuple[int, int]] = field(default_factory=dict)
    store: Stepped | None = None

    def open(self) -> Stepped:
        self.store = Stepped(self.disk, self.directory)
        return self.store

    def reopen(self) -> None:
        self.open()

    def live(self) -> None:
        self.run(self.open())

    def judge(self) -> None:
        assert self.store is not None
        judge(self.store, self.acknowledged)

    def abandon(self) -> None:
        if self.store is not None:
            self.store.abandon()
            spare_the_probe(self.directory)

    def copy(self, crashed: SimulatedDisk) -> Life:
        """Copies this life; every other copy includes the directory, the others have none."""
        directory = self.directory.with_name(f"{self.directory.name}-{self.disk.operations}")
        if self.disk.operations % 2 == 0 and self.directory.exists():
            shutil.copytree(self.directory, directory, ignore=shutil.ignore_patterns("in-use"))
        return Life(crashed, directory, self.acknowledged.copy())

    def discard(self) -> None:
        forget_directory(self.directory)

    def run(self, store: Stepped) -> Stepped:
        """Runs the script. Returns the store, which is another one after it was closed and reopened."""
        for number, batch in enumerate(BATCHES):
            for commit, outcome in zip(batch, store.append(*batch), strict=True):
                assert outcome[0] in (COMMITTED, DUPLICATE), outcome
                places = [outcome[1:]] if isinstance(commit[0], str) else outcome[1]
                for (aggregate_id, _), (version, sequence) in zip(members(commit), places, strict=True):
                    self.acknowledged[aggregate_id, commit[2]] = version, sequence
            store.engine.writer.zero_ahead.step()
            if number in SORT_AFTER:
                store.sort()
            if number == REOPEN_AFTER:
                store.close()
                store = self.open()
        return store


def judge(store: Stepped, acknowledged: dict[Command, tuple[int, int]]) -> None:
    """Asserts the promise of FAULTS.md, except for the retries."""
    reference, _ = uninterrupted()
    state = store.state()
    assert [event.sequence for event in state] == list(range(1, len(state) + 1))
    by_command: dict[Command, list[Event]] = {}
    versions: dict[str, int] = {}
    for event in state:
        assert event.version == versions.get(event.aggregate_id, 0) + 1
        versions[event.aggregate_id] = event.version
        by_command.setdefault((event.aggregate_id, event.command_id), []).append(event)
    for (aggregate_id, command_id), (version, sequence) in acknowledged.items():
        last = by_command[aggregate_id, command_id][-1]
        assert (last.version, last.sequence) == (version, sequence)
        view = store.engine.find_command(aggregate_id, command_id)
        assert view is not None
        assert (view.last_version, view.last_sequence) == (version, sequence)
    assert state == reference[: len(state)], "byte for byte"
    assert not state or not state[-1].commit_continues, "several aggregates whole or not at all"
    assert len(state) == sum(EVENTS_OF[command] for command in by_command), "each commit whole or not at all"
    for aggregate_id, version in versions.items():
        assert store.engine.version(aggregate_id) == version
        assert store.read(aggregate_id) == [event for event in state if event.aggregate_id == aggregate_id]


@cache
def uninterrupted() -> tuple[list[Event], int]:
    """Returns the state after the script without a crash, and the number of its operations."""
    with TemporaryDirectory() as folder:
        life = Life(SimulatedDisk(0), Path(folder) / "lmdb")
        store = life.run(life.open())
        state, operations = store.state(), life.disk.operations
        store.close()
    return state, operations


@pytest.mark.parametrize(("mode", "seed", "every"), RUNS)
def test_after_a_crash_at_any_operation_all_acknowledged_events_exist_and_retries_converge(
    mode: CrashMode, seed: int, every: int, tmp_path: Path
) -> None:
    expected, operations = uninterrupted()

    def check(life: Life) -> None:
        store = life.open()
        life.judge()
        store = life.run(store)
        assert store.state() == expected
        store.close()

    last = after_each_crash(Life(SimulatedDisk(seed), tmp_path / "lmdb"), mode, check, first=min(seed, every), step=every)
    assert operations - every < last <= operations


@pytest.mark.parametrize(("mode", "seed", "every"), RUNS)
def test_a_second_recovery_keeps_the_state_and_later_appends_after_any_crash(
    mode: CrashMode, seed: int, every: int, tmp_path: Path
) -> None:
    def check(life: Life) -> None:
        store = life.open()
        for second in CRASH_MODES:
            store.append(raw("order-7", f"after the crash, {second}"))
            state = store.state()
            life.abandon()
            life.disk = life.disk.crash(second)
            store = life.open()
            assert store.state() == state, f"second crash {second!r}"
        life.abandon()

    after_each_crash(Life(SimulatedDisk(seed), tmp_path / "lmdb"), mode, check, first=seed, step=3 * every)


@pytest.mark.parametrize(("mode", "seed", "every"), RUNS)
def test_a_crash_at_any_operation_of_a_recovery_loses_nothing_either(
    mode: CrashMode, seed: int, every: int, tmp_path: Path
) -> None:
    after_each_crash(
        Life(SimulatedDisk(seed), tmp_path / "lmdb"), mode, crash_in_recovery, first=3 + seed, step=11 if every == 1 else 33
    )
