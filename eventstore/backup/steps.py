"""Decides which objects of a backup are copied, named, and deleted, and when. Knows no files, networks or clocks.

An object is *wanted* by the backup that is being made, *copied* once all of it is durable and was verified, *named* once the
manifest that names it is durable, *superseded* once the newest manifest does not name it any more, and then deleted. The rules:

- The manifest is replaced only when every object that it names is copied.
- An object that the durable manifest names is never deleted, nor written again.

So an interrupted backup leaves the previous one whole, and the next one continues with what is copied already. Objects without
a name are *left* by interrupted backups; they are deleted at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias


class ObjectState(Enum):
    WANTED = "wanted"
    COPIED = "copied"
    NAMED = "named"
    LEFT = "left"
    SUPERSEDED = "superseded"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class CopyObject:
    """Copy this object, verify it, and make it durable."""

    name: str


@dataclass(frozen=True, slots=True)
class ReplaceManifest:
    """Replace the manifest by that which names all that is wanted, durably."""


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete this object."""

    name: str


BackupStep: TypeAlias = CopyObject | ReplaceManifest | DeleteObject

TRANSITIONS: Final = {
    ObjectState.WANTED: {ObjectState.COPIED},
    ObjectState.COPIED: {ObjectState.NAMED},
    ObjectState.NAMED: {ObjectState.SUPERSEDED},
    ObjectState.LEFT: {ObjectState.DELETED},
    ObjectState.SUPERSEDED: {ObjectState.DELETED},
    ObjectState.DELETED: set[ObjectState](),
}


class BackupSteps:
    """The steps of one backup.

    Attributes:
        states: of all objects that are known.
        named: what the durable manifest names.
    """

    def __init__(self, wanted: Iterable[str], named: Iterable[str], present: Iterable[str]) -> None:
        """`wanted`: what the backup will name, in the order in which it is copied. `named`: what the manifest names now.
        `present`: the objects that are there whole.
        """
        self._wanted = list(dict.fromkeys(wanted))
        self.named, there = set(named), set(present)
        wanted_names = set(self._wanted)
        self.states = dict.fromkeys(sorted(there - self.named - wanted_names), ObjectState.LEFT)
        self.states |= dict.fromkeys(sorted(self.named), ObjectState.NAMED)
        for name in self._wanted:
            if name not in self.named:
                self.states[name] = ObjectState.COPIED if name in there else ObjectState.WANTED
        self._to_copy = [name for name in reversed(self._wanted) if self.states[name] is ObjectState.WANTED]
        self._to_delete: list[str] = []
        self.committed = False

    def next(self) -> BackupStep | None:
        """Returns what is to be done now; None: the backup is complete. The same step until it is reported as done."""
        if self._to_copy:
            return CopyObject(self._to_copy[-1])
        if not self.committed:
            return ReplaceManifest()
        return DeleteObject(self._to_delete[-1]) if self._to_delete else None

    def copied(self, name: str) -> None:
        """Notes that an object is durable and verified."""
        assert self._to_copy[-1] == name, name
        self._to_copy.pop()
        self._move(name, ObjectState.COPIED)

    def committed_manifest(self) -> None:
        """Notes that the new manifest is durable."""
        assert not self._to_copy
        wanted = set(self._wanted)
        for name, state in list(self.states.items()):
            if name in wanted and state is ObjectState.COPIED:
                self._move(name, ObjectState.NAMED)
            elif name not in wanted and state is ObjectState.NAMED:
                self._move(name, ObjectState.SUPERSEDED)
        self.named, self.committed = wanted, True
        gone = (ObjectState.SUPERSEDED, ObjectState.LEFT)
        self._to_delete = sorted((name for name, state in self.states.items() if state in gone), reverse=True)

    def deleted(self, name: str) -> None:
        """Notes that an object is not there any more."""
        assert self._to_delete[-1] == name, name
        self._to_delete.pop()
        self._move(name, ObjectState.DELETED)

    def _move(self, name: str, state: ObjectState) -> None:
        assert state in TRANSITIONS[self.states[name]], (name, self.states[name], state)
        self.states[name] = state

    def check_invariants(self) -> None:
        """Raises AssertionError with what contradicts itself. For tests."""
        for name in self.named:
            assert self.states[name] in (ObjectState.NAMED, ObjectState.COPIED), (name, self.states[name])
        for name, state in self.states.items():
            assert state is not ObjectState.NAMED or name in self.named, name
            assert state is not ObjectState.SUPERSEDED or self.committed, name
        step = self.next()
        if isinstance(step, ReplaceManifest):
            assert all(self.states[name] in (ObjectState.COPIED, ObjectState.NAMED) for name in self._wanted)
        if isinstance(step, DeleteObject):
            assert step.name not in self.named, step.name
