"""The interface of a registry: keys with values, changed by transactions that compare revisions.

Every change has a revision, which only grows; it is the version of the map of the cluster. A leased key disappears with the
process that holds it.
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
    """What the nodes of a cluster share. `FileRegistry` and `EtcdRegistry` implement it."""

    async def read(self) -> RegistrySnapshot:
        """Returns the latest state.

        Raises:
            EventStoreError: the registry cannot be read.
        """

    async def transact(self, compared: Mapping[str, int], changes: Changes) -> int | None:
        """Changes the keys if each compared key was last written by that revision (0: it does not exist).

        The changes are durable on return. Returns their revision, or None if a comparison failed and nothing was changed.

        Raises:
            EventStoreError: the registry cannot be written. Only OutcomeUnknown leaves open whether the keys were changed.
        """

    async def changed(self, seen: RegistrySnapshot) -> RegistrySnapshot:
        """Waits until the keys differ from the keys in `seen`, and returns the latest state.

        Raises:
            EventStoreError: the registry cannot be read.
        """
