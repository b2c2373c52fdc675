"""The event store over the network, for code without an event loop: one call is one exchange in the caller's thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Self

from eventstore.client.address import parse_address
from eventstore.client.blocking_broker import BlockingBroker
from eventstore.client.blocking_topic import BlockingTopic
from eventstore.client.calls import Call, Flag
from eventstore.client.delivery import Mode
from eventstore.client.exchange import Exchange
from eventstore.client.facts import found_command, read_stats, read_version
from eventstore.client.options import Options
from eventstore.client.reader import COMMIT_INTERVAL_S, HOLD_BYTES, HOLD_MESSAGES, Topics, new_reader
from eventstore.client.reading import Cursor, request_of
from eventstore.client.sends import encode_command, encoded_or_refused
from eventstore.client.subscription import Item, Subscription
from eventstore.errors import EventStoreError
from eventstore.flat import Scalar
from eventstore.model import Commit, Committed, Event, ExpectedVersion, NewEvent, Unchanged
from eventstore.protocol.answers import Ok
from eventstore.protocol.requests import FindCommand, Request, Stats, Version
from eventstore.store.cursors import AggregateCursor, LogCursor
from eventstore.store.event_filter import event_filter
from eventstore.store.raw_commit import Outcome, encode_commit, encode_commits

if TYPE_CHECKING:
    from eventstore.client.blocking_consumer import BlockingConsumer


def connect(
    address: str,
    *,
    connect_timeout: float = 5.0,
    reconnect_timeout: float = 30.0,
    silence_timeout: float = 20.0,
    name: str = "eventstore-python",
) -> BlockingStore:
    """The store of the server at tcp://host:port, to be used in `with`; for the options see `Options`.

    Raises:
        InvalidArgument: a malformed address or a negative timeout; entering it raises ConnectionLost and others.
    """
    return BlockingStore(address, Options(connect_timeout, reconnect_timeout, silence_timeout, name))


class BlockingStore:
    """A store on another process. Threads may share one; each call then waits for those before it.

    The handler of a signal may raise in the middle of a call (Ctrl-C, an alarm that limits it): the call may have been carried
    out, or be a moment later, and so may those that other threads wait for, which end with ConnectionLost then. The client
    goes on.
    """

    def __init__(self, address: str, options: Options) -> None:
        self._address = parse_address(address)
        self._options = options
        self._exchange = Exchange(self._address, options)

    def __enter__(self) -> Self:
        self._exchange.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._exchange.close()

    def append(
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
        exchange = self._exchange
        commit = encode_commit(aggregate_id, events, expected_version, command_id, timestamp)
        return exchange.put(exchange.session.appends, commit)

    def append_many(self, commits: Iterable[Commit]) -> list[Outcome]:
        """Appends each commit, whole or not at all, in this order; what became of each: Committed or an error."""
        return self._exchange.put_all(self._exchange.session.appends, commits, encode_commits)

    def send(self, command: object, command_id: str | None = None) -> Committed | Unchanged:
        """Has the domain handle a command; what it changed is durable when this returns.

        `command`: an object of a class of commands, or a `RawCommand`.

        Raises:
            Rejected: the domain says no; HandlerFailed: its handler raised something else.
            UnknownCommand, PayloadInvalid: the server's domain does not know it, or it does not fit.
            InvalidArgument: a limit is broken; nothing was sent.
            ConnectionLost: the server did not come back in time; send again with the same command id to find out.
        """
        exchange = self._exchange
        return exchange.put(exchange.session.sends, encode_command(command, command_id))

    def send_many(self, commands: Iterable[object | tuple[object, str]]) -> list[Committed | Unchanged | EventStoreError]:
        """Sends commands, or pairs of a command and its id; what became of each. Those of one aggregate are handled in this
        order.
        """
        return self._exchange.put_all(self._exchange.session.sends, commands, encoded_or_refused)

    def read(
        self,
        aggregate_id: str,
        from_version: int = 1,
        to_version: int | None = None,
        backwards: bool = False,
        limit: int | None = None,
    ) -> Iterator[Event]:
        """The aggregate's events in order of version, both ends inclusive; none where it does not exist."""
        return self._walk(AggregateCursor(aggregate_id, from_version, to_version, backwards, limit))

    def read_all(
        self,
        after: int = 0,
        types: Iterable[str] | None = None,
        aggregate_prefix: str | None = None,
        limit: int | None = None,
        from_time: int | datetime | None = None,
        to_time: int | datetime | None = None,
    ) -> Iterator[Event]:
        """The events behind sequence `after`, in commit order, that pass every filter given; ends at the present.

        Times are microseconds since 1970 or aware datetimes, both ends inclusive.
        """
        return self._walk(LogCursor(after, limit, types, aggregate_prefix, from_time, to_time))

    def _walk(self, cursor: Cursor) -> Iterator[Event]:
        return chain.from_iterable(self._pages(cursor))

    def _pages(self, cursor: Cursor) -> Iterator[list[Event]]:
        asked = self._start(cursor)
        try:
            while asked is not None:
                self._exchange.finish(asked.done)
                call, asked = asked, None
                events = cursor.take(call.page())
                asked = self._start(cursor)  # travels while these are consumed
                yield events
        finally:
            if asked is not None:
                asked.wanted = False

    def _start(self, cursor: Cursor) -> Call[Flag] | None:
        if cursor.done:
            return None
        call = Call(request_of(cursor), Flag())
        self._exchange.start(call)
        return call

    def subscribe(
        self, after: int = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
    ) -> Iterator[Item]:
        """As `read_all`, but goes on with what is appended; CaughtUp comes once, between the two.

        It waits on a connection of its own, so that other calls go on meanwhile.
        """
        return self._follow(Subscription(after, event_filter(types, aggregate_prefix)))

    def _follow(self, subscription: Subscription) -> Iterator[Item]:
        exchange = Exchange(self._address, self._options)
        try:
            exchange.open()
            exchange.start(subscription)
            while True:
                while not subscription.ready:
                    arrived = subscription.arrived = Flag()
                    exchange.finish(arrived)
                items = subscription.take()
                due = subscription.credit_due()
                if due:
                    exchange.grant(subscription, due)
                yield from items
        finally:
            exchange.close()

    def version(self, aggregate_id: str) -> int:
        """The version of the aggregate's last event; 0 where it does not exist."""
        return read_version(self._ask(Version(aggregate_id)))

    def find_command(self, aggregate_id: str, command_id: str) -> Committed | None:
        """What the command became, if it was appended."""
        return found_command(aggregate_id, self._ask(FindCommand(aggregate_id, command_id)))

    def stats(self) -> dict[str, Scalar]:
        """The server's numbers, by name."""
        return read_stats(self._ask(Stats()))

    @property
    def broker(self) -> BlockingBroker:
        """The broker's topics, groups and messages, to be looked at and administered."""
        return BlockingBroker(self._exchange)

    def topic(self, name: str, *, resend: bool = True) -> BlockingTopic:
        """A topic to send messages to. `resend`: see `BlockingTopic`. Raises InvalidArgument."""
        return BlockingTopic(self._exchange, name, resend=resend)

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
    ) -> BlockingConsumer:
        """A member of a consumer group, to be used in `with`; for the arguments see `NetworkStore.consumer`.

        It speaks to the server on a connection of its own, in a thread of its own.

        Raises:
            InvalidArgument: a limit is broken; entering it raises more.
        """
        from eventstore.client.blocking_consumer import BlockingConsumer  # has an event loop, which nothing else here needs

        reader = new_reader(group, topics, member, from_end=from_end, hold_messages=hold_messages, hold_bytes=hold_bytes)
        return BlockingConsumer(self._address, self._options, reader, mode, commit_interval)

    def _ask(self, request: Request) -> Ok:
        call = Call(request, Flag())
        self._exchange.start(call)
        self._exchange.finish(call.done)
        return call.ok()
