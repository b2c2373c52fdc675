"""What operators ask a store: its figures, clients, shards, reactions, alarms and its broker."""

from __future__ import annotations

from typing import TypeVar

from eventstore.client.aio.broker import NetworkBroker
from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.limited import limited
from eventstore.client.aio.one_way import NetworkOneWay
from eventstore.client.aio.reactions import NetworkAlarms, NetworkReactions
from eventstore.client.aio.routing import Router, ShardsBroker, ShardsReactions
from eventstore.client.session.one_way_queue import OneWayCounts
from eventstore.flat import Scalar
from eventstore.protocol.backup_requests import BeginBackup, NoteBackup
from eventstore.protocol.reaction_info import ProjectionInfo
from eventstore.protocol.reaction_requests import (
    AskWaits,
    EndProjection,
    ForgetProjection,
    ListProjections,
    NoteProjection,
    TellPlace,
)
from eventstore.protocol.request_declaration import Answered
from eventstore.protocol.requests import CLIENT_ROWS_MAX, ListClients, Map, Stats
from eventstore.protocol.server_info import BackupCut, ClientInfo
from eventstore.protocol.timer_info import TimerInfo
from eventstore.protocol.timer_requests import ConfirmClock, ListTimers
from eventstore.records.cluster_map import ClusterMap

A = TypeVar("A")


class NetworkOperated:
    """The part of a store that is for operators. `_router`: None at a single store."""

    _connection: NetworkConnection
    _router: Router | None
    _timeout: float | None
    _one_way: NetworkOneWay

    @property
    def _several(self) -> Router | None:
        return self._router if self._router is not None and self._router.has_several else None

    def _only(self, wanted: str) -> NetworkConnection:
        return self._connection if self._router is None else self._router.only(wanted)

    async def _ask(self, request: Answered[A]) -> A:
        return await (self._connection.call(request) if self._router is None else self._router.call_across(request))

    @property
    def one_way(self) -> OneWayCounts:
        """How many messages this client has sent with `wait=False`, and what became of them."""
        return self._one_way.counts

    @limited
    async def flush(self, *, timeout: float | None = None) -> None:
        """Waits until no message that was sent with `wait=False` waits any longer.

        Raises:
            MessagesFailed: some were not stored since the last report, or that is not known.
            TimedOut: some wait still; they are sent nevertheless.
        """
        await self._one_way.flush()

    @limited
    async def stats(self, *, timeout: float | None = None) -> dict[str, Scalar]:
        """Returns the server's figures, by name; of several shards, or of one that no process serves, those of their node."""
        shards = () if self._router is None else self._router.table.known.shards
        connection = self._only("`stats`") if len(shards) == 1 and shards[0].leader is not None else self._connection
        return await connection.call(Stats())

    @limited
    async def clients(self, skip: int = 0, limit: int = CLIENT_ROWS_MAX, *, timeout: float | None = None) -> list[ClientInfo]:
        """Returns who is connected, oldest first: at most `limit` (1 to 1,000), after the first `skip`; of several shards, as
        many of each.
        """
        return await self._ask(ListClients(skip, limit))

    @limited
    async def projections(self, skip: int = 0, *, timeout: float | None = None) -> list[ProjectionInfo]:
        """Returns how far the projections and workers are that clients run, by name: at most 1,000, after the first `skip`; of
        several shards, those of each. Those who have left are listed, too (see `ProjectionInfo`).
        """
        return await self._ask(ListProjections(skip))

    @limited
    async def note_projection(
        self, name: str, position: int, oldest_us: int | None, parked: int, *, timeout: float | None = None
    ) -> None:
        """Has `projections` say how far a projection is that this client runs: its table has the events up to `position`, the
        oldest that it lacks is of `oldest_us` (µs since 1970; None: it lacks none), and `parked` keys are parked. Repeat it
        every few seconds: after 5 minutes of silence the server raises the alarm `projection_silent`. Of several shards, each
        is told by itself: `store.shards[number].note_projection`.

        Raises:
            UnknownOperation: the server is older.
            InvalidArgument: this client runs 16 others.
            Overloaded: the server knows 1,000.
        """
        request = NoteProjection(name, position, oldest_us, parked)
        await self._only("`note_projection`").call(request)

    @limited
    async def timers(self, skip: int = 0, aggregate_id: str | None = None, *, timeout: float | None = None) -> list[TimerInfo]:
        """Returns the timers of the server's or worker's domain: those that are parked, then those that are pending, the
        earliest due first; at most 1,000, after the first `skip`; of several shards, as many of each. `aggregate_id`: only its.
        """
        return await self._ask(ListTimers(skip, aggregate_id))

    @limited
    async def confirm_clock(self, *, who: str, why: str, timeout: float | None = None) -> None:
        """Says that the clock of the server's machine is right after it has jumped, so that timers are sent again."""
        await self._ask(ConfirmClock(who, why))

    @limited
    async def forget_projection(self, name: str, *, timeout: float | None = None) -> None:
        """Takes a projection off the list of `projections`: of those who have left, and of this client. Of several shards, off
        that of each. Needs the permission `reactions` on the name.
        """
        await self._ask(ForgetProjection(name))

    @limited
    async def end_projection(self, name: str, *, timeout: float | None = None) -> None:
        """Says that a projection that this client has told of was to end here: it is not listed as one that has left."""
        await self._ask(EndProjection(name))

    async def ask_waits(self, projection: str, number: int, projector: int) -> tuple[int, int]:
        """Asks, for a projector that this client runs, for those who wait for its table: returns the number of the newest wait,
        once that is another one, and the greatest sequence that is waited for. `projector`: a number of its own for each that
        this client runs. It takes as long as it takes; the projector has ended when it is cancelled here.
        """
        return await self._only("`ask_waits`").call(AskWaits(projection, projector, number))

    @limited
    async def tell_place(
        self, projection: str, number: int, position: int, projector: int, *, timeout: float | None = None
    ) -> None:
        """Says that a table is complete up to a sequence, looked at after the wait of this number was known."""
        await self._only("`tell_place`").call(TellPlace(projection, projector, number, position))

    @limited
    async def begin_backup(self, *, timeout: float | None = None) -> list[BackupCut]:
        """Returns up to where the store is readable now, and where its files are, for a program that copies them; of several
        shards, of each. Needs the permission `backup`.
        """
        return await self._ask(BeginBackup())

    @limited
    async def note_backup(self, place: str, taken_us: int | None, *, timeout: float | None = None) -> None:
        """Says that the backup in this place is whole up to a cut that was taken at `taken_us` (µs since 1970): the server
        reports its age, and raises the alarm `backup_old` later. None: no backup is made into this place any more.
        """
        await self._ask(NoteBackup(place, taken_us))

    @limited
    async def cluster_map(self, *, timeout: float | None = None) -> ClusterMap:
        """Returns which shard has which aggregates, and where each listens; a single store has them all."""
        return await self._connection.call(Map())

    @property
    def reactions(self) -> NetworkReactions:
        """The reactions of the server's or worker's domain, to look at and administer."""
        return NetworkReactions(self._connection) if self._router is None else ShardsReactions(self._router)

    @property
    def alarms(self) -> NetworkAlarms:
        """The alarms of the server, worker or node at this address, to look at, silence and test."""
        return NetworkAlarms(self._connection)

    @property
    def broker(self) -> NetworkBroker:
        """The broker's topics, groups and messages, to look at and administer."""
        return NetworkBroker(self._connection) if self._router is None else ShardsBroker(self._router)
