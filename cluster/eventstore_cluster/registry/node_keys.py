"""The keys of nodes, and the key that limits moves between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from eventstore.chunks.documents import Tree, unknown_members
from eventstore.errors import Corrupt
from eventstore_cluster.registry.failing import Failing, failing_value, read_failing
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.replica.registry_state import ASKED_BY_MAX, NOT_PAUSED, Pause

NODES: Final = "node/"
DRAINING: Final = "draining/"
MOVING: Final = "moving"


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A node that runs.

    Attributes:
        address: HOST:PORT where it has the map.
        run: of its process.
        version: of its program.
        zone: what fails together with it; empty if that was not said.
        free_bytes: on its disk; None if it is not known.
        clock_s: by how many seconds its clock is ahead of etcd's at least; negative if it is behind.
        ports: its replicas listen on the ports above its own, not on free ones.
        failing: its replicas that cannot run.
        format: the newest format of a cluster that its program knows; 1 if it does not say it.
    """

    address: str
    run: str
    version: str
    zone: str = ""
    free_bytes: int | None = None
    clock_s: float = 0.0
    ports: bool = False
    failing: tuple[Failing, ...] = ()
    format: int = 1

    def value(self) -> Tree:
        return {
            "address": self.address,
            "run": self.run,
            "version": self.version,
            "zone": self.zone,
            "free_bytes": self.free_bytes,
            "clock_s": self.clock_s,
            "ports": self.ports,
            "failing": failing_value(self.failing),
            "format": self.format,
        }


def ticket_value(shard: int, run: str) -> Tree:
    """Returns the value of a ticket's key. `run`: of the leader's process, which no other leader has."""
    return {"shard": shard, "run": run}


def tickets(snapshot: RegistrySnapshot) -> dict[int, str]:
    """Returns the tickets that are taken, each with the run that has it."""
    prefix = f"{MOVING}/"
    found = ((key.removeprefix(prefix), entry.value) for key, entry in snapshot.entries.items() if key.startswith(prefix))
    return {int(number): str(value.get("run")) for number, value in found if number.isdecimal()}


def read_node(name: str, value: Tree) -> NodeKey:
    """Raises Corrupt: something else wrote the key."""
    try:
        found: Any = value
        free = found.get("free_bytes")
        return NodeKey(
            str(found["address"]),
            str(found["run"]),
            str(found["version"]),
            str(found.get("zone", "")),
            None if free is None else int(free),
            float(found.get("clock_s", 0.0)),
            found.get("ports") is True,
            read_failing(found.get("failing", ())),
            int(found.get("format", 1)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{NODES}{name}", 0, f"not a node in the registry ({error!r})") from None


def fixed_addresses(seen: RegistrySnapshot) -> dict[str, str]:
    """Returns the addresses of the nodes that run and whose replicas listen above them, by name, in order."""
    names = sorted(key.removeprefix(NODES) for key in seen.entries if key.startswith(NODES))
    found = {name: read_node(name, seen.entries[NODES + name].value) for name in names}
    return {name: node.address for name, node in found.items() if node.ports}


@dataclass(frozen=True, slots=True)
class MovingKey:
    """The limits of moves.

    Attributes:
        at_once: how many shards may copy replicas at a time.
        rate: bytes a second that the leader of each sends; None: as many as it can.
        pause: whether all moves are paused.
        unknown: members that a newer program has written.
    """

    at_once: int = 2
    rate: int | None = None
    pause: Pause = NOT_PAUSED
    unknown: Tree = field(default_factory=dict)

    def value(self) -> Tree:
        own: Tree = {"at_once": self.at_once, "rate": self.rate, "paused": self.pause.on, "paused_by": self.pause.by}
        return {**self.unknown, **own}


def read_moving(value: Tree | None) -> MovingKey:
    """Returns the limits of moves; the defaults if none were written."""
    match value:
        case {"at_once": int(at_once), "rate": int() | None as rate, **rest} if at_once > 0:
            pause = Pause(rest.get("paused") is True, read_asked_by(rest.get("paused_by")))
            return MovingKey(at_once, rate, pause, unknown_members(value or {}, ("at_once", "rate", "paused", "paused_by")))
    return MovingKey()


def read_asked_by(found: object) -> str:
    """Returns who asked for something, as another process has written it; empty if an older program wrote it, which does not
    say.
    """
    return found[:ASKED_BY_MAX] if isinstance(found, str) else ""
