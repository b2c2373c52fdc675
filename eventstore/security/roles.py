"""Roles: permissions under one name, and the texts in which grants are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.fields import shown
from eventstore.security.permissions import Grants, Permission

_READER: Final = frozenset({Permission.READ, Permission.SUBSCRIBE, Permission.CONSUME, Permission.JOIN, Permission.STATS})
_WRITER: Final = _READER | {Permission.APPEND, Permission.COMMAND, Permission.SEND}
_OPERATOR: Final = frozenset(
    {
        Permission.STATS,
        Permission.TOPICS,
        Permission.GROUPS,
        Permission.REACTIONS,
        Permission.TIMERS,
        Permission.ALARMS,
        Permission.BACKUP,
    }
)
ROLES: Final = {"reader": _READER, "writer": _WRITER, "operator": _OPERATOR, "admin": frozenset(Permission)}
"""Permissions by role. An operator may repair and delete, and sees figures and names, but no events and messages."""
WHOLE: Final = frozenset({Permission.STATS, Permission.CLUSTER, Permission.BACKUP})
"""Permissions that are about no names: a prefix does not limit them."""


def parse_grants(texts: Iterable[str]) -> Grants:
    """Returns the grants `WHAT` or `WHAT:PREFIX`, where WHAT is a role or a permission. Raises InvalidArgument."""
    prefixes: dict[Permission, list[str]] = {}
    for text in texts:
        what, _, prefix = text.partition(":")
        permissions = ROLES.get(what)
        if permissions is None:
            try:
                permissions = frozenset({Permission(what)})
            except ValueError:
                known = ", ".join((*ROLES, *Permission))
                raise InvalidArgument(
                    f"there is no role or permission {shown(what)}; there are {known}", field="grant", value=text
                ) from None
        for each in permissions:
            prefixes.setdefault(each, []).append("" if each in WHOLE else prefix)
    return Grants(prefixes)
