"""What must hold at every step of a history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore_cluster.replica.places import NOWHERE, LogEnds, reaches
from eventstore_cluster.replica.registry_state import Leader, Seat
from tests.cluster.simulation.disk import KINDS, Document, Record, count

if TYPE_CHECKING:
    from tests.cluster.simulation.process import Process
    from tests.cluster.simulation.world import World


_NEVER: Document = (NOWHERE, b"")
_LOOKS_EVERY = 3  # steps: to look at each takes 40 % of the time of a history


class Broken(Exception):
    """A promise of replication does not hold."""


class Checks:
    """`records`: for each kind what was acknowledged or read, in order; `documents`: each as it was acknowledged last."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.records: list[list[Record]] = [[] for _ in range(KINDS)]
        self.documents: dict[str, Document] = {}
        self._elected: dict[int, str] = {}
        self._starts: set[int] = set()
        self._members = len(world.machines)
        self._steps = 0

    def elected(self, leader: Leader, epoch: int) -> None:
        """The registry has a new leader: its log must hold everything that was acknowledged."""
        self._elected[epoch] = leader.run
        if not self._world.losses.away:  # otherwise nobody knows who holds what: it must not get any further
            self._member_holds(leader.member, "was elected")

    def handed_over(self, process: Process, successor: str, fetched_at: float) -> None:
        """A leader gives leadership up: its successor has asked for more since it was named, so that it does not hang."""
        if fetched_at < self._world.registry.named[successor]:
            raise Broken(f"{process.run} hands over to {successor}, which was not heard since it was named")

    def chosen(self, node: str) -> None:
        """A registry that was lost is rebuilt with this replica alone in sync."""
        self._holds(node, "was chosen")
        self._members = 1

    def loss_accepted(self, node: str) -> None:
        """A person has this replica lead: what it lacks of what was acknowledged is lost, and nothing else."""
        disk = self._world.machines[node].disk
        for kind, known in enumerate(self.records):
            own = disk.records[kind][: disk.synced[kind]]
            same = next((at for at, (mine, theirs) in enumerate(zip(own, known, strict=False)) if mine != theirs), len(own))
            del known[same:]
        self.documents = {name: min(written, disk.documents.get(name, _NEVER)) for name, written in self.documents.items()}
        self._starts.clear()
        self._members = 1

    def begins(self, process: Process, epoch: int) -> None:
        """A process writes the first record of an epoch: only the run that was elected may."""
        if self._elected.get(epoch) != process.run:
            raise Broken(f"{process.run} begins epoch {epoch}, which {self._elected.get(epoch)} leads")

    def step(self, process: Process) -> None:
        """A replica has taken a step. What a mistake leaves behind stays: not every step has to be looked at for it."""
        self._steps += 1
        if self._steps % _LOOKS_EVERY == 0:
            self.replica(process)
        leading = process.replica.leading
        if leading is not None and leading.committed is not None and leading.committed != process.committed:
            for member in process.replica.registrar.counting():
                self._has_committed(process, member, leading.committed)

    def replica(self, process: Process) -> None:
        """Nothing in a replica contradicts itself, or the disk."""
        process.replica.check_invariants()
        disk, leading, following = process.machine.disk, process.replica.leading, process.replica.following
        if leading is None:
            if not following.busy and following.ends[:KINDS] != disk.synced_ends:
                raise Broken(f"{process.run} follows with {following.ends}, its disk has {disk.synced_ends}")
        elif not process.replica.ended and not reaches((*disk.synced_ends, process.document_end), leading.synced):
            raise Broken(f"{process.run} counts {leading.synced} as synced, its disk has {disk.synced_ends}")

    def _has_committed(self, process: Process, member: Seat, committed: LogEnds) -> None:
        disk = self._world.machines[member.node].disk
        if member.incarnation not in disk.incarnations or not disk.finished:
            return  # its folder is lost, or in the making
        if not reaches(disk.synced_ends, committed[:KINDS]):
            raise Broken(f"{process.run} commits {committed}, and {member}, which counts, has {disk.synced_ends} (R1)")

    def acknowledged(self, process: Process, ends: LogEnds) -> None:
        """A leader tells its clients that everything before `ends` is committed."""
        epoch = process.replica.leading.epoch if process.replica.leading is not None else 0
        if self._elected.get(epoch) != process.run:
            raise Broken(f"{process.run} acknowledges in epoch {epoch}, which {self._elected.get(epoch)} leads")
        self._seen(process, ends)
        for name, written in process.machine.disk.documents.items():
            if written[0] <= ends[KINDS]:
                self.documents[name] = max(written, self.documents.get(name, _NEVER))

    def opened(self, process: Process, starts: int) -> None:
        """A leader gives generations that follow from how often a broker was started: nobody gave them before (R15)."""
        if starts in self._starts:
            raise Broken(f"{process.run} gives generations of start {starts}, which were given before")
        self._starts.add(starts)

    def taken_for_all(self, process: Process) -> None:
        """A leader takes an append that needs all replicas in sync; while they move, as many as before and as there will be."""
        state = process.replica.registrar.state
        if state.wanted is not None and state.before is not None:
            if len(state.in_sync) < min(len(state.wanted), len(state.before)):
                raise Broken(f"{process.run} takes an append for all of {state.wanted}, and {state.in_sync} are in sync")
        elif sorted(member.node for member in state.in_sync) != sorted(state.replicas):
            raise Broken(f"{process.run} takes an append for all replicas, of which {state.in_sync} are in sync")

    def receipt(self, process: Process, ends: LogEnds) -> None:
        """A leader tells a client how many replicas have what it appended up to `ends`."""
        said, machines, own = process.replica.durability, self._world.machines, process.machine.disk
        have = {name for name, machine in machines.items() if machine.disk.has_durable(own, ends)}
        for member in process.replica.registrar.state.in_sync:
            if member.incarnation not in machines[member.node].disk.incarnations:
                have.add(member.node)  # its folder was lost since
        if said > len(have):
            raise Broken(f"{process.run} says that {said} replicas have what only {sorted(have)} have")

    def _seen(self, process: Process, ends: LogEnds) -> None:
        for kind, end in enumerate(ends[:KINDS]):
            known, own = self.records[kind], process.machine.disk.records[kind][: count(end)]
            common = min(len(known), len(own))
            if own[:common] != known[:common]:
                at = next(at for at in range(common) if own[at] != known[at])
                raise Broken(f"{process.run}: record {at} of kind {kind} is {own[at]}, {known[at]} was acknowledged")
            before = len(known)
            known.extend(own[common:])
            if kind == 0:
                self._world.decisions.acknowledged(process.run, known, before)
                self._world.family.aggregates.acknowledged(process.run, own[common:])

    def read(self, process: Process) -> None:
        """A leader answers a read: with not less than was acknowledged before, and with nothing that is taken back later."""
        ends = process.committed or process.machine.disk.ends
        for kind, end in enumerate(ends[:KINDS]):
            if count(end) < len(self.records[kind]):
                raise Broken(f"{process.run} reads {count(end)} of kind {kind}, {len(self.records[kind])} were acknowledged")
        self._seen(process, ends)

    def begins_with(self, records: list[Record]) -> None:
        """The shard has got slots, and begins with these records of its parent."""
        self.records[0] = records
        self._members = len(self._world.registry.state.in_sync)

    def in_sync(self) -> None:
        """The set does not shrink below its least size; each member whose folder is still the one that joined holds all that
        was acknowledged.
        """
        if self._world.losses.away or not self._world.registry.key.slots:
            return
        state = self._world.registry.state
        if len(state.in_sync) < min(self._members, state.in_sync_min):
            raise Broken(f"the set has {len(state.in_sync)} members, {state.in_sync_min} are the least")
        self._members = len(state.in_sync)
        for member in state.in_sync:
            self._member_holds(member, "is in sync")

    def put_away(self, name: str) -> None:
        """The folder of a replica that moved away is put away: no member of the set may be in it."""
        incarnations = self._world.machines[name].disk.incarnations
        if any(member.incarnation in incarnations for member in self._world.registry.state.in_sync):
            raise Broken(f"the folder of {name} is put away, which is in sync")

    def _member_holds(self, member: Seat, what: str) -> None:
        if member.incarnation in self._world.machines[member.node].disk.incarnations:  # else its folder is lost, and it with it
            self._holds(member.node, what)

    def _holds(self, name: str, what: str) -> None:
        machine = self._world.machines[name]
        disk = machine.disk
        for kind, known in enumerate(self.records):
            holds = disk if disk.finished or kind else machine.parent_disk  # it has what its clone is finished with
            own = holds.records[kind][: holds.synced[kind]]
            if len(own) < len(known) or own[: len(known)] != known:
                raise Broken(f"{name} {what}, has {len(own)} records of kind {kind}, lacks some of {len(known)} acknowledged")
        for document, written in self.documents.items():
            if disk.documents.get(document, _NEVER) < written:
                raise Broken(f"{name} {what}, lacks version {written[0]} of document {document}, which was acknowledged")

    def healed(self) -> None:
        """After a quiet time one process leads, nothing more is wanted, all replicas are in sync, and their logs are equal."""
        world = self._world
        leaders = [machine for machine in world.machines.values() if machine.process and machine.process.opened]
        if len(leaders) != 1:
            raise Broken(f"{len(leaders)} leaders are open after a quiet time")
        state = world.registry.state
        if state.split:
            raise Broken(f"{state.split} are still to get slots after a quiet time")
        if state.wanted is not None:
            raise Broken(f"{state.wanted} are still wanted after a quiet time, {state.replicas} are there")
        nodes = sorted(member.node for member in state.in_sync)
        if nodes != sorted(state.replicas):
            raise Broken(f"only {nodes} are in sync after a quiet time")
        for machine in (world.machines[name] for name in nodes):
            if (machine.disk.records, machine.disk.documents) != (leaders[0].disk.records, leaders[0].disk.documents):
                raise Broken(f"{machine.name} differs from its leader after a quiet time")
