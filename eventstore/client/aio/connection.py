"""The async client's connection: keeps a session connected to the server as long as the client is open.

One task reads. When the connection ends it reconnects, at once and then at growing intervals; calls wait meanwhile. After the
reconnect timeout they fail with ConnectionLost, and so do new ones, at once, until an attempt in the background succeeds. A
second task notices servers that are silent: of several addresses, the connection then moves to the one that answers first.
Works under trio and asyncio.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence, Set
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from eventstore.allocator import expect_large_buffers
from eventstore.client.address import Address, Addresses
from eventstore.client.aio.background import Background
from eventstore.client.aio.limited import in_time
from eventstore.client.aio.link import NetworkLink, first_to_answer, open_link
from eventstore.client.aio.settled import settled
from eventstore.client.aio.subject_keys import NetworkKeys
from eventstore.client.aio.this_loop import of_another_loop, this_loop
from eventstore.client.backoff import Backoff
from eventstore.client.connection_errors import Attempt, Unanswered, connection_lost, not_opened, timed_out_without
from eventstore.client.limit import active, check_time, renewed, taken_in_time
from eventstore.client.options import ClientOptions
from eventstore.client.patience import FIRST_S, IDLE_PING_S, Patience
from eventstore.client.session.batch import BatchSlice, Q, R
from eventstore.client.session.batches import ROWS_PER_TURN, RowQueue, outcomes_by_now, slices, valid_rows, with_refused
from eventstore.client.session.calls import Call, PendingRequest
from eventstore.client.session.session import ClientSession
from eventstore.errors import Closed, EventStoreError, TimedOut, copy_error
from eventstore.forks import of_parent, tell_of_forks
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.request_declaration import DECLARATIONS, Answered
from eventstore.protocol.requests import Ping
from eventstore.protocol.subject_requests import LeasedKeys, LeaseKeys

G = TypeVar("G")
A = TypeVar("A")


class NetworkConnection:
    """Owns the session. Plain functions never block. `address`: the one that is connected, or was tried last."""

    _leads_to_several = False  # servers, whatever the number of addresses
    _whose = ""  # in errors: what is at the address

    def __init__(self, addresses: Addresses, options: ClientOptions) -> None:
        expect_large_buffers()
        self.addresses = addresses
        self.address, self.options = addresses.first, options.completed(addresses)
        several, token = self._leads_to_several or addresses.are_several, self.options.token
        self.session: ClientSession[anyio.Event] = ClientSession(
            options.name, anyio.Event, in_parts=True, several=several, token=token
        )
        self._backoff = Backoff(options.reconnect_timeout)
        self._link: NetworkLink | None = None
        self.user_tasks: TaskGroup | None = None
        self._background: Background | None = None
        self._loop_now: Callable[[], object] = lambda: None
        self._loop: object = None  # that it was opened in
        self._tasks: TaskGroup | None = None
        self._scope: anyio.CancelScope | None = None  # made when it is opened: `connect` needs no event loop
        self._closing = False
        self._closed = Closed(f"the client of {addresses} was closed")
        self._unusable: EventStoreError | None = Closed(f"the client of {addresses} is not open; use `async with`")
        self._rooms: dict[RowQueue[anyio.Event, Any, Any], anyio.Event] = {}
        self._received = 0
        self.relied_on_until = 0.0  # so long others wait for what is said here of the cluster: its silence is noticed
        self._attempts: list[Attempt] = []  # of the last time it connected, those that failed
        self.make_event: Callable[[], anyio.Event] = anyio.Event
        self._thread: int | None = None  # in which it was opened, and its event loop runs
        tell_of_forks(self)

    def forked(self) -> None:
        """In a child, to which no event loop can be taken: the client is refused, and the connection is left to the parent."""
        if self._thread is None:
            return
        self._closed = of_parent(f"the client of {self.addresses}", "open another one here")
        if self._link is not None:
            self._link.abandon()
        if self._thread == threading.get_ident():
            with suppress(RuntimeError):  # that of asyncio does not run here, whatever follows
                self.close()
        else:  # its tasks are no more, and nothing of another event loop may wake them
            self.session = ClientSession(self.options.name, anyio.Event)
            self._rooms, self._tasks, self.user_tasks, self._scope = {}, None, None, None
        self._unusable, self._closing, self._background = self._closed, True, None

    @property
    def welcome(self) -> Welcome | None:
        """The server's answer to the hello, while there is a connection."""
        return self.session.welcome

    @property
    def _has_others(self) -> bool:
        """Whether there is someone else to ask while this server is silent."""
        return self.addresses.are_several

    @property
    def _idle_ping_s(self) -> float | None:
        """After which silence a server is asked whether it is there, of which only subscriptions and pulls want something."""
        return IDLE_PING_S if self._has_others else None

    async def __aenter__(self) -> Self:
        """Connects once, and starts the tasks that keep the connection.

        Raises:
            Closed: it was open before.
            ConnectionLost: the server cannot be reached.
            EventStoreError: the server refuses this client.
        """
        if self._background is not None or self._closing:
            raise Closed(f"the client of {self.addresses} was opened before; open another one")
        self._background = await Background(self.close).begun()
        self.user_tasks = self._background.group
        try:
            await self._open(self.user_tasks)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _open(self, tasks: TaskGroup) -> None:
        self._begin_here()
        scope = self._scope = anyio.CancelScope(shield=True)  # until `close`: a cancelled user may still have something to send
        link = await self._connect(self.addresses.in_turn())
        if link is None:
            raise not_opened(self._attempts)
        self._unusable = None
        tasks.start_soon(self._run, link, scope)

    def begin(self, tasks: TaskGroup) -> None:
        """Opens it without waiting for the server: a task of `tasks` connects, and calls wait for that."""
        self._unusable = None
        self._begin_here()
        scope = self._scope = anyio.CancelScope(shield=True)
        tasks.start_soon(self._run, None, scope)

    def _begin_here(self) -> None:
        """Belongs to this thread and its event loop from now on."""
        here = this_loop()
        self._thread, self.make_event, self._loop_now, self._loop = threading.get_ident(), here.make_event, here.now, here.now()
        self.session.wait_by(self.make_event)

    def close(self) -> None:
        """Ends the connection; callers that still wait get Closed."""
        self._fail_all(self._closed)
        self._closing = True
        if self._scope is not None:
            self._scope.cancel()

    async def aclose(self) -> None:
        """As `close`, and returns when nothing of it runs any longer. Any task of its event loop may call it, in any order with
        other clients.

        Raises:
            Closed: it was opened in another event loop, which has to close it.
        """
        self.check_close()
        self.close()
        background, self._background, self.user_tasks = self._background, None, None
        if background is not None:
            await background.end()
        await anyio.lowlevel.checkpoint()

    # ---- requests

    def pass_over(self, passed: Set[object]) -> bool:
        """Moves to an address that is not among these, unless that was done meanwhile. Returns False if there is none."""
        others = [each for each in self.addresses.in_turn() if each not in passed]
        if not others:
            return False
        if self.address in passed and self._link is not None:
            self.addresses.answered(others[0])
            self._link.drop()
        return True

    def add(self, request: PendingRequest) -> None:
        """Sends a request without waiting for its answer. Raises the error that makes the client unusable, if any."""
        self.check()
        self.session.add(request)
        self.flush()

    def check(self) -> None:
        """Raises the error that makes the client unusable now, or here, if any."""
        if self._unusable is not None:
            raise copy_error(self._unusable)
        if self._loop_now() is not self._loop:  # as `check_loop`, without a call for each request
            raise of_another_loop(f"the client of {self.addresses}")

    def check_loop(self) -> None:
        """Raises Closed if it was opened in another event loop than the one that runs here."""
        if self._loop_now() is not self._loop:
            raise of_another_loop(f"the client of {self.addresses}")

    def check_close(self) -> None:
        """Raises Closed if it is open, in another event loop than the one that runs here."""
        if self._background is not None:
            self.check_loop()

    def flush(self) -> None:
        """Sends what may be sent now; the rest is sent when answers have arrived."""
        if self._link is not None and (data := self.session.data_to_send()):
            self._link.write(data)
        if self._rooms:
            for queue in [queue for queue in self._rooms if queue.has_room]:
                self._rooms.pop(queue).set()

    async def call(self, request: Answered[A], *, resend: bool | None = None) -> A:
        """Sends a request, and returns its answer.

        `resend`: whether to send the request again if the connection is lost before the answer; otherwise it fails then. None:
        as its declaration says.
        """
        call = Call(request, self.make_event(), resend=resend)
        self.add(call)
        try:
            await (in_time(call.done.wait) if active else call.done.wait())
        except TimedOut as over:
            self.drop(call)
            raise call.given_up(self._explained(over)) from None
        except BaseException:
            self.drop(call)
            raise
        return cast(A, call.answer())

    @cached_property
    def keys(self) -> NetworkKeys:
        """The keys of subjects that were leased here."""
        return NetworkKeys(self._lease_keys)

    async def _lease_keys(self, subjects: tuple[str, ...], create: bool) -> LeasedKeys:
        return await self.call(LeaseKeys(create, subjects))

    def drop(self, call: Call[Any]) -> None:
        """Discards the answer of a call when it arrives."""
        call.wanted = False
        if DECLARATIONS[type(call.request)].waits:  # the server would wait on, and limits the number of such requests
            self.session.unsubscribe(call)
            self.flush()

    async def put(self, queue: RowQueue[anyio.Event, R, Q], row: R) -> Q:
        """Sends a row in a batch and waits for its outcome; raises the outcome if it is an error."""
        self.check()
        if not queue.has_room:
            await self.wait_for_room(queue)
        part = queue.add_rows((row,), queue.kind.size_bytes(row))
        self.flush()
        batch = part.batch
        try:
            if not (active or batch.finished):
                await batch.done.wait()
            if not batch.finished:  # it comes in parts, or the time of this call is limited
                await settled(part)
        except TimedOut as over:
            (outcome,) = part.by_now(self._explained(over))
        else:
            (outcome,) = part.outcomes()
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome

    async def put_many(
        self,
        queue: RowQueue[anyio.Event, R, Q],
        given: Iterable[G],
        encode: Callable[[Sequence[G]], Sequence[R | EventStoreError]],
        at_once: int = ROWS_PER_TURN,
    ) -> list[Q | EventStoreError]:
        """Encodes the given items, `at_once` at a time, sends them as rows in order, and returns the outcome of each: TimedOut
        for those that have none when the time of this call is over. What an iterator has not given by then is left in it.
        """
        sent: list[tuple[Sequence[R | EventStoreError], list[BatchSlice[anyio.Event, R, Q]]]] = []
        remaining = iter(taken_in_time(given))
        while group := list(islice(remaining, at_once)):  # outside a `try`: a TimedOut of the iterator is the caller's own
            if sent:
                await anyio.lowlevel.checkpoint()
            encoded = encode(group)
            queued: list[BatchSlice[anyio.Event, R, Q]] = []
            sent.append((encoded, queued))
            try:
                check_time()  # rows that come late are not sent
                for rows, size_bytes in slices(queue.kind, valid_rows(encoded)):
                    await self.wait_for_room(queue)
                    queued.append(queue.add_rows(rows, size_bytes))
                    renewed()
            except TimedOut as over:
                return outcomes_by_now(sent, remaining, self._explained(over))
            self.flush()
        outcomes: list[Q | EventStoreError] = []
        try:
            for encoded, queued in sent:
                for each in queued:
                    await settled(each)
                    renewed()
                outcomes += with_refused(encoded, chain.from_iterable(each.outcomes() for each in queued))
        except TimedOut as over:
            return outcomes_by_now(sent, (), self._explained(over))
        return outcomes

    def _explained(self, over: TimedOut) -> TimedOut:
        """Returns the error with the reason why there is no connection, if there is none."""
        return timed_out_without(over, self._attempts) if self._link is None else over

    async def wait_for_room(self, queue: RowQueue[anyio.Event, R, Q]) -> None:
        """Returns when more may be queued. Raises the error that makes the client unusable."""
        self.check()
        while not queue.has_room:
            self.flush()
            await in_time(self._rooms.setdefault(queue, anyio.Event()).wait)
            self.check()

    # ---- tasks

    async def _run(self, link: NetworkLink | None, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                async with anyio.create_task_group() as self._tasks:
                    self._tasks.start_soon(self._keep_connected, link)
                    self._tasks.start_soon(self._watch)
            finally:
                if link is not None:
                    link.close()
                if self.session.fatal is None:
                    self._fail_all(self._closed)  # callers that still wait would wait forever

    async def _keep_connected(self, link: NetworkLink | None) -> None:
        while self.session.fatal is None:
            if link is not None:
                await self._read(link)
            self._backoff.lost(time.monotonic())
            link = await self._reconnect()
        self._fail_all(self.session.fatal)

    async def _reconnect(self) -> NetworkLink | None:
        """Waits as long as the backoff says, and connects."""
        await anyio.sleep(self._backoff.delay_s())
        return await self._connect(self.addresses.in_turn())

    async def _connect(self, addresses: Sequence[Address]) -> NetworkLink | None:
        """Returns a link to the first of these whose hello is answered; None if there is none, with the `_attempts`. Does not
        wait long for one that is silent: then all that are left are tried at once.
        """
        self._attempts = []
        for place, address in enumerate(addresses):
            others = addresses[place + 1 :]
            try:
                return await self._try(address, min(FIRST_S, self.options.connect_timeout) if others else None)
            except Unanswered as error:
                if others:
                    return await self._connect_to_first(addresses[place:])
                self._failed(error)
            except (OSError, EventStoreError) as error:
                self._failed(error, others_left=bool(others))
        return None

    async def _connect_to_first(self, addresses: Sequence[Address]) -> NetworkLink | None:
        """As `_connect`, to the one that answers first."""
        found, failed = await first_to_answer(addresses, self.options)
        for self.address, error in failed:
            self._failed(error, others_left=found is not None)
        if found is not None:
            try:
                return await self._try(found)
            except (OSError, EventStoreError) as error:
                self._failed(error)
        return None

    async def _try(self, address: Address, timeout_s: float | None = None) -> NetworkLink:
        """Returns a link to this address. `timeout_s`: by default the connect timeout. Raises OSError, EventStoreError."""
        self.address = address
        timeout_s = self.options.connect_timeout if timeout_s is None else timeout_s
        link = await open_link(address, self.session, self.options, self._start, timeout_s)
        self._check_welcome(link)
        self.addresses.answered(address)
        return link

    def _failed(self, error: Exception, *, others_left: bool = False) -> None:
        """Notes an attempt that failed, and fails all calls once the reconnect timeout is over."""
        self._attempts.append((self.address, error))
        if self._backoff.expired(time.monotonic(), others_left=others_left):
            self._fail_all(connection_lost(self._attempts, self._whose))

    def _check_welcome(self, link: NetworkLink) -> None:
        """For a subclass: raises what is wrong with the server, having closed the link."""

    def _start(self, task: Callable[[], Coroutine[None, None, None]]) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(task)

    async def _read(self, link: NetworkLink) -> None:
        """Reads until the connection ends, by an error or not."""
        session = self.session
        self._link = link
        if not self._closing:
            self._unusable = None
        answered, recovered = session.answered, False
        self._backoff.connected(time.monotonic())
        try:
            self.flush()
            while not session.drained and (data := await link.read()):
                self._received += 1
                session.receive(data)
                self.flush()
                if not recovered and session.answered != answered:
                    recovered = True
                    self._backoff.recovered()
        except EventStoreError:
            pass
        finally:
            self._link = None
            link.close()
            session.disconnected()

    async def _watch(self) -> None:
        """Notices a server that is silent while something waits for it, and now and then asks one for which nothing does."""
        timeout_s, session = self.options.silence_timeout, self.session
        patience = Patience(timeout_s, has_others=self._has_others, idle_ping_s=self._idle_ping_s)
        idle_s = 0.0
        while True:
            received, link = self._received, self._link
            await anyio.sleep(patience.look_s)
            ping = False
            if received != self._received or self._link not in (link, None):
                patience.heard()
                idle_s = 0.0
            elif session.is_waited_for or self.relied_on_until > time.monotonic():
                self._waits(patience, may_last=session.may_last)
                patience.looked()
                ping = patience.ping_due
                if patience.others_due:
                    await self._ask_others()
                if patience.is_lost and link is self._link and link is not None:
                    link.drop()
            else:
                patience.heard()
                idle_s += patience.look_s
                ping = idle_s >= timeout_s
            if ping and self._link is not None and self._unusable is None:
                idle_s = 0.0
                self.add(Call(Ping(), anyio.Event()))

    def _waits(self, patience: Patience, *, may_last: bool) -> None:
        """Notes what is waited for."""
        patience.waits(may_last=may_last)

    async def _ask_others(self) -> None:
        """Moves to the address that answers first, if it is not the silent one."""
        received, link = self._received, self._link
        if link is None:  # it connects, and tries all of them
            return
        found, _ = await first_to_answer(self.addresses.in_turn(), self.options)
        if found not in (None, self.address) and received == self._received and link is self._link:
            assert found is not None
            self.addresses.answered(found)
            link.drop()

    def _fail_all(self, error: EventStoreError) -> None:
        self._unusable = error
        self.session.fail(error)
        while self._rooms:
            self._rooms.popitem()[1].set()
