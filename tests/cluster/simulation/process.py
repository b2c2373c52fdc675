"""A simulated process: carries out what its `Replica` wants on the disk, the network and the registry of the world."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from eventstore.records.cluster_map import SlotRange
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replica_keys import EARLIER_MAX, ReplicaKey
from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replica.actions import (
    Action,
    Begin,
    BeginFile,
    CommitTo,
    CutTo,
    EndProcess,
    Follow,
    HoldBack,
    Open,
    ReadRegistry,
    SendFrame,
    Serve,
    Store,
    Transact,
    Unfollow,
)
from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.frames import Data
from eventstore_cluster.replica.places import NOWHERE, LogEnds, reaches
from eventstore_cluster.replica.registry_state import Leader, Seat, Seen, Swap
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replication.logs.documents import tail_of
from eventstore_cluster.replication.slot_gifts import Cut, Gift, give, keys_of
from tests.cluster.simulation.aggregates import LedStore
from tests.cluster.simulation.decisions import LogMemory
from tests.cluster.simulation.disk import IN_A_CHUNK, KINDS, Record, count, place
from tests.cluster.simulation.generations import OFFSETS, started
from tests.cluster.simulation.run import Run

if TYPE_CHECKING:
    from tests.cluster.simulation.clone import Clone
    from tests.cluster.simulation.world import Machine, World

_TICK_S = 0.1


class Process(Run):
    """One run on a machine, from its start to its death; of a clone's process, that has made its folder, it continues the run.

    `shard_key`: of the shard, as it was read last; `latest`: with the keys of shards in preparation. `store`: while it leads.
    `memory`: then, of its log. `asks_ahead`: its leader knows FetchAhead, as it seems to this one; some programs are
    older than others.
    """

    def __init__(
        self, world: World, machine: Machine, run: str, sit_out: float, *, clone: Clone | None = None, lease: str | None = None
    ) -> None:
        super().__init__(world, machine, run, clone.lease if clone is not None else lease or world.token("lease"))
        self.latest = RegistrySnapshot(0, {})
        self.store = LedStore((), (), {})
        self.memory = LogMemory(world.decisions, ())
        self.asks_ahead = world.number() % 4 > 0
        self._read_at = 0
        self._split_at: Cut | None = None
        self.opened = False
        self.committed: LogEnds | None = None
        self.uplink: int | None = None
        self.fetched: dict[str, float] = {}  # when the last Fetch of its session was sent that came from each machine
        self._lease_until = 0.0
        self._syncing = False
        self._starts = 0
        self._receipts: deque[LogEnds] = deque()
        disk = machine.disk
        self._documents = tail_of(disk.version)
        self.document_end = NOWHERE
        if clone is None:
            earlier = tuple(disk.incarnations)
            disk.begin(world.token("i"))
        else:
            earlier = clone.earlier
        me = Leader(Seat(machine.name, disk.incarnations[-1]), run, machine.name)
        self.replica = Replica(
            me, earlier, self._tails(), (*disk.last_crcs, 0), limits=world.limits, new_nonce=lambda: world.token("n"),
            now=self.clock(), candidate_from=self.clock() + sit_out, known=world.losses.known(machine.name),
        )  # fmt: skip
        self.member = me.member
        logs = [tail.last for tail in self._tails()]
        self.key = ReplicaKey(
            me.member.incarnation, run, self.replica.last_epoch, self.replica.ends,
            tuple((last.epoch, *last.end) for last in logs), disk.led, earlier[-EARLIER_MAX:],
        )  # fmt: skip
        self.keep_alive()

    @property
    def visible(self) -> list[Record]:
        """The events that clients may read, once this leader may answer."""
        disk = self.machine.disk
        return disk.records[0][: count((self.committed or disk.ends)[0])]

    def do(self, actions: list[Action]) -> None:
        """Carries out what the replica wants after a step of it."""
        self.world.checks.step(self)
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
            case SendFrame(connection, frame):
                self.world.network.send(self, connection, frame)
            case Serve():
                self._serve(action)
            case Store(data):
                self._store(data)
            case CutTo(ends):
                self.machine.disk.begin_cut(ends)
                self.world.may_crash_while(self, 0.5)
                self.later(self.world.disk_delay(), lambda: self._cut(ends))
            case Begin(epoch):
                self.later(self.world.disk_delay(), lambda: self._begin(epoch))
            case CommitTo(ends):
                self._commit(ends)
            case BeginFile():
                self._begin_file()
            case HoldBack():
                self._hold_back()
            case Open():
                self.opened = True
                self.replica.serves()
                self.world.checks.opened(self, self._starts)
                self.world.losses.opened()
            case EndProcess(reason, sit_out):
                self.world.ended(self, reason, sit_out)

    # the registry

    def saw(self, seen: Seen, key: ShardKey, latest: RegistrySnapshot) -> None:
        """Takes what was read: see `ShardRegistry`."""
        if seen.at >= self._read_at:
            self.shard_key, self.latest, self._read_at = key, latest, seen.at
        self.do(self.replica.saw(seen, self.clock()))

    def writes(self, swap: Swap) -> tuple[ShardKey, Gift | None]:
        """Returns what a transaction writes."""
        assert self.shard_key is not None
        own = replace(self.shard_key, state=swap.state)
        if not swap.gifts:
            return own, None
        assert self._split_at is not None, "slots are held back"
        gift = give(self.world.number_of_shard, own, swap, self._split_at, self.latest)
        return gift.own, gift

    def own_slots(self) -> tuple[SlotRange, ...]:
        """Returns what the shard owned when this run was elected: see `ReplicaProcess`."""
        return self.shard_key.slots if self.shard_key is not None else ()

    def answered(self, swap: Swap, own: ShardKey, applied: int | None) -> None:
        if applied and applied > self._read_at:
            self.shard_key, self._read_at = own, applied
        self.do(self.replica.answered(swap.number, applied, self.clock()))

    # time and the lease

    def _tick(self) -> None:
        self.do(self.replica.tick(self.clock(), self._lease_until))
        self.later(_TICK_S, self._tick)

    def renewed(self, sent: float, kept: bool) -> None:
        if not kept:
            self.do(self.replica.lease_lost())
            return
        granted, self._lease_until = self._lease_until == 0.0, max(self._lease_until, sent + self.world.lease_s * 0.98)
        if granted:  # nothing is read without a lease: a registry that loses everything loses that, too
            self.do(self.replica.start())
            self._tick()

    # the log

    def _tails(self) -> tuple[LogTail, ...]:
        return (*self.machine.disk.tails(), self._documents)

    def append(self, records: list[list[Record]]) -> None:
        """Writes records as the leader: they can be fetched at once, and are synced a little later. Some are appended only if
        all replicas are in sync, and are answered with a receipt.
        """
        self.memory.release(self.machine.disk.sorted)
        self.world.decisions.append(self, records[0])
        if self.world.random.random() < 0.3 and self.replica.takes_appends_for_all(self.clock()):
            self.world.checks.taken_for_all(self)
        self.machine.disk.append(records)
        self._receipts.append((*self.machine.disk.ends, self.document_end))
        self.do(self.replica.grown((*self.machine.disk.ends, self.document_end), self.clock()))
        if not self._syncing:
            self._sync()

    def replace_document(self, name: str) -> None:
        """Replaces a document as the leader: it is durable here, and has a new version."""
        disk = self.machine.disk
        self.document_end = (self.document_end[0], self.document_end[1] + 1)
        disk.documents[name] = (self.document_end, b"")
        self.do(self.replica.grown((*disk.ends, self.document_end), self.clock()))
        self.do(self.replica.durable((*disk.synced_ends, self.document_end), self.clock()))

    def _begin_file(self) -> None:
        """Fills the file up, and writes a record to the next one."""
        leading, events = self.replica.leading, len(self.machine.disk.records[0])
        assert leading is not None
        if not leading.takes_appends(self.clock()):
            return
        numbers = [self.world.number() for _ in range(-events % IN_A_CHUNK + 1)]
        self.append([[(leading.epoch, number) for number in numbers], *([] for _ in range(KINDS - 1))])

    def _hold_back(self) -> None:
        """Takes nothing more for the slots of the shards in preparation: they get the files before the one that is begun."""
        assert self.shard_key is not None
        for child in keys_of(self.shard_key.state.split, self.latest).values():
            assert child.lineage.birth is not None
            self.store.slots.give_up(child.lineage.birth.slots)
        events = self.machine.disk.records[0]
        before, through = len(events), -(-len(events) // IN_A_CHUNK) * IN_A_CHUNK
        self.world.family.happens(self.world, self.machine)
        self._begin_file()
        if not self.alive:
            return
        if len(events) == before:
            self.world.ended(self, "slots are held back for a split, and nothing can be written", False)
            return
        chunk, end = place(through)
        self._split_at = Cut(through, chunk, end, events[through - 1][1] if through else 0, {})
        self.do(self.replica.held_back(chunk, self.clock()))

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
        self.store = LedStore(self.own_slots(), disk.records[0], self.world.family.aggregates.events)
        self.memory = LogMemory(self.world.decisions, disk.records[0])
        disk.lead(epoch)
        disk.version, disk.led = (epoch, 1), True
        self.document_end = disk.version
        raw, self._starts = started(disk.documents[OFFSETS][1] if OFFSETS in disk.documents else None)
        disk.documents[OFFSETS] = (self.document_end, raw)
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
        if self.alive and len(payload[0]) > 1:  # little is stored at once: see `ReplicaDriver`
            end = self._documents.end if documents is None else version
            self.do(self.replica.storing((*disk.ends, end), (*disk.last_crcs, 0)))
        counts = [len(records) for records in disk.records]
        self.world.may_crash_while(self, 0.06 * len(payload[0]) ** 2)

        def stored() -> None:
            disk.sync(counts)
            if documents is not None:
                disk.replaced(version)
                self._documents = tail_of(version)
            self._stored()

        self.later(self.world.disk_delay(), stored)

    def _cut(self, ends: LogEnds) -> None:
        self.machine.disk.cut(ends)
        if ends[KINDS] != self._documents.end:
            self._documents = LogTail()  # the leader's replace these, which are kept until then
        self._stored()

    def _stored(self) -> None:
        self.do(self.replica.stored(self._tails(), (*self.machine.disk.last_crcs, 0)))

    def _commit(self, ends: LogEnds) -> None:
        self.committed = ends
        if self.world.random.random() < 0.5:
            self.sort()
        if self.replica.leading is not None and (not self.world.accepted.ever or self.replica.may_read(self.clock())):
            self.world.checks.acknowledged(self, ends)
            while self._receipts and reaches(ends, self._receipts[0]):
                self.world.checks.receipt(self, self._receipts.popleft())

    def sort(self) -> None:
        """Sorts the files that are final by what is committed."""
        if self.committed is not None:
            self.machine.disk.sort(self.committed)
            self.replica.following.sorted_through = self.machine.disk.sorted
