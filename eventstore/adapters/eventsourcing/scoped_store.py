"""What one application has of a store: the aggregates whose ids begin with its scope in braces.

They are in one slot, and so in one shard: it has an order of all their events, commits over several of them, and conditions.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from eventsourcing.persistence import DataError

from eventstore.client.blocking.store import BlockingStore, connect
from eventstore.model import Event

_UUID_CHARACTERS: Final = 36
_TEXT_MARK: Final = "="


class ScopedStore:
    """The store at an address, as far as one scope goes. Threads may share it; it connects with the first call."""

    def __init__(self, address: str, scope: str, token: str | None = None) -> None:
        """`scope`: 1 to 100 bytes without braces. `token`: as of `connect`.

        Raises:
            DataError: another scope.
            InvalidArgument: a malformed address.
        """
        if not 0 < len(scope.encode()) <= 100 or "{" in scope or "}" in scope:
            raise DataError(f"the scope is {scope!r:.120}; it takes 1 to 100 bytes, without braces")
        self.scope = scope
        self.store = connect(address, name=f"eventsourcing {scope}", token=token)

    def close(self) -> None:
        """Ends the connection. Calls that wait, and calls from now on, raise InterfaceError."""
        self.store.close()

    @property
    def shard(self) -> BlockingStore:
        """The store of the shard that has this scope: its sequences are numbers, where those of a cluster are positions."""
        number = self.store._shard_of(self.prefix(""))
        return self.store.shards.get(number, self.store)

    def last_event(self, aggregate_id: str) -> Event | None:
        """Returns the newest event of an aggregate; None if it has none."""
        return next(iter(self.store.read(aggregate_id, backwards=True, limit=1)), None)

    def prefix(self, kind: str) -> str:
        """Returns what the ids of aggregates of one kind begin with: "events", "snapshots", "tracking", "dcb"."""
        return f"{{{self.scope}}}-{kind}-"

    def aggregate_id(self, kind: str, originator_id: UUID | str) -> str:
        """Returns the id in the store. A text that reads as a UUID differs from that UUID by a mark before it."""
        text = str(originator_id)
        marked = not isinstance(originator_id, UUID) and (text[:1] == _TEXT_MARK or _uuid_of(text) is not None)
        return f"{self.prefix(kind)}{_TEXT_MARK if marked else ''}{text}"

    def originator_id(self, kind: str, aggregate_id: str) -> UUID | str:
        """Returns the id of which `aggregate_id` made this one."""
        text = aggregate_id[len(self.prefix(kind)) :]
        if text[:1] == _TEXT_MARK:
            return text[1:]
        return _uuid_of(text) or text


def _uuid_of(text: str) -> UUID | None:
    """Returns the UUID whose text this is, in the form that `str` gives it."""
    if len(text) != _UUID_CHARACTERS:
        return None
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found if str(found) == text else None
