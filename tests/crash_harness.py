"""Stops a program before every operation on its simulated disk, and opens it again from what is left.

A test gives its script as a `Life`. One run of the script yields the outcome of a crash at each operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, Self, TypeVar

import pytest

from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk

RUNS: Final = [
    ("lost", 1, 5),
    ("sectors", 2, 5),
    *(pytest.param(*run, 1, marks=pytest.mark.long) for run in (("kept", 1), ("lost", 1), ("sectors", 1), ("sectors", 2))),
]
"""Crash modes, seeds, and at every how many operations there is a crash. An odd number: see `copy` of a life."""


class Life(Protocol):
    """A program on a simulated disk, the script it goes through, and what its clients have been told."""

    disk: SimulatedDisk

    def live(self) -> None:
        """Opens the program and runs the script from where it was stopped to its end."""

    def copy(self, crashed: SimulatedDisk) -> Self:
        """Returns the same life at this moment, on what a crash leaves of the disk."""

    def reopen(self) -> None:
        """Opens the program on `disk`."""

    def judge(self) -> None:
        """Asserts that the open program keeps all promises made so far."""

    def abandon(self) -> None:
        """Releases everything that a crashed process would have lost."""

    def discard(self) -> None:
        """Removes this life's files that are not on the simulated disk."""


AnyLife = TypeVar("AnyLife", bound=Life)


def after_each_crash(life: AnyLife, mode: CrashMode, check: Callable[[AnyLife], None], *, first: int = 1, step: int = 1) -> int:
    """Calls `check` with what a crash leaves before each operation from `first` on, every `step`-th. Returns the last one."""
    nth = 0
    for nth, crashed in _crashes(life, mode, first, step):
        with _explained(crashed, mode, nth):
            check(crashed)
        crashed.discard()
    return nth


def crashed_at(nth: int, mode: CrashMode, life: AnyLife) -> AnyLife:
    """Returns what a crash before the nth operation leaves, to repeat a failure."""
    return next(crashed for _, crashed in _crashes(life, mode, first=nth, step=1))


def crash_in_recovery(life: Life) -> None:
    """Stops the recovery of a crashed life before each of its operations, and judges the result of the next recovery."""
    disk, step, crashed = life.disk, 0, True
    while crashed:
        step += 1
        life.disk = disk.crash("kept")  # the same disk again
        life.disk.crash_at(step)
        try:
            life.reopen()
            crashed = False
        except SimulatedCrash:
            pass
        life.abandon()
        life.disk = life.disk.crash(CRASH_MODES[step % 3])
        life.reopen()
        life.judge()
        life.abandon()


def _crashes(life: AnyLife, mode: CrashMode, first: int, step: int) -> Iterator[tuple[int, AnyLife]]:
    left = deque[tuple[int, AnyLife]]()

    def crash(disk: SimulatedDisk) -> None:
        nth = life.disk.operations
        if nth >= first and (nth - first) % step == 0:
            left.append((nth, life.copy(disk.crash(mode))))

    life.disk.at_each_operation(crash)
    life.live()
    life.abandon()
    while left:
        yield left.popleft()


@contextmanager
def _explained(life: Life, mode: CrashMode, nth: int) -> Iterator[None]:
    """Adds a note to a failure on how to repeat it."""
    try:
        yield
    except BaseException as error:
        trace = "\n".join(life.disk.trace[-12:])
        error.add_note(f"crash mode {mode!r}, before operation {nth}; the last operations were:\n{trace}")
        raise
