"""Which certificates are of nodes of a cluster, and what to type so that one is."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path

from eventstore.fields import escaped
from eventstore.security.access_list import ACCESS, AccessList
from eventstore.security.permissions import Permission
from eventstore.security.subjects import Shown


def is_of_node(access: AccessList | None, shown: Shown | None, now: datetime) -> bool:
    """Whether it is a node that has shown this. Without identities any certificate of the CA is a node's, while it is valid."""
    if access is None:
        return shown is not None and (shown.expires is None or shown.expires > now)
    found = access.identity(access.credential(None, shown), now)
    return found is not None and found.grants.allows(Permission.CLUSTER)


def how_to_name(access: AccessList, path: Path, shown: Shown, now: datetime) -> str:
    """Returns what to type so that the list in `path` takes a certificate for a node's."""
    found = access.identity(access.credential(None, shown), now)
    name = "nodes" if found is None else shlex.quote(found.name)
    certificate = f" --certificate {shlex.quote(shown.subject)}" if found is None else ""
    where = f"--data {shlex.quote(str(path.parent))}" if path.name == ACCESS else f"--access-file {shlex.quote(str(path))}"
    return f"`{escaped(f'eventstore access add {name} --grant cluster{certificate} {where}')}`, and copy the list to all nodes"
