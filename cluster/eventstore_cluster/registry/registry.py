"""The interface of a registry: keys with values, changed by transactions that compare revisions.

Every change has a revision, which only grows; it is the version of the map of the cluster. A leased key is gone when its holder
is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from eventstore.chunks.documents import Tree

Changes: TypeAlias = "Mapping[str, Tree | None]"
"""The new value of each key; None: the key is deleted."""


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """The value of a key, and the revision that wrote it. Values are never changed in place."""

    value: Tree
    revision: int


@dataclass(frozen=True, slots=True)
class RegistrySnapshot:
    """All keys at one revision."""

    revision: int
    entries: Mapping[str, RegistryEntry]

    def value(self, key: str) -> Tree | None:
        entry = self.entries.get(key)
        return None if entry is None else entry.value

    def revision_of(self, key: str) -> int:
        """Returns the revision that wrote the key; 0 if it does not exist."""
        entry = self.entries.get(key)
        return 0 if entry is None else entry.revision


class Registry(Protocol):
    """What the nodes of a cluster share."""

    def read(self) -> RegistrySnapshot:
        """Returns the latest state."""

    async def transact(self, compared: Mapping[str, int], changes: Changes, *, leased: bool = False) -> RegistrySnapshot | None:
        """Changes the keys if each compared key was last written by that revision (0: it does not exist).

        Durable on return. Returns the new state; None if a comparison failed, and nothing was changed. `leased`: the keys
        that are written are gone when this process is.

        Raises:
            EventStoreError: the registry cannot be written; nothing was changed.
        """

    async def changed(self, after: int) -> RegistrySnapshot:
        """Waits until the state is newer than the revision, and returns it."""
