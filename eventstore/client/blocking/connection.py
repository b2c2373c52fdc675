"""The blocking client's connection: sends and receives in the calling thread, and reconnects when it has to.

Threads may share a client: they take turns to queue a request and to wait for its answer. What several threads have queued
leaves together, and an answer that arrives while another thread waits for its own is kept in the session.

The handler of a signal may raise between any two steps (Ctrl-C, an alarm), which leaves the session at an unknown point. As in
psycopg and redis-py, a call that ends so closes the connection: everything in flight fails, and the next call connects again. A
handler that returns has not ended the call. It may close the client, or use it, on another connection kept for handlers.

In a child process the parent's connection is closed without a byte, and the next call connects. What was under way at the fork
is answered in the parent, and fails in the child.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
from typing import Self, TypeAlias, TypeVar, cast
from weakref import WeakSet, ref

from eventstore.allocator import expect_large_buffers
from eventstore.client.address import Address, Addresses
from eventstore.client.backoff import Backoff
from eventstore.client.blocking.link import BlockingLink, PeerSilent, first_to_answer, raised_by_handler
from eventstore.client.blocking.subject_keys import BlockingKeys
from eventstore.client.blocking.turn import Turn, apart_in_handlers, exclusive
from eventstore.client.connection_errors import (
    Attempt,
    Unanswered,
    answered_in_parent,
    connection_lost,
    not_opened,
    timed_out_without,
)
from eventstore.client.limit import check_time, renewed, shortened, taken_in_time
from eventstore.client.options import ClientOptions
from eventstore.client.patience import FIRST_S, IDLE_PING_S, Patience
from eventstore.client.session.batch import BatchSlice, Q, R
from eventstore.client.session.batches import ROWS_PER_TURN, RowQueue, outcomes_by_now, slices, valid_rows, with_refused
from eventstore.client.session.calls import Call, PendingRequest, PolledSignal
from eventstore.client.session.session import ClientSession
from eventstore.client.session.subscription import SessionSubscription, SubscriptionItem
from eventstore.errors import Closed, ConnectionLost, EventStoreError, TimedOut, copy_error
from eventstore.forks import tell_of_forks
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.request_declaration import Answered
from eventstore.protocol.requests import Ping
from eventstore.protocol.subject_requests import LeaseKeys
from eventstore.records.cursors import personal_in

G = TypeVar("G")
A = TypeVar("A")
SubscriptionPage: TypeAlias = Callable[[], list[SubscriptionItem] | None]


class BlockingConnection:
    """Owns the session. Times are those of `ClientOptions`. `address`: the one that is connected, or was tried last."""

    signal = PolledSignal
    """Makes what a request sets that is added."""

    def __init__(self, addresses: Addresses, options: ClientOptions) -> None:
        expect_large_buffers()
        self.addresses, self.address, self.options = addresses, addresses.first, options.completed(addresses)
        several, token = addresses.are_several, self.options.token
        self._session: ClientSession[PolledSignal] = ClientSession(options.name, PolledSignal, several=several, token=token)
        self._backoff = Backoff(options.reconnect_timeout)
        self._attempts: list[Attempt] = []  # of the last time it connected, those that failed
        self.turn = Turn(self._reset)
        self._may_ask = False  # a ping may leave now
        self._patience = Patience(options.silence_timeout, has_others=several, idle_ping_s=IDLE_PING_S if several else None)
        self._link = BlockingLink(self._look, self._patience.look_s)
        self._moving: threading.Thread | None = None
        self._of_handlers: BlockingConnection | None = None
        self._apart: WeakSet[BlockingConnection] = WeakSet()
        self._closed = False
        self._entering = False
        self._unusable: EventStoreError | None = None
        self._forked_within: EventStoreError | None = None  # what ends the call that this process was forked in
        tell_of_forks(self)

    @property
    def welcome(self) -> Welcome | None:
        """The server's answer to the hello, while there is a connection."""
        return self._session.welcome

    @property
    def session(self) -> ClientSession[PolledSignal]:
        """The session of `current`."""
        return self.current._session if self.turn.is_mine else self._session

    @property
    def current(self) -> BlockingConnection:
        """This connection; in a signal handler within a call, another one: the session is then between any two steps."""
        if not self.turn.is_mine:
            return self
        self.check()
        if self._of_handlers is None:
            made = BlockingConnection(self.addresses, self.options)
            made._link.owner = self._link.owner
            self._of_handlers = made.__enter__()
        return self._of_handlers.current

    @exclusive
    def __enter__(self) -> Self:
        """Tries to connect once, unless a call has connected. Raises Closed: it was closed; ConnectionLost; what the server
        refuses this client for.
        """
        if self._closed:
            raise Closed(f"the client of {self.addresses} was closed; open another one")
        if self._link.socket is None:
            self._entering = True
            try:
                connected = self._connect(self.addresses.in_turn())
            finally:
                self._entering = False
            if not connected:
                raise not_opened(self._attempts)
        if self._closed:  # meanwhile: `close` notes that first
            self._unusable = self._closed_error()
            self._disconnect()
            raise self._closed_error()
        return self

    @apart_in_handlers
    def open(self) -> Welcome:
        """Connects as a call does, unless it is connected, and returns the answer to the hello. Raises as a call."""
        return self._open()

    @exclusive
    def _open(self) -> Welcome:
        self.check()
        while (welcome := self._session.welcome) is None:
            self._reconnect()
        return welcome

    def __exit__(self, *error: object) -> bool | None:
        self.close()
        return None

    def close(self) -> None:
        """Ends the connection. A thread that waits for an answer gets Closed."""
        self._closed = True
        self._unusable = self._closed_error()
        self._link.wake()  # the thread that has the turn
        if self.turn.is_mine:  # a signal handler: the session is between any two steps, so the turn resets it at its end
            self.turn.require_reset()
        else:
            with self.turn.lock, self.turn:
                self._reset()
        for each in (self._of_handlers, *self._all_apart()):
            if each is not None:
                each.close()

    def _closed_error(self) -> Closed:
        return Closed(f"the client of {self.addresses} was closed")

    def _all_apart(self) -> list[BlockingConnection]:
        """Returns the connections of `apart`; one that another thread adds from now on sees that this one is closed."""
        while True:
            try:
                return list(self._apart)
            except RuntimeError:  # another thread has added one meanwhile
                pass

    def forked(self) -> None:
        """In a child: leaves the connection to the parent, and begins again."""
        self._link.close()
        if self.turn.is_mine:  # a signal handler: the session is between any two steps, so the turn resets it at its end
            if self._unusable is None:
                self._unusable = self._forked_within = answered_in_parent()
            self.turn.require_reset()
        else:
            self.turn = Turn(self._reset)  # a thread that is not here may have the lock of the other
            self._session.fail(answered_in_parent())
            self._reset()

    # ---- requests

    @exclusive
    def add(self, request: PendingRequest) -> None:
        """Sends a request without waiting for its answer."""
        self.check()
        self._session.add(request)
        self._send()

    @apart_in_handlers
    def call(self, request: Answered[A], *, resend: bool | None = None) -> A:
        """Sends a request, and returns its answer. `resend`: see `PendingRequest`; None: as the declaration says."""
        call = Call(request, PolledSignal(), resend=resend)
        try:
            self.add(call)
            self.finish(call.done)
        except TimedOut as over:
            call.wanted = False
            self._session.dropped.append(call)  # a pull would wait on
            raise call.given_up(over) from None
        except BaseException as error:
            self.turn.interrupted(error, pending=not call.done.is_set())
            raise
        return cast(A, call.answer())

    def finish(self, done: PolledSignal) -> None:
        """Sends and receives until `done` is set; if it is already, waits for no other thread."""
        if not done.is_set():
            self._finish(done)

    def pass_over(self, passed: Set[object]) -> bool:
        """As of `NetworkConnection`."""
        others = [each for each in self.addresses.in_turn() if each not in passed]
        if not others:
            return False
        link = self._link.socket
        if self.address in passed and link is not None:
            self.addresses.answered(others[0])
            with suppress(OSError):  # it is closed meanwhile
                link.shutdown(socket.SHUT_RDWR)
        return True

    def put(self, queue: RowQueue[PolledSignal, R, Q], row: R) -> Q:
        """Sends a row in a batch and waits for its outcome; raises the outcome if it is an error."""
        turn = self.turn
        if turn.is_mine:
            return self.current.put(queue, row)
        queued: list[BatchSlice[PolledSignal, R, Q]] = []
        try:
            with turn.lock, turn:  # rows of other threads leave in the same batch, before the turn of `finish`
                self._wait_for_room(queue)
                queued.append(queue.add_rows((row,), queue.kind.size_bytes(row)))
            self.finish(queued[0].batch.done)
        except TimedOut as over:
            if not queued:
                raise
            (outcome,) = queued[0].by_now(over)
        except BaseException as error:
            turn.interrupted(error, pending=any(not each.batch.done.is_set() for each in queued))
            raise
        else:
            (outcome,) = queued[0].outcomes()
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome

    @apart_in_handlers
    def put_many(
        self,
        queue: RowQueue[PolledSignal, R, Q],
        given: Iterable[G],
        encode: Callable[[Sequence[G]], Sequence[R | EventStoreError]],
        at_once: int = ROWS_PER_TURN,
    ) -> list[Q | EventStoreError]:
        """Encodes the given items, `at_once` at a time, sends them as rows in order, and returns the outcome of each: TimedOut
        for those that have none when the time of this call is over. What an iterator has not given by then is left in it.
        """
        sent: list[tuple[Sequence[R | EventStoreError], list[BatchSlice[PolledSignal, R, Q]]]] = []
        remaining = iter(taken_in_time(given))
        while group := list(islice(remaining, at_once)):  # outside a `try`: a TimedOut of the iterator is the caller's own
            encoded = encode(group)
            queued: list[BatchSlice[PolledSignal, R, Q]] = []
            sent.append((encoded, queued))
            try:
                check_time()  # rows that come late are not sent
                self._queue_rows(queue, valid_rows(encoded), queued)
                renewed()
            except TimedOut as over:
                with suppress(TimedOut):
                    self._take_arrived()
                return outcomes_by_now(sent, remaining, over)
        outcomes: list[Q | EventStoreError] = []
        try:
            for encoded, queued in sent:
                for each in queued:
                    self.finish(each.batch.done)
                    renewed()
                outcomes += with_refused(encoded, chain.from_iterable(each.outcomes() for each in queued))
        except TimedOut as over:
            with suppress(TimedOut):
                self._take_arrived()
            return outcomes_by_now(sent, (), over)
        return outcomes

    @exclusive
    def _take_arrived(self) -> None:
        """Takes the answers that came while this thread only sent. Raises TimedOut when there is no more: its time is over."""
        while self._link.socket is not None:
            self._attempt(self._receive)

    @exclusive
    def _queue_rows(
        self, queue: RowQueue[PolledSignal, R, Q], rows: Sequence[R], queued: list[BatchSlice[PolledSignal, R, Q]]
    ) -> None:
        """Queues rows, adds them to `queued`, and sends those that may leave now; `finish` sends the rest."""
        for part, size_bytes in slices(queue.kind, rows):
            self._wait_for_room(queue)
            queued.append(queue.add_rows(part, size_bytes))
        self._send()

    def apart(self) -> BlockingConnection:
        """Returns a connection for what waits long, so that other calls can run meanwhile. It is closed with this one."""
        self._apart.add(made := BlockingConnection(self.addresses, self.options))
        if self._closed:
            made.close()
        return made

    @cached_property
    def keys(self) -> BlockingKeys:
        """The keys of subjects that were leased here."""
        return BlockingKeys(lambda subjects, create: self.call(LeaseKeys(create, subjects)))

    def pages_of(self, subscription: SessionSubscription) -> tuple[SubscriptionPage, Callable[[], object]]:
        """Returns a function that waits for the next page of a subscription, and one that ends it. Opens this connection, which
        is `apart`.
        """
        return _SubscriptionPages(self, subscription).page, self.close

    @exclusive
    def grant(self, subscription: PendingRequest, credit: int) -> None:
        """Lets the server send this many more bytes for a subscription."""
        self._session.grant(subscription, credit)
        self._send()

    def check(self) -> None:
        if self._unusable is not None:
            raise copy_error(self._unusable)

    def _wait_for_room(self, queue: RowQueue[PolledSignal, R, Q]) -> None:
        self.check()
        while not queue.has_room:
            self._step()

    @exclusive
    def _finish(self, done: PolledSignal) -> None:
        while not done.is_set():
            try:
                self._step()
            except ConnectionLost:  # the outcome of what was not answered, see `_failed`
                if not done.is_set():
                    raise

    def _step(self) -> None:
        """Sends what may be sent and takes what arrives next; or connects."""
        if self._link.socket is None:
            self._reconnect()
            return  # what the caller waits for may have failed meanwhile
        self.check()  # it may have been closed while it connected, with nothing to wake it from what follows
        if self._send():
            self._attempt(self._receive)

    def _send(self) -> bool:
        """Sends what may be sent. Returns whether there is a connection afterwards."""
        if self._link.socket is None:
            return False
        data = self._session.data_to_send()
        return not data or self._attempt(self._link.send, data, self._session.receive)

    def _receive(self) -> None:
        """Takes what arrives next. Pings a server that is silent for too long. The silence is that of all calls together: each
        may end before it is long.
        """
        session, link, patience = self._session, self._link, self._patience
        answered = session.answered
        timeout_s = self.options.silence_timeout
        self._may_ask = True
        try:
            data = link.receive(min(timeout_s / 2, timeout_s - patience.silent_s))
        except PeerSilent:
            if patience.is_lost:
                raise
            self._may_ask = False
            session.add(Call(Ping(), PolledSignal()))
            link.send(session.data_to_send(), session.receive)
            data = link.receive(timeout_s - (patience.silent_s or timeout_s / 2))
        finally:
            self._may_ask = False
        if patience.looks:
            patience.heard()
        session.receive(data)
        if session.answered != answered:
            self._backoff.recovered()
        if session.drained:
            self._disconnect()

    def _attempt(self, transfer: Callable[..., None], *arguments: object) -> bool:
        """Returns whether it succeeded; disconnects if the connection failed."""
        try:
            transfer(*arguments)
        except TimedOut:
            if self._patience.is_lost:  # the next call connects before it sends
                self._disconnect()
            raise
        except (OSError, EventStoreError) as error:
            if raised_by_handler(error):
                raise
            self._disconnect()
            return False
        return True

    # ---- connecting

    def _reconnect(self) -> None:
        """Connects, or waits and tries again until the timeout. Raises ConnectionLost."""
        self._backoff.lost(time.monotonic())
        try:
            while self._link.socket is None:
                self.check()
                check_time()
                time.sleep(shortened(self._backoff.delay_s()))
                self._connect(self.addresses.in_turn())
        except TimedOut as over:
            raise timed_out_without(over, self._attempts) from None

    def _connect(self, addresses: Sequence[Address]) -> bool:
        """Connects to the first of these that answers the hello. Returns whether one did. Does not wait long for one that is
        silent: then all that are left are tried at once. Raises as `_failed`.
        """
        self._attempts = []
        for place, address in enumerate(addresses):
            others = addresses[place + 1 :]
            error = self._try(address, min(FIRST_S, self.options.connect_timeout) if others else None)
            if error is None:
                return True
            if others and isinstance(error, Unanswered):
                return self._connect_to_first(addresses[place:])
            self._failed(error, others_left=bool(others))
        return False

    def _connect_to_first(self, addresses: Sequence[Address]) -> bool:
        """As `_connect`, to the one that answers first."""
        found, failed = first_to_answer(addresses, self.options)
        for self.address, error in failed:
            self._failed(error, others_left=found is not None)
        if found is None:
            return False
        last = self._try(found)
        if last is not None:
            self._failed(last)
        return last is None

    def _try(self, address: Address, timeout_s: float | None = None) -> OSError | EventStoreError | None:
        """Connects to this address. `timeout_s`: by default the connect timeout. Returns what went wrong; None: nothing."""
        self.address = address
        timeout_s = self.options.connect_timeout if timeout_s is None else timeout_s
        try:
            self._link.greet(address, self._session, self.options, timeout_s)
        except BaseException as error:
            self._disconnect()
            if isinstance(error, TimedOut) or not isinstance(error, OSError | EventStoreError) or raised_by_handler(error):
                raise
            return error
        self.addresses.answered(address)
        self._link.timeout_s = self.options.silence_timeout
        self._patience.heard()
        self._backoff.connected(time.monotonic())
        return None

    def _failed(self, error: Exception, *, others_left: bool = False) -> None:
        """Notes an attempt that failed. Raises ConnectionLost once the reconnect timeout is over."""
        self._attempts.append((self.address, error))
        fatal = self._session.fatal
        if not self._entering and (fatal or self._backoff.expired(time.monotonic(), others_left=others_left)):
            self._backoff.recovered()  # the next call tries again
            failed = fatal or connection_lost(self._attempts)
            self._session.fail(failed)
            raise failed from None

    def _look(self) -> None:
        """Notes, while this thread waits, that the server is silent. Asks others once it has been for long. Raises PeerSilent:
        a ping is due.
        """
        if not self._session.is_waited_for:
            self._patience.heard()
            return
        self._patience.waits(may_last=self._session.may_last)
        self._patience.looked()
        if self._patience.others_due:
            self._ask_others()
        if self._may_ask and self._patience.ping_due:
            raise PeerSilent("a ping is due")

    def _ask_others(self) -> None:
        """Has a thread look which address answers first."""
        connects = self.welcome is None  # and tries all of them
        if not connects and (self._moving is None or not self._moving.is_alive()):
            silent = self._link.socket
            self._moving = threading.Thread(target=self._move, args=(silent,), name="other addresses", daemon=True)
            self._moving.start()

    def _move(self, silent: object) -> None:
        """Moves to the address that answers first, if it is not the silent one."""
        found, _ = first_to_answer(self.addresses.in_turn(), self.options)
        if found not in (None, self.address) and self._link.socket is silent and self._patience.others_due:
            assert found is not None
            self.addresses.answered(found)
            self._link.wake()

    def _disconnect(self) -> None:
        self._link.close()
        self._session.disconnected()

    def _reset(self) -> None:
        """Starts over after a call was interrupted at an unknown point, or ends: fails all waiters and disconnects."""
        self._backoff.recovered()
        self._disconnect()
        if self._closed and self._unusable is not None:
            self._session.fail(self._unusable)
        elif self._forked_within is not None:
            self._session.fail(self._forked_within)
            self._unusable = self._forked_within = None
        self._session.reset()


class _SubscriptionPages:
    """The pages of a subscription, which has a connection of its own: it ends with the first error, or when this is dropped."""

    def __init__(self, connection: BlockingConnection, subscription: SessionSubscription) -> None:
        self._connection = connection
        self._subscription = subscription
        self._begun = False
        self._unopened: list[SubscriptionItem] | None = None  # taken, and not handed out: their keys have not arrived

    def page(self) -> list[SubscriptionItem]:
        """Waits for the next page."""
        try:
            return self._page()
        except TimedOut:  # the next call waits for the same page
            raise
        except BaseException:
            self._connection.close()
            raise

    def _page(self) -> list[SubscriptionItem]:
        connection, subscription = self._connection, self._subscription
        if self._unopened is not None:
            return self._opened(self._unopened)
        if not self._begun:
            connection._link.owner = ref(self)
            connection.__enter__()
            connection.add(subscription)
            self._begun = True
        while not subscription.ready:
            arrived = subscription.arrived = PolledSignal()
            connection.finish(arrived)
        items = subscription.take()
        due = subscription.credit_due()
        if due:
            connection.grant(subscription, due)
        return self._opened(items) if subscription.personal else items

    def _opened(self, items: list[SubscriptionItem]) -> list[SubscriptionItem]:
        """Returns the items, decrypted. If that fails, they are what the next call returns."""
        self._unopened = items
        self._connection.keys.open(personal_in(items))
        self._unopened = None
        return items
