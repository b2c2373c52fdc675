"""Where the rows of a projection are kept, with its checkpoint.

A target stores rows, states and checkpoint in one transaction, so each event counts exactly once, whenever the projector is
killed. The transaction begins by moving the checkpoint from where the projector read it: if it is elsewhere by then, another
projector is at work, and this one is fenced before it has changed anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from eventstore.domain.projection import CHECKPOINTS, Projection
from eventstore.errors import DomainRefused, Fenced, InvalidArgument

StoredRow: TypeAlias = tuple[object, ...]
"""Key, the columns in their order, state as JSON."""


class Target(Protocol):
    """One projection's table. Its methods block; one thread at a time calls them."""

    def open(self, projection: Projection[Any], *, begins: bool = True, store: str | None = None) -> int:
        """Connects, makes what is not there yet, and returns the checkpoint: the sequence up to which the table is complete.

        `store`: whose events these are; the table keeps the first it is told.

        Raises:
            InvalidArgument: the table was made from another store.
            DomainRefused: the table has other columns than the projection; or the checkpoint is 0 and not `begins`, and then
                nothing was made.
        """

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        """The states, as JSON, of those keys that have a row."""

    def write(self, rows: Sequence[StoredRow], deletions: Sequence[str], before: int, checkpoint: int) -> None:
        """Puts the rows in the place of those with the same keys, deletes those of `deletions`, and moves the checkpoint
        from `before` to `checkpoint`: all of it or nothing.

        Raises:
            Fenced: the checkpoint is not at `before`.
        """

    def close(self) -> None: ...


def target_at(place: str) -> Target:
    """The target at `sqlite:FILE` or `postgresql://…` (also `postgres://…`).

    Raises:
        DomainRefused: it is neither, or the driver is not installed.
    """
    kind, _, rest = place.partition(":")
    if kind == "sqlite" and rest.startswith("//") and not rest.startswith("///"):
        raise DomainRefused(f"a file has no host: say sqlite:{rest[2:]:.80}, not {place!r:.80}", target=place[:80])
    if kind == "sqlite" and rest:
        from eventstore.domain.sqlite_target import SQLiteTarget

        return SQLiteTarget(rest)
    if kind in ("postgres", "postgresql"):
        from eventstore.domain.postgres_target import PostgresTarget

        return PostgresTarget(place)
    raise DomainRefused(f"a target is sqlite:FILE or postgresql://USER@HOST/DATABASE, not {place!r:.80}", target=place[:80])


def fenced(name: str, before: int) -> Fenced:
    return Fenced(
        f"the checkpoint of projection {name!r} is not at {before} any more: another projector is at work; run only one",
        name=name,
        checkpoint=before,
    )


def check_checkpoint(name: str, checkpoint: int, *, begins: bool) -> None:
    """Raises DomainRefused where nothing is to be begun, and nothing is there to go on from."""
    if not checkpoint and not begins:
        raise DomainRefused(
            f"there is no checkpoint of projection {name!r} to go on from; rebuild the table first "
            "(eventstore-spark rebuild --replace), or leave out --from-checkpoint to begin with the first event",
            projection=name,
        )


def check_store(name: str, known: str | None, store: str | None) -> bool:
    """Whether the table has to keep the store it is about. Raises InvalidArgument where that is another one than before."""
    if known is not None and store is not None and known != store:
        raise InvalidArgument(
            f"table {name!r} was made from store {known}, and this is store {store}: its sequences mean other events; name the "
            "store that the table was made from, or another table",
            field="store",
            value=store,
        )
    return known is None and store is not None


def check_columns(name: str, found: dict[str, str], wanted: dict[str, str]) -> None:
    """Raises DomainRefused unless a table has exactly these columns."""
    if found != wanted:
        raise DomainRefused(
            f"table {name!r} has the columns {_listed(found)}, the projection declares {_listed(wanted)}; drop the table and "
            f"its row in {CHECKPOINTS}, or give the projection another name",
            projection=name,
        )


def _listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
