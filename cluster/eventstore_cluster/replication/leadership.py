"""A replica that leads: opens its folder as a store, begins the epoch, and lets clients see what is committed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

from eventstore.broker.broker import Broker
from eventstore.errors import EventStoreError, NotEnoughReplicas
from eventstore.records import commit, message
from eventstore.server.logs import get_logger
from eventstore.store.embedded import EmbeddedStore
from eventstore_cluster.registry.etcd.lease import now
from eventstore_cluster.replica.actions import Action, Serve
from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.frames import Data, NotLeading
from eventstore_cluster.replica.leading import Lag
from eventstore_cluster.replica.places import NOWHERE, LogEnds
from eventstore_cluster.replica.registry_state import too_few, trouble_of
from eventstore_cluster.replication.links import Links
from eventstore_cluster.replication.logs.follower_logs import broker_identity
from eventstore_cluster.replication.logs.leader_documents import LeaderDocuments
from eventstore_cluster.replication.logs.leader_log import LeaderLog
from eventstore_cluster.replication.logs.log_reader import Differs, LogReader
from eventstore_cluster.replication.logs.pieces import Cargo, Payload
from eventstore_cluster.replication.pace import SendingRate
from eventstore_cluster.replication.run import ReplicaRun

_REFUSED_S: Final = 1.0
_SAVE_S: Final = 0.2
"""Writers wait meanwhile; a replica that hangs must not make that long."""
_log = get_logger("eventstore.cluster")


class ShardLeadership:
    """What a server of the shard needs (see `Leadership`). The logs of the follower are closed when it is made."""

    def __init__(
        self, run: ReplicaRun, epoch: int, links: Links, do: Callable[[list[Action]], None], end: Callable[[str], None]
    ) -> None:
        """`do` carries out what the replica wants done, `end` ends the process."""
        logs = run.logs
        self.epoch = epoch
        self.opened = trio.Event()
        self.identity = broker_identity(logs.shard)
        self.files = LeaderDocuments(logs.folder, epoch, self._documents_grew)
        self._replica, self._lease, self._links, self._do, self._end = run.replica, run.lease, links, do, end
        self._clock = run.clock
        self._before: tuple[LogTail, ...] = logs.tails_on_disk()
        self._begun = self._holds = False
        self._committed: LogEnds | None = None
        self._pace = SendingRate()
        self._flush: Callable[[], None]
        self._wrote = trio.lowlevel.ParkingLot()
        self._store: EmbeddedStore | None = None
        self._broker: Broker | None = None
        events, messages = logs.events, logs.messages
        self.events = self._log_of(LogReader(events.folder, commit.FRAMING), 0, events.last_crc)
        self.messages = self._log_of(LogReader(messages.folder, message.FRAMING), 1, messages.last_crc)
        self._logs = (self.events, self.messages)
        logs.close()

    def clock_difference_us(self) -> int:
        """See `Leadership`."""
        return round(self._clock.seconds * 1e6)

    def _log_of(self, reader: LogReader, kind: int, last_crc: int) -> LeaderLog:
        return LeaderLog(
            reader,
            lambda: self._key(kind),
            self._before[kind].end,
            last_crc,
            grown=self._grown,
            durable=self._durable,
            failed=self._failed,
            refusal=self._refusal,
            shortage=self._shortage,
            durability=lambda: self._replica.durability,
        )

    def _key(self, kind: int) -> bytes:
        assert self._store is not None
        assert self._broker is not None
        return (self._store.engine if kind == 0 else self._broker.engine).writer.key

    # the server

    async def begin(self, store: EmbeddedStore, broker: Broker) -> None:
        self._store, self._broker = store, broker
        self.files.attach()
        await trio.to_thread.run_sync(self.files.begin)
        broker.committer.begin_chunk()
        while self.messages.end == self._before[1].end:
            await self._wrote.park()
        self._begun = True
        self._do(self._replica.begun(self._before, self._written(), now()))
        self._durable()
        await self.opened.wait()
        _log.info("the shard is led from here", epoch=self.epoch, node=self._replica.me.member.node)

    def may_send(self) -> bool:
        if (at := now()) >= self._lease.until:  # another may lead by now (R11)
            self._end("the lease of the leader ran out")
        self._holds = not self._replica.may_read(at)
        return not self._holds

    def send_with(self, flush: Callable[[], None]) -> None:
        self._flush = flush

    def send_held(self) -> None:
        """Sends what was held back, if it may be sent by now."""
        if self._holds:
            self._flush()

    # the logs

    async def save_offsets(self, nursery: trio.Nursery) -> None:
        """Saves what consumer groups have committed, here and on the replicas that count. Call it while nothing is sent: then
        the next leader has every commit that was acknowledged. Returns within a bounded time even if the save fails: some
        messages are then delivered again.
        """
        assert self._broker is not None, "it leads"
        broker, saved = self._broker, trio.Event()

        async def save() -> None:
            try:
                await broker.housekeeping.save_offsets()
            except (OSError, EventStoreError) as error:
                _log.warning("offsets are not saved: the next leader delivers messages again", error=str(error))
            saved.set()

        nursery.start_soon(save)
        with trio.move_on_after(_SAVE_S) as waiting:
            await saved.wait()
        if waiting.cancelled_caught:
            _log.warning("offsets are not saved in time: the next leader delivers messages again", seconds=_SAVE_S)

    def _written(self) -> LogEnds:
        return self.events.end, self.messages.end, self.files.end

    def _grown(self) -> None:
        if self._begun:
            self._do(self._replica.grown(self._written(), now()))

    def _durable(self) -> None:
        if not self._begun:
            self._wrote.unpark_all()
        else:
            self._do(self._replica.durable((self.events.synced, self.messages.synced, self.files.end), now()))

    def _documents_grew(self) -> None:
        self._grown()
        self._durable()

    @property
    def attention(self) -> str | None:
        """What an operator has to know of the replicas."""
        return trouble_of(self._replica.registrar.state, self._replica.level_members(now())) if self.opened.is_set() else None

    def _refusal(self) -> EventStoreError | None:
        leading = self._replica.leading
        if not self._begun or leading is None or leading.takes_appends(now()):
            return None
        return self._not_enough(self._replica.registrar.state.in_sync_min)

    def _shortage(self) -> EventStoreError | None:
        if self._replica.takes_appends_for_all(now()):
            return None
        return self._not_enough(len(self._replica.registrar.state.replicas))

    def _not_enough(self, needed: int) -> NotEnoughReplicas:
        have = [member.node for member in self._replica.level_members(now())]
        return NotEnoughReplicas(
            f"{too_few(needed, have)}; nothing was stored. Append again when another one is back",
            needed=needed,
            have=len(have),
        )

    def _failed(self, error: EventStoreError) -> None:
        self._do(self._replica.resign(f"the log cannot be written: {error.message}"))

    def sync_takes_s(self) -> float:
        """Returns how long the oldest write that is under way takes by now."""
        since = [each.writing_since for each in self._logs if each.writing_since is not None]
        return time.monotonic() - min(since) if since else 0.0

    def commit(self, ends: LogEnds) -> None:
        if self._store is None or self._broker is None:
            return
        before, self._committed = self._committed, ends
        if before is None or before[0] != ends[0]:
            self._store.committer.commit(*ends[0])
        if before is None or before[1] != ends[1]:
            self._broker.committer.commit(*ends[1])
        if before is None or before[2] != ends[2]:
            self.files.commit(ends[2])

    # followers

    def lags(self) -> list[Lag]:
        """Returns how far the other replicas are behind."""
        return self._replica.lags(now())

    def bytes_lacking(self, lag: Lag) -> int | None:
        """Returns the bytes of events that the replica has not stored; None while it is not connected."""
        if lag.end is None or self._store is None:
            return None
        return self.events.bytes_after(lag.end, self._store.engine.files.headers)

    def bytes_of_events(self) -> int:
        """Returns the bytes of all events of the shard."""
        return 0 if self._store is None else self.events.bytes_after(NOWHERE, self._store.engine.files.headers)

    def serve(self, serve: Serve, nursery: trio.Nursery) -> None:
        """Answers a Fetch: at once from memory, or by a thread from the files."""
        logs = self._logs
        try:
            found = [log.recent(start, crc) for log, start, crc in zip(logs, serve.start, serve.last_crcs, strict=False)]
        except Differs:
            self._do(self._replica.mismatched(serve.session, serve.connection))
            return
        behind = [at for at, payload in enumerate(found) if payload is None and serve.start[at] != logs[at].end]
        if behind:
            nursery.start_soon(self._send_from_files, serve, found, behind)
        else:
            self._send(serve, found)

    async def _send_from_files(self, serve: Serve, found: list[Payload | None], behind: list[int]) -> None:
        rate = self._rate(serve)
        bytes_max = self._pace.piece_bytes(rate)

        def read() -> None:
            for at in behind:
                found[at] = self._logs[at].read(serve.start[at], serve.last_crcs[at], bytes_max)

        try:
            await trio.to_thread.run_sync(read)
        except Differs:
            self._do(self._replica.mismatched(serve.session, serve.connection))
        except (EventStoreError, OSError) as error:
            _log.warning("a follower cannot be served", error=str(error))
            await trio.sleep(_REFUSED_S)
            self._links.send(serve.connection, NotLeading(serve.epoch))  # it joins again
        else:
            await self._pace.wait(sum(len(piece.data) for each in found if each is not None for piece in each.pieces), rate)
            self._send(serve, found)

    def _rate(self, serve: Serve) -> int | None:
        """Returns how many bytes a second a replica may be sent that is not in sync, if there is a limit."""
        seen, leading = self._replica.registrar.seen, self._replica.leading
        session = None if leading is None else leading.sessions.find(serve.session, serve.connection)
        return None if seen is None or session is None or session.member in seen.state.in_sync else seen.rate

    def _send(self, serve: Serve, found: list[Payload | None]) -> None:
        events, messages = found
        cargo: Cargo = (events, messages, self.files.after(serve.start[2]))
        payload = None if cargo[0] is None and cargo[1] is None and cargo[2] is None else cargo
        self._links.send(serve.connection, Data(serve.session, serve.epoch, serve.start, serve.committed, payload))
