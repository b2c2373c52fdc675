"""Opens the target that a text names: `sqlite:FILE` or `postgresql://…`."""

from __future__ import annotations

from eventstore.domain.projections.targets.base import Target
from eventstore.errors import DomainRefused


def target_at(place: str) -> Target:
    """Returns the target at `sqlite:FILE` or `postgresql://…` (also `postgres://…`).

    Raises:
        DomainRefused: it is neither, or the driver is not installed.
    """
    kind, _, rest = place.partition(":")
    if kind == "sqlite" and rest.startswith("//") and not rest.startswith("///"):
        raise DomainRefused(
            f"target {place!r:.80} names a host, but SQLite uses a file; write sqlite:{rest[2:]:.80}", target=place[:80]
        )
    if kind == "sqlite" and rest:
        from eventstore.domain.projections.targets.sqlite import SQLiteTarget

        return SQLiteTarget(rest)
    if kind in ("postgres", "postgresql"):
        from eventstore.domain.projections.targets.postgres import PostgresTarget

        return PostgresTarget(place)
    raise DomainRefused(f"target {place!r:.80} must be sqlite:FILE or postgresql://USER@HOST/DATABASE", target=place[:80])
