"""Opens the target that a text names: `sqlite:FILE` or `postgresql://…`."""

from __future__ import annotations

from typing import Final

from eventstore.domain.projections.targets.base import Target
from eventstore.errors import DomainRefused
from eventstore.fields import without_password

_CONNECTIONS: Final = 4


def target_at(place: str) -> Target:
    """Returns the target at `sqlite:FILE` or `postgresql://…` (also `postgres://…`).

    Raises:
        DomainRefused: it is neither, or the driver is not installed.
    """
    kind, _, rest = place.partition(":")
    if kind == "sqlite" and rest.startswith("//") and not rest.startswith("///"):
        shown, file = without_password(place)[:80], "FILE" if "@" in place else rest[2:82]
        raise DomainRefused(f"target {shown!r} names a host, but SQLite uses a file; write sqlite:{file}", target=shown)
    if kind == "sqlite" and rest:
        from eventstore.domain.projections.targets.sqlite import SQLiteTarget

        return SQLiteTarget(rest)
    if kind in ("postgres", "postgresql"):
        from eventstore.domain.projections.targets.postgres import PostgresTarget

        return PostgresTarget(place)
    shown = without_password(place)[:80]
    raise DomainRefused(f"target {shown!r} must be sqlite:FILE or postgresql://USER@HOST/DATABASE", target=shown)


def targets_at(place: str, count: int) -> list[Target]:
    """Returns as many targets at a place, for tables of one process: those in PostgreSQL share four connections. Raises as
    `target_at`.
    """
    first = target_at(place)
    if place.partition(":")[0] not in ("postgres", "postgresql"):
        return [first, *(target_at(place) for _ in range(count - 1))]
    from eventstore.domain.projections.targets.postgres import PostgresConnection, PostgresTarget

    connections = [PostgresConnection(place) for _ in range(_CONNECTIONS)]
    return [PostgresTarget(place, connections[number % _CONNECTIONS]) for number in range(count)]
