"""Records in the audit trail of a shard what was done to the shard through etcd. The shard's leader, which carries it out,
writes the records.

etcd also has who asked for it: an identity that the console of a node knows, or a name that a command claims to be run by. The
leader looks twice a second: if two people change the same thing in between, only the later one is recorded. A request about the
whole cluster, or about a node, is recorded in the trail of one shard, once each: etcd has the latest requests, and the id of a
request is the id of its record.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import trio

from eventstore.errors import Overloaded
from eventstore.security.audit import AuditRecord, Details
from eventstore.server.access.security import Security
from eventstore.server.bootstrap import until
from eventstore_cluster.replica.registry_state import ClusterRequest, Seen
from eventstore_cluster.replica.replica import Replica

ELECTED: Final = "LEADER_ELECTED"
CHANGED: Final = "SHARD_CHANGED"
REQUESTED: Final = "CLUSTER_CHANGED"
_LOOK_S: Final = 0.5
_ORIGIN: Final = "etcd"


async def audit_until(stopping: trio.Event, security: Security, replica: Replica, node: str) -> None:
    """Records that this replica leads, and then each change of its shard that a person asked for, until the event is set."""
    async with until(stopping):
        await _audit(security, replica, node)


async def _audit(security: Security, replica: Replica, node: str) -> None:
    assert replica.leading is not None, "it was elected"
    known = replica.leading.began_with
    assert known is not None
    due = [elected(known, node), *map(requested, known.requests)]  # the leader before may have recorded some of these
    while True:
        try:
            while due:
                security.note(due[0])
                del due[0]
        except Overloaded:  # by others; it is noted later
            pass
        await trio.sleep(_LOOK_S)
        seen = replica.registrar.seen
        assert seen is not None
        due += [*changes(known, seen), *(requested(each) for each in seen.requests if each not in known.requests)]
        known = seen


def elected(seen: Seen, node: str) -> AuditRecord:
    """Returns the record of an election. It names no one if no person asked for it. `asked_by`: who wants what is not done."""
    state = seen.state
    asked_by = state.by if state.wanted is not None or state.split else None
    return AuditRecord(ELECTED, state.leader_by, _ORIGIN, {"node": node, **values_of(seen), "asked_by": asked_by or None})


def changes(before: Seen, after: Seen) -> list[AuditRecord]:
    """Returns what people have changed of a shard, as it is now: a record for each who asked for some of it. None if only
    replicas came and went, or leaders.
    """
    old, new = values_of(before), values_of(after)
    by_who: dict[str, dict[str, str | int | bool | None]] = {}
    for name, value in new.items():
        if name != "epoch" and value != old[name]:
            by_who.setdefault(_who(name, after), {})[name] = value
    return [AuditRecord(CHANGED, who, _ORIGIN, found) for who, found in by_who.items()]


def requested(request: ClusterRequest) -> AuditRecord:
    """Returns the record of what was asked of the whole cluster, or of a node."""
    at = f"{datetime.fromtimestamp(request.at, UTC):%FT%TZ}"
    details = {**request.details, "request": request.number, "asked_at": at}
    return AuditRecord(REQUESTED, request.by, _ORIGIN, details, request.id)


def _who(name: str, seen: Seen) -> str:
    state = seen.state
    leader = dict.fromkeys(("successor", "generation"), state.leader_by)
    return {**leader, "paused": state.pause.by, "moves_paused": seen.pause_all.by}.get(name, state.by)


def values_of(seen: Seen) -> Details:
    """Returns what people decide of a shard. `generation` grows when they accept loss. `paused`: what is wanted of this shard;
    `moves_paused`: the moves of all.
    """
    state = seen.state
    return {
        "epoch": state.epoch,
        "generation": state.generation,
        "replicas": ", ".join(state.replicas),
        "replicas_wanted": None if state.wanted is None else ", ".join(state.wanted),
        "needed": state.in_sync_min,
        "successor": state.successor,
        "split": ", ".join(map(str, state.split)),
        "splits": state.splits,
        "paused": state.pause.on,
        "moves_paused": seen.pause_all.on,
    }
