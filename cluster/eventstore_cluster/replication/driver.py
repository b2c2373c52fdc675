"""Drives a replica: carries out what it decides on the log, the network and the registry, and tells it what came of it.

    follower   the logs are written as the leader sends them (`FollowerLogs`)
    elected    the folder is opened as a store, whose writes are told to followers (`ShardLeadership`)

Everything runs on one event loop. A run ends with its process: nothing is answered after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

import anyio
import trio

from eventstore.chunks.documents import Tree
from eventstore.errors import EventStoreError
from eventstore.server.logs import get_logger
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown, RegistryRefused, RegistryUnavailable
from eventstore_cluster.registry.etcd.lease import now
from eventstore_cluster.registry.replicated_keys import ServingKey
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
from eventstore_cluster.replica.frames import Data
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replica.registry_state import Swap
from eventstore_cluster.replication.leadership import ShardLeadership
from eventstore_cluster.replication.links import Links
from eventstore_cluster.replication.log_split import LogSplit
from eventstore_cluster.replication.logs.pieces import Cargo, end_of, is_small
from eventstore_cluster.replication.run import ReplicaRun

TICK_S: Final = 0.1
_log = get_logger("eventstore.cluster")


@final
class ReplicaDriver:
    """Drives a replica.

    `ended` is called when the process has to end at once; it does not return.

    Attributes:
        elected: set when the replica is to lead.
        leadership: what the store is opened with; None until the replica is elected.
        file_committed: unparked when a record of another event file is committed: each commit would wake a follower once more.
    """

    def __init__(self, run: ReplicaRun, links: Links, ended: Callable[[str, bool], None], changed: Callable[[], None]) -> None:
        """`changed` is called when the role may have changed."""
        self.run_of = run
        self.replica = run.replica
        self._links = links
        self.elected = trio.Event()
        self.leadership: ShardLeadership | None = None
        self.log_split: LogSplit | None = None
        self.committed: LogEnds | None = None
        self.opened = False
        self.file_committed = trio.lowlevel.ParkingLot()
        self._ended, self._changed = ended, changed
        self._actions: deque[Action] = deque()
        self._busy = False
        self._epoch = 0
        self._nursery: trio.Nursery
        self._read_wanted = trio.Event()
        self._disk = trio.CapacityLimiter(1)

    @property
    def epoch(self) -> int:
        """The epoch that it was elected in; 0 until then."""
        return self._epoch

    # the loops

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled, or the process ends."""
        _load_parts_of_anyio()
        async with trio.open_nursery() as self._nursery:
            self.do(self.replica.start())
            self._nursery.start_soon(self._tick)
            self._nursery.start_soon(self._read)
            self._nursery.start_soon(self.run_of.registry.watch, lambda: self._read_wanted.set())
            self._nursery.start_soon(self._links.run, self.replica, self.do)
            task_status.started()

    async def _tick(self) -> None:
        while True:
            self._report(self.replica.tick(now(), self.run_of.lease.until))
            await trio.sleep(TICK_S)

    def _report(self, actions: list[Action]) -> None:
        """Carries out what follows from the lease or the registry, by which a leader knows whether it may answer."""
        self.do(actions)
        if self.leadership is not None:
            self.leadership.send_held()

    async def _read(self) -> None:
        """Reads the registry whenever it is wanted, one read at a time."""
        while True:
            await self._read_wanted.wait()
            self._read_wanted = trio.Event()
            try:
                seen = await self.run_of.registry.read()
            except (RegistryUnavailable, RegistryRefused, OutcomeUnknown) as error:
                _log.debug("the registry cannot be read", error=error.message)
                continue
            if self.run_of.registry.went_back:
                self.end("the registry has gone back: it was restored from an older copy")
            elif seen is not None:
                self._report(self.replica.saw(seen, now()))
                self._changed()

    # actions

    def do(self, actions: list[Action]) -> None:
        """Carries out actions, after the actions that are under way."""
        self._actions.extend(actions)
        if self._busy:
            return
        self._busy = True
        try:
            while self._actions:
                self._do(self._actions.popleft())
        finally:
            self._busy = False

    def _do(self, action: Action) -> None:
        match action:
            case SendFrame(connection, frame):
                self._links.send(connection, frame)
            case Serve():
                assert self.leadership is not None, "only a leader serves"
                self.leadership.serve(action, self._nursery)
            case Store(data):
                self._store(data)
            case CutTo(ends):
                self._nursery.start_soon(self._on_disk, lambda: self.run_of.logs.cut(ends))
            case CommitTo(ends):
                self._commit(ends)
            case ReadRegistry():
                self._read_wanted.set()
            case Transact(swap):
                if swap.yields:
                    _log.info("leadership is handed over", to=swap.state.successor)
                self._nursery.start_soon(self._transact, swap)
            case Follow(leader):
                self._links.follow(leader)
                self._changed()
            case Unfollow():
                self._links.follow(None)
            case Begin(epoch):
                _log.info("elected: the log is opened for writing", epoch=epoch)
                if self.replica.unreached:
                    _log.warning("elected though others may not reach it: no other replica was", why=self._links.unreached)
                self._epoch = epoch
                self.elected.set()
                self._changed()
            case Open():
                self.opened = True
                assert self.leadership is not None
                self.leadership.opened.set()
                self._changed()
            case BeginFile():
                assert self.log_split is not None, "only one that serves begins files"
                _log.info("a new event file is begun, so that the one before can be sorted", epoch=self._epoch)
                self.log_split.begin_file()
            case HoldBack():
                self._hold_back()
            case EndProcess(reason, sit_out):
                self.end(reason, sit_out=sit_out)

    def sync_takes_s(self) -> float:
        """Returns how long the write that is under way takes by now, in seconds."""
        return 0.0 if self.leadership is None else self.leadership.sync_takes_s()

    def end(self, reason: str, *, sit_out: bool = False) -> None:
        """Ends the process at once."""
        self._ended(reason, sit_out)

    def open_leadership(self) -> ShardLeadership:
        """Returns what the store is opened with, once the replica is elected; the logs of the follower are closed."""
        self.leadership = ShardLeadership(self.run_of, self._epoch, self._links, self.do, self.end)
        return self.leadership

    def _hold_back(self) -> None:
        assert self.log_split is not None, "only one that serves is split"
        last_file = self.log_split.hold_back()
        if last_file is None:
            self.end("slots are held back for a split, and nothing can be written")
        else:
            self._actions.extend(self.replica.held_back(last_file, now()))

    def serves(self, log_split: LogSplit) -> None:
        """Notes that clients are served, so that a split may begin."""
        self.log_split = log_split
        self.replica.serves()

    def stop_serving(self) -> None:
        """Stops the server. No event file is begun from now on: it would not be written."""
        assert self.log_split is not None, "clients are served"
        self.replica.serves(until_now=True)
        self.log_split.stop()

    async def _transact(self, swap: Swap) -> None:
        if swap.yields:
            assert self.leadership is not None, "only a leader hands over"
            await self.leadership.save_offsets(self._nursery)
        applied = await self.run_of.registry.transact(swap)
        self._report(self.replica.answered(swap.number, applied, now()))
        self._changed()

    def _store(self, data: Data) -> None:
        """Stores what came: in place if it is little, since nothing else is to be done meanwhile; on a thread otherwise."""
        cargo: Cargo = data.payload
        if is_small(cargo):
            try:
                self.run_of.logs.store(cargo)
            except (EventStoreError, OSError) as error:
                self._not_stored(error)
            self._stored()
        else:
            self._nursery.start_soon(self._on_disk, lambda: self.run_of.logs.store(cargo))
            self.do(self.replica.storing(*end_of(cargo, data.start, self.run_of.logs.last_crcs)))

    async def _on_disk(self, step: Callable[[], None]) -> None:
        try:
            await trio.to_thread.run_sync(step, limiter=self._disk)
        except (EventStoreError, OSError) as error:
            self._not_stored(error)
        self._stored()

    def _not_stored(self, error: Exception) -> None:
        """Ends the process: a start finds out what is stored."""
        self._ended(f"what the leader sent cannot be stored: {error}", False)

    def _stored(self) -> None:
        logs = self.run_of.logs
        self.do(self.replica.stored(logs.tails, logs.last_crcs))

    def _commit(self, ends: LogEnds) -> None:
        before, self.committed = self.committed, ends
        if self.leadership is not None:
            self.leadership.commit(ends)
        if before is None or before[0][0] != ends[0][0]:
            self.file_committed.unpark_all()

    async def say_serving(self, address: str) -> None:
        """Tells clients where the leader is, again until the registry has it."""
        seen = self.replica.registrar.seen
        assert seen is not None
        serving = ServingKey(address, seen.state.epoch)
        while True:
            if await self.run_of.registry.serve(seen.leader_revision, serving):
                return
            await trio.sleep(TICK_S)

    # for operators

    def attention(self, of_follower: str | None) -> str | None:
        """Returns what an operator is told first. `of_follower`: what there is to say while it does not lead."""
        return self._links.unreached or (of_follower if self.leadership is None else self.leadership.attention)

    def report(self) -> Tree:
        """Returns the role of this replica, and what it knows of the others."""
        replica, seen = self.replica, self.replica.registrar.seen
        leading = replica.leading
        report: Tree = {
            "role": "leader" if self.opened else "elected" if self.elected.is_set() else "follower",
            "follows": not self.elected.is_set() and replica.following.follows,
            "epoch": None if seen is None else seen.state.epoch,
            "leader": None if seen is None or seen.leader is None else seen.leader.member.node,
            "in_sync": [] if seen is None else [member.node for member in sorted(seen.state.in_sync)],
            "replicas": [] if seen is None else list(seen.state.replicas),
        }
        report["ends"] = [list(end) for end in replica.ends]
        if leading is not None:
            report["lag_s"] = {lag.node: round(lag.seconds, 3) for lag in leading.lags(now())}
        return report


def _load_parts_of_anyio() -> None:
    """Loads what a leader uses. anyio would do it at the first use, while clients wait for the new leader."""
    anyio.Event()
    anyio.Lock()
