"""The blocking client's connection: sends and receives in the thread that calls, and connects anew when it has to.

A lock makes whole exchanges atomic, so that threads may share a client; an answer that comes in while another thread
waits for its own is kept in the session. While more is to be sent than the kernel takes, what arrives is read as well:
two sides that only write would wait for each other for ever.

The handler of a signal may raise between any two steps (Ctrl-C, or an alarm that limits a call). Nobody knows then how far the
session came, so the next who uses it lets it start over: on a new connection, and all that others waited for has failed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from types import FrameType, TracebackType
from typing import Final, TypeVar

from eventstore.allocator import expect_large_buffers
from eventstore.client.address import Address
from eventstore.client.backoff import Backoff
from eventstore.client.batches import ROWS_PER_TURN, BatchQueue, Q, R, Run, good_rows, runs, with_refused
from eventstore.client.calls import Call, Flag, Waiting
from eventstore.client.losses import Silent, lost
from eventstore.client.options import Options
from eventstore.client.session import Session
from eventstore.errors import Closed, EventStoreError, again
from eventstore.protocol.requests import Ping

G = TypeVar("G")

_RECEIVE_BYTES: Final = 64 * 1024
_RECEIVE_BYTES_MAX: Final = 1024 * 1024
_LOOK_OUT_SECONDS: Final = 0.0005  # an append, with its sync, is answered within that
_INTERRUPTED_SECONDS: Final = 0.00005
_SHY_RECEIVES: Final = 32
_TIMED_OUT: Final = ("timed out",)  # says a socket with a timeout, without a number
_CAN_LOOK_OUT: Final = (os.cpu_count() or 1) > 1
_receiving: Final[set[Exchange]] = set()  # of this process; adding and discarding are safe in any thread


class _Quiet(OSError):
    """The server says nothing."""


class _Ended(OSError):
    """The server has closed the connection."""


class _Whole:
    """Around every use of the session, within the lock: whether the one before came to its end. If not, `mend` is called.

    A handler that uses the client itself, and returns, has not ended the call that it came into.
    """

    def __init__(self, mend: Callable[[], None]) -> None:
        self._mend = mend
        self.broken = False
        self._user: FrameType | None = None

    def __enter__(self) -> None:
        user = sys._getframe(1)
        if self.broken and not self._goes_on(user):
            self._mend()
        self._user = user
        self.broken = True

    def _goes_on(self, frame: FrameType | None) -> bool:
        """Whether this is called from within the use before."""
        while frame is not None and frame is not self._user:
            frame = frame.f_back
        return frame is not None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.broken = kind is not None and not issubclass(kind, EventStoreError)
        self._user = None


class Exchange:
    """Owns the session. Times are those of `Options`."""

    def __init__(self, address: Address, options: Options) -> None:
        expect_large_buffers()
        self._address = address
        self._options = options
        self.session: Session[Flag] = Session(options.name, Flag)
        self._backoff = Backoff(options.reconnect_timeout)
        self._lock = threading.RLock()
        self._whole = _Whole(self._start_over)
        self._socket: socket.socket | None = None
        self._receive_bytes = _RECEIVE_BYTES
        self._shy = 0  # for so many receives nobody is looked out for
        self._closed = False
        self._unusable: EventStoreError | None = Closed(f"the client of {address} is not open; use `with`")

    def open(self) -> None:
        """Connects once.

        Raises:
            Closed: it was open before.
            ConnectionLost: the server cannot be reached.
            EventStoreError: it can, but does not take this client.
        """
        with self._lock, self._whole:
            if self._closed:
                raise Closed(f"the client of {self._address} was closed; connect anew")
            try:
                self._connect()
            except OSError as error:
                if _of_a_handler(error):
                    raise
                raise lost(self._address, error) from None
            self._unusable = None

    def close(self) -> None:
        """Ends the connection. A thread that waits for an answer gets Closed."""
        self._closed = True
        closed = self._unusable = Closed(f"the client of {self._address} was closed")
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that holds the lock
        with self._lock, self._whole:
            self._disconnect()
            self.session.fail(closed)

    def start(self, waiting: Waiting) -> None:
        """Sends a request without waiting for its answer."""
        with self._lock, self._whole:
            self._check()
            self.session.add(waiting)
            self._send_or_lose()

    def put(self, queue: BatchQueue[Flag, R, Q], row: R) -> Q:
        """Sends a row in a batch and waits for what becomes of it; raises that, if it is an error."""
        with self._lock, self._whole:
            self._check()
            while not queue.has_room:
                self._step()
            batch, index = queue.add(row)
        try:
            self.finish(batch.done)
        except EventStoreError:
            raise
        except BaseException:
            self._whole.broken = True  # or the row would leave with whatever is asked next
            raise
        outcome = batch.outcome(index)
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome

    def put_all(
        self,
        queue: BatchQueue[Flag, R, Q],
        given: Iterable[G],
        encode: Callable[[Sequence[G]], Sequence[R | EventStoreError]],
    ) -> list[Q | EventStoreError]:
        """Sends as many rows as `encode` makes of what is given, in order; what became of each."""
        sent: list[tuple[Sequence[R | EventStoreError], list[Run[Flag, R, Q]]]] = []
        remaining = iter(given)
        while group := list(islice(remaining, ROWS_PER_TURN)):
            encoded = encode(group)
            sent.append((encoded, self.put_many(queue, good_rows(encoded))))
        outcomes: list[Q | EventStoreError] = []
        for encoded, queued in sent:
            for run in queued:
                self.finish(run.batch.done)
            outcomes += with_refused(encoded, chain.from_iterable(run.outcomes() for run in queued))
        return outcomes

    def put_many(self, queue: BatchQueue[Flag, R, Q], rows: Sequence[R]) -> list[Run[Flag, R, Q]]:
        """Queues many and sends what may leave now; `finish` waits for the answers, and sends the rest."""
        queued: list[Run[Flag, R, Q]] = []
        with self._lock, self._whole:
            for run, size_bytes in runs(queue.kind, rows):
                self._check()
                while not queue.has_room:
                    self._step()
                queued.append(queue.add_run(run, size_bytes))
            self._send_or_lose()
        return queued

    def finish(self, done: Flag) -> None:
        """Sends and receives until `done` is set."""
        while not done.is_set():
            with self._lock, self._whole:
                while not done.is_set():
                    self._check()
                    self._step()

    def grant(self, subscription: Waiting, credit: int) -> None:
        """Lets the server send so many bytes more for a subscription."""
        with self._lock, self._whole:
            self.session.grant(subscription, credit)
            self._send_or_lose()

    def _check(self) -> None:
        if self._unusable is not None:
            raise again(self._unusable)

    # ---- one step

    def _step(self) -> None:
        """Sends what may be sent and takes what comes next, or gets a step further towards a connection."""
        if self._socket is None:
            self._reconnect()
        if self._send_or_lose():
            self._receive_or_lose()

    def _send_or_lose(self) -> bool:
        if self._socket is None:
            return False
        data = self.session.data_to_send()
        try:
            if data:
                self._send(data)
        except (OSError, EventStoreError) as error:
            if _of_a_handler(error):
                raise
            self._disconnect()
            return False
        return True

    def _receive_or_lose(self) -> None:
        session = self.session
        answered = session.answered
        try:
            self._receive_or_ask()
        except (OSError, EventStoreError) as error:
            if _of_a_handler(error):
                raise
            self._disconnect()
            return
        if session.answered != answered:
            self._backoff.recovered()
        if session.drained:
            self._disconnect()

    def _send(self, data: bytes) -> None:
        sock = self._socket
        assert sock is not None
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[sock.send(rest) :]
            except BlockingIOError:
                if self._wait(sock, select.POLLIN | select.POLLOUT) & ~select.POLLOUT:
                    self._receive()

    def _receive_or_ask(self) -> None:
        """Takes what comes next. A server that is silent for too long is asked whether it is there."""
        try:
            self._receive()
        except _Quiet:
            self.session.add(Call(Ping(), Flag()))
            self._send(self.session.data_to_send())
            self._receive()

    def _receive(self) -> None:
        sock = self._socket
        assert sock is not None
        _receiving.add(self)
        try:
            data = self._look_out(sock)
            while data is None:
                self._wait(sock, select.POLLIN)
                with contextlib.suppress(BlockingIOError):
                    data = sock.recv(self._receive_bytes)
        finally:
            _receiving.discard(self)
        if not data:
            raise _Ended("the server closed the connection")
        full = len(data) == self._receive_bytes
        self._receive_bytes = _RECEIVE_BYTES_MAX if full else _RECEIVE_BYTES
        self.session.receive(data)

    def _wait(self, sock: socket.socket, wanted: int) -> int:
        """Until the socket is ready; what for.

        Raises:
            _Quiet: it is not within the silence timeout.
        """
        waiting = select.poll()
        waiting.register(sock, wanted)
        ready = waiting.poll(self._options.silence_timeout * 1000)
        if not ready:
            raise _Quiet(f"neither sent nor received anything for {self._options.silence_timeout:g} s")
        return ready[0][1]

    def _look_out(self, sock: socket.socket) -> bytes | None:
        """What arrives within a moment, without going to sleep: being woken takes 60 µs, a good part of a round trip.

        Not on the only processor, nor where other threads of this process wait for answers as well; and not for a while after
        it was in vain, or one look took long: somebody else wanted the processor or the interpreter then.
        """
        if not _CAN_LOOK_OUT or self._shy or len(_receiving) > 1:
            self._shy = max(0, self._shy - 1)
            return None
        now = time.perf_counter()
        until = now + _LOOK_OUT_SECONDS
        while now < until:
            try:
                return sock.recv(self._receive_bytes)
            except BlockingIOError:
                before, now = now, time.perf_counter()
                if now - before > _INTERRUPTED_SECONDS:
                    break
        self._shy = _SHY_RECEIVES
        return None

    # ---- connecting

    def _reconnect(self) -> None:
        """Connects, or waits and tries again until the timeout.

        Raises:
            ConnectionLost
        """
        self._backoff.lost(time.monotonic())
        while self._socket is None:
            self._check()
            time.sleep(self._backoff.delay_s())
            try:
                self._connect()
            except (OSError, EventStoreError) as error:
                if _of_a_handler(error):
                    raise
                fatal = self.session.fatal
                if fatal is not None or self._backoff.expired(time.monotonic()):
                    self._backoff.recovered()  # the next call tries anew
                    failed = fatal or lost(self._address, error)
                    self.session.fail(failed)
                    raise failed from None

    def _connect(self) -> None:
        timeout = self._options.connect_timeout
        try:
            sock = self._socket = socket.create_connection(self._address, timeout)
        except TimeoutError as error:
            if error.args == _TIMED_OUT:
                raise OSError(errno.ETIMEDOUT, "timed out") from None
            raise
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(self.session.connected())
            while self.session.welcome is None:
                data = sock.recv(_RECEIVE_BYTES)
                if not data:
                    raise _Ended("the connection was closed before the hello was answered")
                self.session.receive(data)
            sock.setblocking(False)
        except BaseException as error:
            self._disconnect()
            if isinstance(error, TimeoutError) and error.args == _TIMED_OUT:
                raise Silent(timeout) from None
            raise
        self._backoff.connected(time.monotonic())

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.session.disconnected()

    def _start_over(self) -> None:
        """Whoever used the session last was interrupted in the middle of it."""
        _receiving.discard(self)
        self._backoff.recovered()
        self._disconnect()
        self.session.start_over()


def _of_a_handler(error: Exception) -> bool:
    """Whether a signal's handler raised it, TimeoutError for one, to limit a call: what sockets raise has a number."""
    return isinstance(error, OSError) and error.errno is None and not isinstance(error, _Quiet | _Ended | Silent)
