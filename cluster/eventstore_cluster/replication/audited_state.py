"""Records in the audit trail of a shard what was done to the shard through etcd: by its leader, which carries it out.

Who asked for it only etcd knows, which has users and logs of its own; the record says so by naming no one.
"""

from __future__ import annotations

from typing import Final

import trio

from eventstore.errors import Overloaded
from eventstore.security.audit import AuditRecord, Details
from eventstore.server.access.security import Security
from eventstore.server.bootstrap import until
from eventstore_cluster.replica.registry_state import ShardState
from eventstore_cluster.replica.replica import Replica

ELECTED: Final = "LEADER_ELECTED"
CHANGED: Final = "SHARD_CHANGED"
_LOOK_S: Final = 0.5
_ORIGIN: Final = "etcd"


async def audit_until(stopping: trio.Event, security: Security, replica: Replica, node: str) -> None:
    """Records that this replica leads, and then each change of its shard that a person asked for, until the event is set."""
    async with until(stopping):
        await _audit(security, replica, node)


async def _audit(security: Security, replica: Replica, node: str) -> None:
    known = replica.registrar.state
    due = [AuditRecord(ELECTED, "", _ORIGIN, {"node": node, **values_of(known)})]
    while True:
        try:
            while due:
                security.note(due[0])
                del due[0]
        except Overloaded:  # by others; it is noted later
            pass
        await trio.sleep(_LOOK_S)
        state = replica.registrar.state
        if changed := changes(known, state):
            due.append(AuditRecord(CHANGED, "", _ORIGIN, changed))
        known = state


def changes(before: ShardState, after: ShardState) -> Details:
    """Returns what a person has changed of a shard, as it is now; nothing if only replicas came and went, or leaders."""
    old, new = values_of(before), values_of(after)
    return {name: value for name, value in new.items() if name != "epoch" and value != old[name]}


def values_of(state: ShardState) -> dict[str, str | int | bool | None]:
    """Returns what people decide of a state. `generation` grows when they accept loss."""
    return {
        "epoch": state.epoch, "generation": state.generation, "replicas": ", ".join(state.replicas),
        "replicas_wanted": None if state.wanted is None else ", ".join(state.wanted), "needed": state.in_sync_min,
        "successor": state.successor, "split": ", ".join(map(str, state.split)), "splits": state.splits,
    }  # fmt: skip
