"""`Target`, the interface to the table of a projection, and the checks that all targets share.

A target stores rows, states and checkpoint in one transaction, so each event counts exactly once, even if the projector is
killed. The transaction first moves the checkpoint from the value that the projector read: if it has another value by now,
another projector is running, and this one is fenced before it changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from eventstore.domain.projections.projection import CHECKPOINTS, Projection
from eventstore.errors import DomainRefused, Fenced, InvalidArgument

StoredRow: TypeAlias = tuple[object, ...]
"""Key, columns in order, state as JSON."""


class Target(Protocol):
    """The table of one projection. Its methods block; only one thread at a time may call them."""

    def open(self, projection: Projection[Any], *, begins: bool = True, store: str | None = None) -> int:
        """Connects, creates the tables if they do not exist, and returns the checkpoint: the sequence up to which the table is
        complete.

        `store`: uuid of the store that the events are from; the table records the first.

        Raises:
            InvalidArgument: the table was made from another store.
            DomainRefused: the table has other columns than the projection; or the checkpoint is 0 and `begins` is false: then
                nothing was created.
        """

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        """Returns the states, as JSON, of those keys that have a row."""

    def write(self, rows: Sequence[StoredRow], deletions: Sequence[str], before: int, checkpoint: int) -> None:
        """Inserts or replaces the rows, deletes those of `deletions`, and moves the checkpoint from `before` to `checkpoint`:
        all or nothing.

        Raises:
            Fenced: the checkpoint is not `before`.
        """

    def close(self) -> None: ...


def fenced(name: str, before: int) -> Fenced:
    return Fenced(
        f"the checkpoint of projection {name!r} is no longer {before}: another projector is running; stop one of them",
        name=name,
        checkpoint=before,
    )


def check_checkpoint(name: str, checkpoint: int, *, begins: bool) -> None:
    """Raises DomainRefused if there is no checkpoint and the projection must not begin at the first event."""
    if not checkpoint and not begins:
        raise DomainRefused(
            f"projection {name!r} has no checkpoint; rebuild the table first (eventstore-spark rebuild --replace), or leave "
            "out --from-checkpoint to begin with the first event",
            projection=name,
        )


def check_store(name: str, recorded: str | None, store: str | None) -> bool:
    """Returns whether the table must record the store. Raises InvalidArgument if it was made from another one."""
    if recorded is not None and store is not None and recorded != store:
        raise InvalidArgument(
            f"table {name!r} was made from store {recorded}, but this is store {store}, whose sequences are those of other "
            "events; use the store that the table was made from, or another table",
            field="store",
            value=store,
        )
    return recorded is None and store is not None


def check_columns(name: str, found: dict[str, str], wanted: dict[str, str]) -> None:
    """Raises DomainRefused unless the table has exactly these columns."""
    if found != wanted:
        raise DomainRefused(
            f"table {name!r} has the columns {_listed(found)}, but the projection declares {_listed(wanted)}; drop the table "
            f"and its row in {CHECKPOINTS}, or give the projection another name",
            projection=name,
        )


def _listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
