"""What must hold at every step of a history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore_cluster.replica.places import NOWHERE, Ends, Place
from eventstore_cluster.replica.registry_state import Leader, Member
from tests.cluster.simulation.disk import KINDS, Record, count

if TYPE_CHECKING:
    from tests.cluster.simulation.process import Process
    from tests.cluster.simulation.world import World


class Broken(Exception):
    """A promise of replication does not hold."""


class Checks:
    """`records`: for each kind what was acknowledged or read, in the log's order; `documents`: for each the version that was
    acknowledged last.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.records: list[list[Record]] = [[] for _ in range(KINDS)]
        self.documents: dict[str, Place] = {}
        self._elected: dict[int, str] = {}

    def elected(self, leader: Leader, epoch: int) -> None:
        """The registry has a new leader: its log must hold everything that was acknowledged."""
        self._elected[epoch] = leader.run
        self._member_holds(leader.member, "was elected")

    def begins(self, process: Process, epoch: int) -> None:
        """A process writes the first record of an epoch: only the run that was elected may."""
        if self._elected.get(epoch) != process.run:
            raise Broken(f"{process.run} begins epoch {epoch}, which {self._elected.get(epoch)} leads")

    def acknowledged(self, process: Process, ends: Ends) -> None:
        """A leader tells its clients that everything before `ends` is committed."""
        epoch = process.replica.leading.epoch if process.replica.leading is not None else 0
        if self._elected.get(epoch) != process.run:
            raise Broken(f"{process.run} acknowledges in epoch {epoch}, which {self._elected.get(epoch)} leads")
        self._seen(process, ends)
        for name, written in process.machine.disk.documents.items():
            if written <= ends[KINDS]:
                self.documents[name] = max(written, self.documents.get(name, NOWHERE))

    def _seen(self, process: Process, ends: Ends) -> None:
        for kind, end in enumerate(ends[:KINDS]):
            known, own = self.records[kind], process.machine.disk.records[kind][: count(end)]
            common = min(len(known), len(own))
            if own[:common] != known[:common]:
                at = next(at for at in range(common) if own[at] != known[at])
                raise Broken(f"{process.run}: record {at} of kind {kind} is {own[at]}, {known[at]} was acknowledged")
            known.extend(own[common:])

    def read(self, process: Process) -> None:
        """A leader answers a read: with not less than was acknowledged before, and with nothing that is taken back later."""
        ends = process.committed or process.machine.disk.ends
        for kind, end in enumerate(ends[:KINDS]):
            if count(end) < len(self.records[kind]):
                raise Broken(f"{process.run} reads {count(end)} of kind {kind}, {len(self.records[kind])} were acknowledged")
        self._seen(process, ends)

    def in_sync(self) -> None:
        """The set is large enough; each member whose folder is still the one that joined holds all that was acknowledged."""
        state = self._world.registry.state
        if len(state.in_sync) < state.in_sync_min:
            raise Broken(f"the set has {len(state.in_sync)} members, {state.in_sync_min} are the least")
        for member in state.in_sync:
            self._member_holds(member, "is in sync")

    def _member_holds(self, member: Member, what: str) -> None:
        if member.incarnation in self._world.machines[member.node].disk.incarnations:  # else its folder is lost, and it with it
            self._holds(member.node, what)

    def _holds(self, name: str, what: str) -> None:
        disk = self._world.machines[name].disk
        for kind, known in enumerate(self.records):
            own = disk.records[kind][: disk.synced[kind]]
            if len(own) < len(known) or own[: len(known)] != known:
                raise Broken(f"{name} {what}, has {len(own)} records of kind {kind}, lacks some of {len(known)} acknowledged")
        for document, written in self.documents.items():
            if disk.documents.get(document, NOWHERE) < written:
                raise Broken(f"{name} {what}, lacks version {written} of document {document}, which was acknowledged")

    def healed(self) -> None:
        """After a quiet time one process leads, all replicas are in sync, and their logs are equal."""
        world = self._world
        leaders = [machine for machine in world.machines.values() if machine.process and machine.process.opened]
        if len(leaders) != 1:
            raise Broken(f"{len(leaders)} leaders are open after a quiet time")
        nodes = sorted(member.node for member in world.registry.state.in_sync)
        if nodes != sorted(world.machines):
            raise Broken(f"only {nodes} are in sync after a quiet time")
        for machine in world.machines.values():
            if (machine.disk.records, machine.disk.documents) != (leaders[0].disk.records, leaders[0].disk.documents):
                raise Broken(f"{machine.name} differs from its leader after a quiet time")
