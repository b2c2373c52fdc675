"""What the store needs to use several shards as one: the router of the async client, in the event loop of `loop_thread`.

To cross threads costs a part of a millisecond, where a durable append takes several; docs/adr/0005 says why a single server
has a socket in the thread of its caller nevertheless. Pages of events cross, not single events. Commits and commands are
encoded in the thread that calls, and the iterator that they come from runs there.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial, wraps
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from eventstore.client.address import Addresses
from eventstore.client.blocking.broker import BlockingBroker
from eventstore.client.blocking.connection import BlockingConnection, SubscriptionPage
from eventstore.client.blocking.loop_thread import Hosted, LoopThread, OutcomeQueue, loop_thread
from eventstore.client.blocking.member import BlockingMember
from eventstore.client.blocking.reactions import BlockingReactions
from eventstore.client.blocking.streams import Item, chained
from eventstore.client.blocking.subject_keys import BlockingKeys
from eventstore.client.connection_errors import answered_in_parent
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.limit import active, current, taken_in_time
from eventstore.client.options import ClientOptions
from eventstore.client.routing.table import RoutingTable
from eventstore.client.session.batches import ROWS_PER_TURN
from eventstore.client.session.calls import Call, PendingRequest, PolledSignal
from eventstore.client.session.session import ClientSession
from eventstore.client.session.subscription import SessionSubscription, SubscriptionItem
from eventstore.errors import Closed, Elsewhere, EventStoreError, TimedOut
from eventstore.event_identity import LogPosition
from eventstore.forks import of_parent
from eventstore.model import Event
from eventstore.position import After, Position, is_later
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.request_declaration import Answered
from eventstore.protocol.requests import Map
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.cursors import LogCursor
from eventstore.records.event_filter import EventFilter

if TYPE_CHECKING:
    from eventstore.client.aio.connection import NetworkConnection
    from eventstore.client.aio.routing import MergedEvents, MergedSubscription, Router
    from eventstore.client.aio.streams import PagedStream

A = TypeVar("A")
T = TypeVar("T")
Encode = Callable[[Sequence[Any]], Sequence[Any]]


def open_router(entry: BlockingConnection) -> BlockingRouter:
    """Returns the router of the cluster that `entry` has the map of."""
    router = BlockingRouter(entry, RoutingTable(entry.call(Map()), entry.address))
    router.opened()
    return router


class BlockingRouter:
    """Has the methods of `Router`, which it opens in the event loop: in each process at the first use there."""

    def __init__(self, entry: BlockingConnection, table: RoutingTable) -> None:
        self.entry = entry
        self.table = table
        self._hosted: Hosted[Router] | None = None
        self._shards: dict[int, BlockingShardConnection] = {}
        self._closed = False

    @property
    def _own(self) -> Hosted[Router] | None:
        """What is opened in this process."""
        hosted = self._hosted
        return None if hosted is None or hosted.thread.is_of_parent or sys.is_finalizing() else hosted

    def opened(self) -> Router:
        """Returns the router, to look at."""

        async def found(router: Router) -> Router:
            return router

        return self.run(found)

    def run(self, call: Callable[[Router], Awaitable[T]]) -> T:
        """Makes the call in the event loop."""
        thread = loop_thread()

        async def made() -> T:
            return await call(await self._router(thread))

        return thread.run(made)

    async def _router(self, thread: LoopThread) -> Router:
        from eventstore.client.aio.routing.router import opened_router

        hosted = self._own
        if hosted is None:
            if self._closed:
                raise Closed(f"the client of {self.entry.addresses} was closed")
            manager = partial(opened_router, self.entry.addresses, self.entry.options, self.table)
            hosted = self._hosted = Hosted(thread, manager)
        return await hosted.value()

    def close(self) -> None:
        """Ends the connections to the shards. Close the entry, too."""
        self._closed = True
        if (hosted := self._own) is not None:
            hosted.thread.run(hosted.leave)

    @property
    def connected(self) -> bool:
        """As of `Router`."""
        hosted = self._own
        return hosted is None or hosted.entered is None or hosted.entered.connected

    @property
    def has_several(self) -> bool:
        """Whether there is more than one shard."""
        return len(self.table.known.shards) > 1

    def of(self, aggregate_id: str) -> BlockingConnection:
        """As of `Router`."""
        return self.shard(self.table.shard_of(aggregate_id))

    def only(self, wanted: str) -> BlockingConnection:
        """As of `Router`."""
        return self.shard(self.table.only_shard(wanted))

    def shard(self, number: int) -> BlockingConnection:
        """Returns what has the methods of a connection to a shard."""
        found = self._shards.get(number) or self._shards.setdefault(number, BlockingShardConnection(self, number))
        return cast(BlockingConnection, found)

    @cached_property
    def keys(self) -> BlockingKeys:
        """As of `Router`."""
        return BlockingKeys(lambda subjects, create: self.run(lambda router: router.lease_keys(subjects, create)))

    def connections(self) -> dict[int, BlockingConnection]:
        """As of `Router`."""
        return {each.shard: self.shard(each.shard) for each in self.table.known.shards}

    def call(self, aggregate_id: str, request: Answered[A] | Callable[[ClusterMap], Answered[A]]) -> A:
        """As of `Router`."""
        try:
            made = request if isinstance(request, Answered) else request(self.table.known)
            return self.of(aggregate_id).call(made)
        except Elsewhere:  # the router looks where
            return self.run(lambda router: router.call(aggregate_id, request))

    def reach(self, after: After, field: str = "after") -> ClusterMap:
        """As of `Router`."""
        if is_later(after, self.table.known):
            return self.run(lambda router: router.reach(after, field))
        return self.table.known

    def call_all(self, request_of: Callable[[int], Answered[A]]) -> list[A]:
        """As of `Router`."""
        return self.run(lambda router: router.call_all(request_of))

    def call_across(self, request: Answered[A], *, resend: bool | None = None) -> A:
        """As of `Router`."""
        return self.run(lambda router: router.call_across(request, resend=resend))

    def put(self, queue: Callable[[Any], Any], aggregate_id: str, row: Any) -> Any:
        """As of `Router`."""
        return self.run(lambda router: router.put(queue, aggregate_id, row))

    def put_many(
        self, queue: Callable[[Any], Any], given: Iterable[Any], encode: Encode, id_of: Callable[[Any], str]
    ) -> list[Any]:
        """As of `Router`."""
        rows = encode(list(taken_in_time(given)))
        return self.run(lambda router: router.put_many(queue, rows, list, id_of))

    def put_messages(
        self, queue: Callable[[Any], Any], given: Iterable[Any], encode: Encode, key_of: Callable[[Any], Any]
    ) -> list[Any]:
        """As of `Router`."""
        rows = encode(list(taken_in_time(given)))
        return self.run(lambda router: router.put_messages(queue, rows, list, key_of))


class BlockingShardConnection:
    """Has the methods of `BlockingConnection`, for a connection of the router."""

    def __init__(self, router: BlockingRouter, number: int) -> None:
        self._router, self._number = router, number
        self._found: tuple[LoopThread, NetworkConnection] | None = None

    @property
    def _own(self) -> tuple[LoopThread, NetworkConnection]:
        """The event loop of this process, and the connection there."""
        found = self._found
        if found is None or found[0].is_of_parent:
            found = self._found = loop_thread(), self._run(_itself)
        return found

    @property
    def _shard(self) -> NetworkConnection:
        """The connection, to look at."""
        return self._own[1]

    def _run(self, call: Callable[[NetworkConnection], Awaitable[T]]) -> T:
        return self._router.run(lambda router: call(router.shard(self._number)))

    @property
    def welcome(self) -> Welcome | None:
        return self._shard.welcome

    @property
    def session(self) -> ClientSession[Any]:
        return self._shard.session

    @property
    def addresses(self) -> Addresses:
        return self._shard.addresses

    @property
    def options(self) -> ClientOptions:
        return self._router.entry.options

    @property
    def keys(self) -> BlockingKeys:
        """Those of the router."""
        return self._router.keys

    @property
    def current(self) -> Self:
        """Itself: calls of signal handlers need no other connection."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.close()
        return None

    def close(self) -> None:
        self._run(_closed)

    def call(self, request: Answered[A], *, resend: bool | None = None) -> A:
        """As of `BlockingConnection`. It takes no task of the event loop, whose every step costs a turn of the loop."""
        thread, shard = self._own
        call = Call(request, _LoopSignal(thread), resend=resend)
        try:
            thread.post(partial(_add, shard, call))
            call.done.wait()
        except BaseException as error:
            call.wanted = False
            thread.post(partial(shard.drop, call))
            if isinstance(error, TimedOut):
                raise call.given_up(error) from None
            raise
        return cast(A, call.answer())

    def put(self, queue: Any, row: Any) -> Any:
        return self._run(lambda shard: shard.put(queue, row))

    def put_many(self, queue: Any, given: Iterable[Any], encode: Encode, at_once: int = ROWS_PER_TURN) -> list[Any]:
        rows = encode(list(taken_in_time(given)))
        return self._run(lambda shard: shard.put_many(queue, rows, list, at_once))

    def signal(self) -> _LoopSignal:
        return _LoopSignal(loop_thread())

    def add(self, request: PendingRequest) -> None:
        """Sends a request without waiting, either for its answer or for the event loop: what is wrong is its outcome."""
        thread, shard = self._own
        thread.post(partial(_add, shard, request))

    def finish(self, done: PolledSignal) -> None:
        """Waits until it is set. Raises TimedOut; ConnectionLost in a child."""
        assert isinstance(done, _LoopSignal)
        done.wait()

    def apart(self) -> Self:
        """Itself: what waits here holds up no other call."""
        return self

    def pages_of(self, subscription: SessionSubscription) -> tuple[SubscriptionPage, Callable[[], object]]:
        """As of `BlockingConnection`."""
        from eventstore.client.aio.streams import NetworkSubscriptionStream

        stream = NetworkSubscriptionStream(self._shard, subscription)
        thread = loop_thread()
        return _turning(stream, stream.page, _subscription_of_parent), lambda: thread.begin(stream.aclose)


async def _itself(shard: NetworkConnection) -> NetworkConnection:
    return shard


async def _closed(shard: NetworkConnection) -> None:
    shard.close()


def _add(shard: NetworkConnection, request: PendingRequest) -> None:
    try:
        shard.add(request)
    except EventStoreError as error:
        request.fail(error)


class _LoopSignal(PolledSignal):
    """Is set in the event loop."""

    def __init__(self, thread: LoopThread) -> None:
        super().__init__()
        self._thread = thread
        self._ended: OutcomeQueue = SimpleQueue()

    def set(self) -> None:
        super().set()
        self._ended.put((None, None))

    def wait(self) -> None:
        """As `finish`."""
        if self.is_set() and not self._thread.is_of_parent:
            return
        limit = current() if active else None
        try:
            self._thread.wait(self._ended, None if limit is None else limit.left_s)
        except Empty:
            assert limit is not None, "it is waited for without one until it is there"
            raise limit.over() from None


class _Merged(Generic[Item]):
    """Items of all shards, from a stream that runs in the event loop."""

    def __init__(self, merged: MergedEvents | MergedSubscription, items: Iterator[Item]) -> None:
        self._merged = merged
        self._items = items
        self._closed = False
        self._thread = loop_thread()

    @property
    def position(self) -> Position:
        """The place after what was read: pass it as `after` to continue there."""
        return self._merged.position

    @property
    def shard(self) -> int:
        """The shard of the last event, whose sequence counts there."""
        return self._merged.shard

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        if self._closed:
            raise StopIteration
        return next(self._items)

    def close(self) -> None:
        """Ends the iteration, also for a thread that waits for its next item."""
        self._closed = True
        self._thread.begin(self._merged.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class BlockingMergedEvents(_Merged[Event]):
    """The stored events of all shards, up to the last one of each. After TimedOut it continues; any other exception ends it,
    and then it raises Closed.
    """

    def __init__(self, merged: MergedEvents) -> None:
        super().__init__(merged, chained(_turning(merged, merged.turn, answered_in_parent), (TimedOut,)))


class BlockingMergedSubscription(_Merged[SubscriptionItem]):
    """The events of all shards as they are appended, and CaughtUp once, when all shards have delivered what they had stored.

    A shard that is away is waited for, and the log says so; it ends with the last error when no shard can be reached.
    """

    def __init__(self, merged: MergedSubscription) -> None:
        super().__init__(merged, chained(_turning(merged, merged.turn, _subscription_of_parent), (TimedOut,)))
        self._subscription = merged

    @property
    def resumptions(self) -> int:
        """How often a shard's part continued after a lost connection, perhaps on a store that was restored from a copy."""
        return self._subscription.resumptions


def read_shards(
    router: BlockingRouter,
    after: After,
    limit: int | None,
    cursor: Callable[[LogPosition], LogCursor],
    aggregate_id: str | None,
    timeout: float | None = None,
    field: str = "after",
) -> BlockingMergedEvents:
    """As of the async client."""

    async def begun(router: Router) -> MergedEvents:
        from eventstore.client.aio.routing import read_shards

        return read_shards(router, after, limit, cursor, aggregate_id, timeout, field)

    return BlockingMergedEvents(router.run(begun))


def follow_shards(
    router: BlockingRouter, after: After, wanted: EventFilter, timeout: float | None = None
) -> BlockingMergedSubscription:
    """As of the async client."""

    async def begun(router: Router) -> MergedSubscription:
        from eventstore.client.aio.routing import follow_shards

        return follow_shards(router, after, wanted, timeout)

    return BlockingMergedSubscription(router.run(begun))


def _turning(
    stream: PagedStream[Item], turn: Callable[[], Awaitable[T]], of_parent: Callable[[], EventStoreError]
) -> Callable[[], T]:
    """Returns a function that takes the next page of a stream, which runs in the event loop. The stream ends by any exception
    but TimedOut: that of a signal's handler may have taken a page with it. `of_parent`: the error in a child.
    """
    thread = loop_thread()

    def page() -> T:
        try:
            return thread.run(turn)
        except TimedOut:
            raise
        except BaseException as error:
            thread.begin(stream.aclose)
            if thread.is_of_parent and isinstance(error, EventStoreError):
                raise of_parent() from None
            raise

    return page


def _subscription_of_parent() -> Closed:
    return of_parent("the subscription", "begin another one here, after its position")


class _OfAllShards:
    """Has the methods of an object of one server, and makes their calls in the event loop, of what `make` returns there."""

    def __init__(self, router: BlockingRouter, of_one: type[object], make: Callable[[Router], Any]) -> None:
        self._router, self._of_one, self._make = router, of_one, make

    @property
    def connections(self) -> int:
        """As of `ShardsBroker`."""

        async def found(router: Router) -> int:
            return int(self._make(router).connections)

        return self._router.run(found)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        @wraps(getattr(self._of_one, name))
        def call(*arguments: Any, **options: Any) -> Any:
            return self._router.run(lambda router: getattr(self._make(router), name)(*arguments, **options))

        return call


def shards_broker(router: BlockingRouter) -> BlockingBroker:
    """Returns what has the methods of `ShardsBroker`."""

    def make(router: Router) -> Any:
        from eventstore.client.aio.routing import ShardsBroker

        return ShardsBroker(router)

    return cast(BlockingBroker, _OfAllShards(router, BlockingBroker, make))


def shards_reactions(router: BlockingRouter) -> BlockingReactions:
    """Returns what has the methods of `ShardsReactions`."""

    def make(router: Router) -> Any:
        from eventstore.client.aio.routing import ShardsReactions

        return ShardsReactions(router)

    return cast(BlockingReactions, _OfAllShards(router, BlockingReactions, make))


def shards_member(router: BlockingRouter, options: MemberOptions) -> BlockingMember:
    """Returns a member of a group on all shards: its own router joins on each."""
    return BlockingMember(router.entry, options)
