"""The event store over the network, for trio and asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from eventstore.client.address import parse_address
from eventstore.client.batches import Run
from eventstore.client.calls import Call
from eventstore.client.connection import Connection
from eventstore.client.consumer import Consumer
from eventstore.client.delivery import Mode
from eventstore.client.facts import found_command, read_stats, read_version
from eventstore.client.network_broker import NetworkBroker
from eventstore.client.network_topic import NetworkTopic
from eventstore.client.options import Options
from eventstore.client.reader import COMMIT_INTERVAL_S, HOLD_BYTES, HOLD_MESSAGES, Topics, new_reader
from eventstore.client.sends import encode_command, encoded_or_refused
from eventstore.client.streams import EventStream, SubscriptionStream
from eventstore.client.subscription import Subscription
from eventstore.errors import ConnectionLost, EventStoreError
from eventstore.flat import Scalar
from eventstore.model import Commit, Committed, ExpectedVersion, NewEvent, Unchanged
from eventstore.protocol.answers import Ok
from eventstore.protocol.requests import FindCommand, Request, Stats, Version, WireCommit
from eventstore.store.cursors import AggregateCursor, LogCursor
from eventstore.store.event_filter import event_filter
from eventstore.store.raw_commit import Outcome, encode_commit, encode_commits


def connect(
    address: str,
    *,
    connect_timeout: float = 5.0,
    reconnect_timeout: float = 30.0,
    silence_timeout: float = 20.0,
    name: str = "eventstore-python",
) -> NetworkStore:
    """The store of the server at tcp://host:port, to be used in `async with`; for the options see `Options`.

    Raises:
        InvalidArgument: a malformed address or a negative timeout; entering it raises ConnectionLost and others.
    """
    return NetworkStore(address, Options(connect_timeout, reconnect_timeout, silence_timeout, name))


class NetworkStore:
    """A store on another process. Any number of tasks may share one; their appends travel together.

    A call that is cancelled may or may not have been carried out; an append's command id settles it.
    """

    def __init__(self, address: str, options: Options) -> None:
        self._connection = Connection(parse_address(address), options)
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        try:
            await self._connection.open(self._tasks)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._connection.close()
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return None
        if isinstance(error, Exception):  # kept out of the task group, which would wrap it into an ExceptionGroup
            await tasks.__aexit__(None, None, None)
            return None
        return await tasks.__aexit__(kind, error, trace)

    async def aclose(self) -> None:
        """Ends the connection. Whoever still waits for an answer gets Closed."""
        self._connection.close()
        await anyio.lowlevel.checkpoint()

    async def append(
        self,
        aggregate_id: str,
        events: Sequence[NewEvent],
        expected_version: ExpectedVersion,
        command_id: str | None = None,
        timestamp: int | datetime | None = None,
    ) -> Committed:
        """Appends the events as one commit; it is durable when this returns.

        Raises:
            VersionConflict: the aggregate is at another version than `expected_version`.
            CommandIdReused: the command id was used for other content.
            InvalidArgument: a limit is broken; nothing was sent.
            ConnectionLost: the server did not come back in time; append again with the same command id to find out.
        """
        commit = encode_commit(aggregate_id, events, expected_version, command_id, timestamp)
        return await self._connection.put(self._connection.session.appends, commit)

    async def append_many(self, commits: Iterable[Commit]) -> list[Outcome]:
        """Appends each commit, whole or not at all, in this order; what became of each: Committed or an error."""
        return await self._connection.put_many(self._connection.session.appends, commits, encode_commits)

    async def send(self, command: object, command_id: str | None = None) -> Committed | Unchanged:
        """Has the domain handle a command; what it changed is durable when this returns.

        `command`: an object of a class of commands, or a `RawCommand`.

        Raises:
            Rejected: the domain says no; HandlerFailed: its handler raised something else.
            UnknownCommand, PayloadInvalid: the server's domain does not know it, or it does not fit.
            InvalidArgument: a limit is broken; nothing was sent.
            ConnectionLost: the server did not come back in time; send again with the same command id to find out.
        """
        return await self._connection.put(self._connection.session.sends, encode_command(command, command_id))

    async def send_many(self, commands: Iterable[object | tuple[object, str]]) -> list[Committed | Unchanged | EventStoreError]:
        """Sends commands, or pairs of a command and its id; what became of each. Those of one aggregate are handled in this
        order.
        """
        return await self._connection.put_many(self._connection.session.sends, commands, encoded_or_refused)

    def put_raw(self, commits: Sequence[WireCommit]) -> Run[anyio.Event, WireCommit, Committed]:
        """Queues commits that are encoded already, for one frame, so that one may rest on another (see `WireExpected`); call
        `flush` after the last of a round. Their `outcomes` are there when `batch.done` is set.
        """
        queue = self._connection.session.appends
        self._connection.check()
        return queue.add_run(commits, sum(map(queue.kind.size_bytes, commits)))

    def flush(self) -> None:
        """Sends what may be sent now."""
        self._connection.flush()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now. Without one, calls wait until it is back, or the reconnect timeout is over."""
        return self._connection.session.welcome is not None

    @property
    def store_uuid(self) -> bytes:
        """Which store answers at this address."""
        welcome = self._connection.session.welcome
        if welcome is None:
            raise ConnectionLost("the store is not connected")
        return welcome.store

    def read(
        self,
        aggregate_id: str,
        from_version: int = 1,
        to_version: int | None = None,
        backwards: bool = False,
        limit: int | None = None,
    ) -> EventStream:
        """The aggregate's events in order of version, both ends inclusive; none where it does not exist."""
        return EventStream(self._connection, AggregateCursor(aggregate_id, from_version, to_version, backwards, limit))

    def read_all(
        self,
        after: int = 0,
        types: Iterable[str] | None = None,
        aggregate_prefix: str | None = None,
        limit: int | None = None,
        from_time: int | datetime | None = None,
        to_time: int | datetime | None = None,
    ) -> EventStream:
        """The events behind sequence `after`, in commit order, that pass every filter given; ends at the present.

        Times are microseconds since 1970 or aware datetimes, both ends inclusive.
        """
        return EventStream(self._connection, LogCursor(after, limit, types, aggregate_prefix, from_time, to_time))

    def subscribe(
        self, after: int = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
    ) -> SubscriptionStream:
        """As `read_all`, but goes on with what is appended; CaughtUp comes once, between the two."""
        return SubscriptionStream(self._connection, Subscription(after, event_filter(types, aggregate_prefix)))

    async def version(self, aggregate_id: str) -> int:
        """The version of the aggregate's last event; 0 where it does not exist."""
        return read_version(await self._ask(Version(aggregate_id)))

    async def find_command(self, aggregate_id: str, command_id: str) -> Committed | None:
        """What became of the command, if it was ever appended."""
        return found_command(aggregate_id, await self._ask(FindCommand(aggregate_id, command_id)))

    async def stats(self) -> dict[str, Scalar]:
        """The server's numbers, by name."""
        return read_stats(await self._ask(Stats()))

    @property
    def broker(self) -> NetworkBroker:
        """The broker's topics, groups and messages, to be looked at and administered."""
        return NetworkBroker(self._connection)

    def topic(self, name: str, *, resend: bool = True) -> NetworkTopic:
        """A topic to send messages to. `resend`: see `NetworkTopic`. Raises InvalidArgument."""
        return NetworkTopic(self._connection, name, resend=resend)

    def consumer(
        self,
        group: str,
        topics: Topics,
        *,
        mode: Mode = "parallel",
        member: str | None = None,
        from_end: bool = False,
        commit_interval: float = COMMIT_INTERVAL_S,
        hold_messages: int = HOLD_MESSAGES,
        hold_bytes: int = HOLD_BYTES,
    ) -> Consumer:
        """A member of a consumer group, to be used in `async with`; the members share the queues of the topics.

        `topics`: a name, names, or tags by name ({"orders": "paid | cancelled"}; None or "*" is every message), for all members
        the same. `mode`: "parallel", messages in their order, any number unfinished at once; "sequential", one unfinished
        message of a queue at a time. `member`: its name, unlike all others; made up unless given. `from_end`: where a topic
        begins that is new to the group; else at its start. `commit_interval` (0.01 to 5 seconds): how much is delivered again
        at most after a crash. `hold_messages`, `hold_bytes`: how much is held here at most, finished or not, about.

        Raises:
            InvalidArgument: a limit is broken; entering it raises more.
        """
        reader = new_reader(group, topics, member, from_end=from_end, hold_messages=hold_messages, hold_bytes=hold_bytes)
        return Consumer(self._connection, reader, mode, commit_interval)

    async def _ask(self, request: Request) -> Ok:
        call = Call(request, anyio.Event())
        await self._connection.finish(call)
        return call.ok()
