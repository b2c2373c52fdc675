"""The async client's connection: keeps a session on some link to the server as long as the client is open.

One task reads; when the connection ends it looks for a new one, at once and then at growing intervals. Calls wait meanwhile.
When the reconnect timeout is over they fail with ConnectionLost, and so do new ones, at once, until an attempt in the
background succeeds. A second task notices connections that are dead but not closed. Works under trio and asyncio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from eventstore.allocator import expect_large_buffers
from eventstore.client.address import Address
from eventstore.client.backoff import Backoff
from eventstore.client.batches import ROWS_PER_TURN, BatchQueue, Q, R, Run, good_rows, runs, with_refused
from eventstore.client.calls import Call, Waiting
from eventstore.client.link import Link, open_socket
from eventstore.client.losses import Silent, lost
from eventstore.client.options import Options
from eventstore.client.session import Session
from eventstore.errors import Closed, EventStoreError, again
from eventstore.protocol.broker_requests import Pull
from eventstore.protocol.requests import Ping

G = TypeVar("G")


class Connection:
    """Owns the session. What is no coroutine never blocks."""

    def __init__(self, address: Address, options: Options) -> None:
        expect_large_buffers()
        self._address = address
        self._options = options
        self._backoff = Backoff(options.reconnect_timeout)
        self._link: Link | None = None
        self._tasks: TaskGroup | None = None
        self._scope = anyio.CancelScope(shield=True)  # until `close`: who is cancelled may have something to say yet
        self._unusable: EventStoreError | None = Closed(f"the client of {address} is not open; use `async with`")
        self._rooms: dict[BatchQueue[anyio.Event, Any, Any], anyio.Event] = {}
        self._heard = 0
        self.session: Session[anyio.Event] = Session(options.name, anyio.Event)

    async def open(self, tasks: TaskGroup) -> None:
        """Connects once, and starts the tasks that keep it so.

        Raises:
            Closed: it was open before.
            ConnectionLost: the server cannot be reached.
            EventStoreError: it can, but does not take this client.
        """
        if self._scope.cancel_called:
            raise Closed(f"the client of {self._address} was closed; connect anew")
        try:
            link = await self._establish()
        except OSError as error:
            raise lost(self._address, error) from None
        self._unusable = None
        tasks.start_soon(self._run, link)

    def close(self) -> None:
        """Ends the connection; whoever still waits gets Closed."""
        self._give_up(self._closed())
        self._scope.cancel()

    def _closed(self) -> Closed:
        return Closed(f"the client of {self._address} was closed")

    def add(self, waiting: Waiting) -> None:
        """Sends a request as soon as possible. Raises what makes that impossible."""
        self.check()
        self.session.add(waiting)
        self.flush()

    def check(self) -> None:
        """Raises what makes the client unusable now, if anything does."""
        if self._unusable is not None:
            raise again(self._unusable)

    def flush(self) -> None:
        """Sends what may be sent now; the rest goes when answers have come in."""
        if self._link is not None:
            self._link.write(self.session.data_to_send())
        for queue in [queue for queue in self._rooms if queue.has_room]:
            self._rooms.pop(queue).set()

    async def wait_for_room(self, queue: BatchQueue[anyio.Event, R, Q]) -> None:
        """Returns when more may be queued. Raises what makes the client unusable."""
        self.check()
        while not queue.has_room:
            self.flush()
            await self._rooms.setdefault(queue, anyio.Event()).wait()
            self.check()

    async def finish(self, call: Call[anyio.Event]) -> None:
        """Sends a request and waits for its answer. Raises what makes that impossible."""
        self.add(call)
        try:
            await call.done.wait()
        except BaseException:
            self.drop(call)
            raise

    def drop(self, call: Call[anyio.Event]) -> None:
        """Nobody waits for the answer any more."""
        call.wanted = False
        if isinstance(call.request, Pull):  # the server would wait for up to a minute, and has a limit on such
            self.session.unsubscribe(call)
            self.flush()

    async def put(self, queue: BatchQueue[anyio.Event, R, Q], row: R) -> Q:
        """Sends a row in a batch and waits for what becomes of it; raises that, if it is an error."""
        self.check()
        if not queue.has_room:
            await self.wait_for_room(queue)
        batch, index = queue.add(row)
        self.flush()
        await batch.done.wait()
        outcome = batch.outcome(index)
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome

    async def put_many(
        self,
        queue: BatchQueue[anyio.Event, R, Q],
        given: Iterable[G],
        encode: Callable[[Sequence[G]], Sequence[R | EventStoreError]],
    ) -> list[Q | EventStoreError]:
        """Sends as many rows as `encode` makes of what is given, in order; what became of each."""
        sent: list[tuple[Sequence[R | EventStoreError], list[Run[anyio.Event, R, Q]]]] = []
        remaining = iter(given)
        while group := list(islice(remaining, ROWS_PER_TURN)):
            if sent:
                await anyio.lowlevel.checkpoint()
            encoded = encode(group)
            queued: list[Run[anyio.Event, R, Q]] = []
            for run, size_bytes in runs(queue.kind, good_rows(encoded)):
                await self.wait_for_room(queue)
                queued.append(queue.add_run(run, size_bytes))
            self.flush()
            sent.append((encoded, queued))
        outcomes: list[Q | EventStoreError] = []
        for encoded, queued in sent:
            for each in queued:
                if not each.batch.done.is_set():
                    await each.batch.done.wait()
            outcomes += with_refused(encoded, chain.from_iterable(run.outcomes() for run in queued))
        return outcomes

    # ---- tasks

    async def _run(self, link: Link) -> None:
        with self._scope:
            try:
                async with anyio.create_task_group() as self._tasks:
                    self._tasks.start_soon(self._keep, link)
                    self._tasks.start_soon(self._watch)
            finally:
                link.close()
                if self.session.fatal is None:
                    self._give_up(self._closed())  # whoever waits would wait for ever

    async def _keep(self, link: Link | None) -> None:
        cause: Exception | None = None
        while self.session.fatal is None:
            if link is not None:
                cause = await self._serve(link)
            link = None
            self._backoff.lost(time.monotonic())
            await anyio.sleep(self._backoff.delay_s())
            try:
                link = await self._establish()
            except (OSError, EventStoreError) as error:
                cause = error
            if link is None and self._backoff.expired(time.monotonic()):
                self._give_up(lost(self._address, cause))
        self._give_up(self.session.fatal)

    async def _establish(self) -> Link:
        """A link whose hello was answered."""
        link, timeout_s = None, self._options.connect_timeout
        try:
            with anyio.fail_after(timeout_s):
                link = Link(await open_socket(self._address), self._start)
                try:
                    await self._greet(link)
                except BaseException:
                    link.close()
                    self.session.disconnected()
                    raise
                return link
        except TimeoutError:
            raise Silent(timeout_s) if link is not None else OSError(f"no answer within {timeout_s:g} s") from None

    def _start(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(work)

    async def _greet(self, link: Link) -> None:
        link.write(self.session.connected())
        while self.session.welcome is None:
            data = await link.read()
            if not data:
                raise OSError("the connection was closed before the hello was answered")
            self.session.receive(data)

    async def _serve(self, link: Link) -> Exception | None:
        """Reads until the connection ends; what ended it."""
        session = self.session
        self._link = link
        if not self._scope.cancel_called:
            self._unusable = None
        answered = session.answered
        self._backoff.connected(time.monotonic())
        try:
            self.flush()
            while not session.drained:
                data = await link.read()
                if not data:
                    return None
                self._heard += 1
                session.receive(data)
                self.flush()
                if session.answered != answered:
                    self._backoff.recovered()
        except EventStoreError as error:
            return error
        finally:
            self._link = None
            link.close()
            session.disconnected()
        return None

    async def _watch(self) -> None:
        """Drops a connection that stays silent although an answer is due. Pings, so that one always is."""
        while True:
            heard, link = self._heard, self._link
            if link is not None and self._unusable is None:
                self.add(Call(Ping(), anyio.Event()))
            await anyio.sleep(self._options.silence_timeout)
            if link is not None and link is self._link and heard == self._heard:
                link.drop()

    def _give_up(self, error: EventStoreError) -> None:
        self._unusable = error
        self.session.fail(error)
        while self._rooms:
            self._rooms.popitem()[1].set()
