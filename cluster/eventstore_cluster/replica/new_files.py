"""Begins new event files for a leader, until the one that is written is small and those before it are ready."""

from __future__ import annotations

from eventstore_cluster.replica.actions import Action, BeginFile
from eventstore_cluster.replica.places import LogEnd


class NewFiles:
    """For one purpose. `bytes_max`: of a small file; `begun_max`: begins no more files than that."""

    def __init__(self, bytes_max: int, begun_max: int) -> None:
        self._bytes_max, self._begun_max = bytes_max, begun_max
        self.reset()

    def reset(self) -> None:
        """The purpose is another one: counts again."""
        self._begun, self._begun_at_file = 0, -1

    def next_step(self, written: LogEnd, ready_through: int, *, may_begin: bool = True) -> list[Action] | None:
        """Returns what to do now; an empty list: wait; None: all is ready, or enough files were begun.

        `written`: the end of the events. `ready_through`: the last file that is ready.
        """
        number, size = written
        if ready_through < number - 1 or number == self._begun_at_file:
            return []
        if size <= self._bytes_max or self._begun >= self._begun_max:
            return None
        if not may_begin:
            return []
        self._begun, self._begun_at_file = self._begun + 1, number
        return [BeginFile()]
