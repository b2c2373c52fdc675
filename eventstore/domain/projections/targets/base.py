"""`Target`, the interface to the table of a projection, and the checks that all targets share.

A target stores rows, states and checkpoint in one transaction, so each event counts exactly once, even if the projector is
killed. The transaction first moves the checkpoint from the value that the projector read: if it has another value by now, or
the table another generation, another projector is running or the table was rebuilt, and this one is fenced before it
changes anything.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from eventstore.domain.projections.projection import CHECKPOINTS, Projection
from eventstore.errors import DomainRefused, Fenced, InvalidArgument
from eventstore.following.checkpoint import Checkpoint, Origin

StoredRow: TypeAlias = tuple[object, ...]
"""Key, columns in order, state as JSON."""


_GENERATION_BITS: Final = 62  # both databases have signed 64-bit integers


TableCheckpoint: TypeAlias = Checkpoint
"""Where a table stands, by the name that targets of services know."""


class TableRecord(NamedTuple):
    """What the row of a checkpoint says about its table, beside the checkpoint; None in tables of earlier versions."""

    store: str | None
    version: int | None


class ParkedKey(NamedTuple):
    """A key whose row is stale: it lacks the event of `sequence`, which raised `error`, and all later ones."""

    key: str
    sequence: int
    error: str


class Target(Protocol):
    """The table of one projection. Its methods block; only one thread at a time may call them. `close` is called after the last
    of them has ended, also if the projection is cancelled.
    """

    def of_shard(self, shard: int, origin: Origin | None = None) -> Target:
        """Returns the table, with the checkpoint and the parked keys of a shard: each shard's events have a sequence of their
        own. Both use the same connection, once it is open. `origin`: what the shard's log begins with; open that shard before.

        When it is opened, it gets a new generation: another projector of these shards is fenced, because a key may have
        events of several shards.
        """

    def open(self, projection: Projection[Any], *, begins: bool = True, store: str | None = None) -> Checkpoint:
        """Connects, creates the tables if they do not exist, and returns the checkpoint.

        `store`: uuid of the store that the events are from; the table records the first.

        Raises:
            InvalidArgument: the table was made from another store.
            DomainRefused: the table has other columns than the projection, or is of another version of it, or is missing
                although it has a checkpoint; or the checkpoint is 0 and `begins` is false: then nothing was created.
        """

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        """Returns the states, as JSON, of those keys that have a row."""

    def parked(self, keys: Sequence[str] | None) -> dict[str, ParkedKey]:
        """Returns those of these keys that are parked; None: of all keys."""

    def write(
        self,
        rows: Sequence[StoredRow],
        deletions: Sequence[str],
        before: int,
        after: Checkpoint,
        parked: Sequence[ParkedKey] = (),
        retried: Sequence[str] = (),
    ) -> None:
        """Inserts or replaces the rows, deletes those of `deletions`, and moves the checkpoint from sequence `before` to
        `after`: all or nothing. `parked` are stored; `retried` were parked and are no longer: then the table gets a new
        generation, since another projector may just be skipping their events.

        Raises:
            Fenced: the checkpoint is not at `before`, or the table has another generation than when it was opened.
            ProjectionFailed: the database fails, or cannot hold one of the rows: see `refusal`.
        """

    def check(self, at: int) -> None:
        """Raises Fenced unless the checkpoint is at this sequence, and the table has the generation that it had when it was
        opened. Changes nothing.
        """

    def refusal(self, row: StoredRow) -> str | None:
        """Returns why the table cannot hold this row; None if it can. Stores nothing."""

    def close(self) -> None: ...


def row_of(name: str, shard: int | None) -> str:
    """Returns what the checkpoint of a table is stored under."""
    return name if shard is None else f"{name}@{shard}"


def check_rows(name: str, shard: int | None, others: Iterable[tuple[str, int]]) -> None:
    """Raises InvalidArgument if the table was made from a single store and is to follow a cluster, or the reverse.

    `others`: the rows and sequences of all its checkpoints.
    """
    for row, sequence in others:
        if sequence and (row == name) is not (shard is None):
            made = "a single store" if row == name else "the shards of a cluster"
            raise InvalidArgument(
                f"table {name!r} was made from {made}, and this is {'a single store' if shard is None else 'a cluster'}; use "
                "what the table was made from, or another table",
                field="store",
                value=row,
            )


def parked_of(rows: Iterable[tuple[Any, ...]], keys: Sequence[str] | None) -> dict[str, ParkedKey]:
    """Returns those of the stored entries that have one of these keys, by key; all if `keys` is None."""
    wanted = None if keys is None else set(keys)
    return {each.key: each for each in (ParkedKey(*row) for row in rows) if wanted is None or each.key in wanted}


def fenced(name: str, before: int) -> Fenced:
    return Fenced(
        f"the checkpoint of projection {name!r} is no longer {before}, or its table was rebuilt or exchanged: another "
        "projector is running; stop one of them",
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


def check_version(name: str, checkpoint: int, recorded: int | None, declared: int) -> bool:
    """Returns whether the table must record the declared version. Raises DomainRefused if rows were made by another one."""
    if checkpoint and recorded is not None and recorded != declared:
        raise DomainRefused(
            f"table {name!r} was made by version {recorded} of the projection, but the code declares version {declared}; give "
            "the new version another name, rebuild the table (eventstore-spark rebuild --replace), or drop it and its row in "
            f"{CHECKPOINTS}",
            projection=name,
        )
    return recorded != declared


def check_table(name: str, checkpoint: int, *, existed: bool) -> None:
    """Raises DomainRefused if the table is gone but its checkpoint is not: a new one would lack all events up to there."""
    if checkpoint and not existed:
        raise DomainRefused(
            f"table {name!r} is missing, but its checkpoint is at sequence {checkpoint}; delete its row in {CHECKPOINTS} to "
            "begin with the first event, or restore the table",
            projection=name,
        )


def new_generation() -> int:
    """Returns a number that no other generation of the table has: random, because a counter restarts with its row."""
    return secrets.randbits(_GENERATION_BITS) + 1


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
