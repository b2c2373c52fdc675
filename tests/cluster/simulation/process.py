"""A simulated process: carries out what its `Replica` wants on the disk, the network and the registry of the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from eventstore_cluster.replica.actions import (
    Action,
    Begin,
    Commit,
    CutTo,
    End,
    Follow,
    Open,
    ReadRegistry,
    Send,
    Serve,
    Store,
    Transact,
    Unfollow,
)
from eventstore_cluster.replica.epochs import Tail
from eventstore_cluster.replica.frames import Data
from eventstore_cluster.replica.places import NOWHERE, Ends
from eventstore_cluster.replica.registry_state import Leader, Member
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replication.logs.documents import tail_of
from tests.cluster.simulation.disk import KINDS, Record

if TYPE_CHECKING:
    from tests.cluster.simulation.world import Machine, World

_TICK_S = 0.1


class Process:
    """One run on a machine, from its start to its death. Its clock runs a little fast or slow."""

    def __init__(self, world: World, machine: Machine, run: str, sit_out: float) -> None:
        self.world, self.machine, self.run = world, machine, run
        self.alive = True
        self.paused_until = 0.0
        self.opened = False
        self.committed: Ends | None = None
        self.uplink: int | None = None
        self._rate = world.random.uniform(0.996, 1.004)
        self._offset = world.random.uniform(0, 1000)
        self.lease = world.token("lease")
        self._lease_until = 0.0
        self._syncing = False
        disk = machine.disk
        self._documents = tail_of(disk.version)
        self.document_end = NOWHERE
        earlier = tuple(disk.incarnations)
        disk.incarnations.append(world.token("i"))
        me = Leader(Member(machine.name, disk.incarnations[-1]), run, machine.name)
        self.replica = Replica(
            me, earlier, self._tails(), (*disk.last_crcs, 0), limits=world.limits, new_nonce=lambda: world.token("n"),
            now=self.clock(), candidate_from=self.clock() + sit_out,
        )  # fmt: skip
        self.do(self.replica.start())
        self._keep_alive()
        self._tick()

    def clock(self) -> float:
        return self._offset + self.world.now * self._rate

    def later(self, delay: float, step: Callable[[], None]) -> None:
        """Runs a step of this process, unless it is dead then; while it is paused, the step waits."""
        self.world.after(delay, lambda: self._resumed(step))

    def _resumed(self, step: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.world.now < self.paused_until:
            self.later(self.paused_until - self.world.now + 1e-6, step)
        else:
            step()

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if not self.alive:
                return
            self.world.note(self.machine.name, action)
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case ReadRegistry():
                self.world.read_registry(self)
            case Transact(swap):
                self.world.transact(self, swap)
            case Follow(leader):
                self.world.network.connect(self, leader)
            case Unfollow():
                self.world.network.close(self)
            case Send(connection, frame):
                self.world.network.send(self, connection, frame)
            case Serve():
                self._serve(action)
            case Store(data):
                self._store(data)
            case CutTo(ends):
                self.later(self.world.disk_delay(), lambda: self._cut(ends))
            case Begin(epoch):
                self.later(self.world.disk_delay(), lambda: self._begin(epoch))
            case Commit(ends):
                self._commit(ends)
            case Open():
                self.opened = True
            case End(reason, sit_out):
                self.world.ended(self, reason, sit_out)

    # time and the lease

    def _tick(self) -> None:
        self.do(self.replica.tick(self.clock(), self._lease_until))
        self.later(_TICK_S, self._tick)

    def _keep_alive(self) -> None:
        sent = self.clock()
        self.world.keep_alive(self, lambda kept: self._renewed(sent, kept))
        self.later(self.world.lease_s / 3, self._keep_alive)

    def _renewed(self, sent: float, kept: bool) -> None:
        if kept:
            self._lease_until = max(self._lease_until, sent + self.world.lease_s * 0.98)
        else:
            self.do(self.replica.lease_lost())

    # the log

    def _tails(self) -> tuple[Tail, ...]:
        return (*self.machine.disk.tails(), self._documents)

    def append(self, records: list[list[Record]]) -> None:
        """Writes records as the leader: they can be fetched at once, and are synced a little later."""
        self.machine.disk.append(records)
        self.do(self.replica.grown((*self.machine.disk.ends, self.document_end), self.clock()))
        if not self._syncing:
            self._sync()

    def replace_document(self, name: str) -> None:
        """Replaces a document as the leader: it is durable here, and has a new version."""
        disk = self.machine.disk
        self.document_end = (self.document_end[0], self.document_end[1] + 1)
        disk.documents[name] = self.document_end
        self.do(self.replica.grown((*disk.ends, self.document_end), self.clock()))
        self.do(self.replica.durable((*disk.synced_ends, self.document_end), self.clock()))

    def _sync(self) -> None:
        self._syncing = True
        counts = [len(records) for records in self.machine.disk.records]
        self.later(self.world.disk_delay(), lambda: self._synced(counts))

    def _synced(self, counts: list[int]) -> None:
        disk = self.machine.disk
        disk.sync(counts)
        self._syncing = False
        self.do(self.replica.durable((*disk.synced_ends, self.document_end), self.clock()))
        if self.alive and disk.ends != disk.synced_ends:
            self._sync()

    def disk_full(self) -> None:
        self.do(self.replica.resign("no space left"))

    def _begin(self, epoch: int) -> None:
        disk = self.machine.disk
        self.world.checks.begins(self, epoch)
        before = (*disk.tails(), tail_of(disk.version))
        disk.version = self.document_end = (epoch, 1)
        disk.append([[] for _ in disk.records[1:]] + [[(epoch, self.world.number())]])  # one kind has it: that is enough
        self.do(self.replica.begun(before, (*disk.ends, self.document_end), self.clock()))
        self._sync()

    def _serve(self, serve: Serve) -> None:
        disk = self.machine.disk
        if not disk.holds(serve.start, serve.last_crcs):
            self.do(self.replica.mismatched(serve.session, serve.connection))
            return
        payload = disk.after(serve.start, self.world.random.randint(1, 6))
        documents = None if serve.start[KINDS] == self.document_end else disk.documents_after(serve.start[KINDS])
        cargo = (payload, documents, self.document_end)
        has_any = documents is not None or any(payload)
        data = Data(serve.session, serve.epoch, serve.start, serve.committed, cargo if has_any else None)
        self.world.network.send(self, serve.connection, data)

    def _store(self, data: Data) -> None:
        disk = self.machine.disk
        assert (*disk.ends, self._documents.end) == data.start, "data for another place"
        payload, documents, version = data.payload
        disk.append(payload)
        if documents is not None:
            disk.arriving = documents
        counts = [len(records) for records in disk.records]

        def stored() -> None:
            disk.sync(counts)
            if documents is not None:
                disk.replaced(version)
                self._documents = tail_of(version)
            self._stored()

        self.later(self.world.disk_delay(), stored)

    def _cut(self, ends: Ends) -> None:
        self.machine.disk.cut(ends)
        if ends[KINDS] != self._documents.end:
            self._documents = Tail()  # the leader's replace these, which are kept until then
        self._stored()

    def _stored(self) -> None:
        self.do(self.replica.stored(self._tails(), (*self.machine.disk.last_crcs, 0)))

    def _commit(self, ends: Ends) -> None:
        self.committed = ends
        if self.replica.leading is not None:
            self.world.checks.acknowledged(self, ends)
