"""Requests that wait for their answer, and the signal that each of them sets when the answer is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from eventstore.client.connection_errors import timed_out_after
from eventstore.errors import EventStoreError, ProtocolError, TimedOut, copy_error
from eventstore.protocol.answers import Answer, Failure, Ok, Page
from eventstore.protocol.message_answers import Messages
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.request_declaration import DECLARATIONS, Request


class Signal(Protocol):
    """What a request sets when it is answered: an `anyio.Event` in the async client, a `PolledSignal` in the blocking one."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


S = TypeVar("S", bound=Signal)
AnswerT = TypeVar("AnswerT", bound=Answer)


class WantedByReader:
    """Part of a request that is `wanted` as long as there is its reader, an object that iterates over what is answered. That is
    held weakly: a `__del__` of the reader would lose the exception of a signal handler that runs in it.
    """

    _wanted = True
    _reader: ref[object] | None = None

    def read_by(self, reader: object, dropped: Callable[[object], object] | None = None) -> None:
        """`dropped`: called when the reader is dropped, with something; a function of C."""
        self._reader = ref(reader, dropped)

    @property
    def wanted(self) -> bool:
        return self._wanted and (self._reader is None or self._reader() is not None)

    @wanted.setter
    def wanted(self, wanted: bool) -> None:
        self._wanted = wanted


class PolledSignal:
    """A signal that is polled, not awaited."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


class PendingRequest(Protocol):
    """A request whose (last) answer has not arrived.

    `resend`: the request is safe to repeat, so it is sent again if the connection is lost before the answer; otherwise it
    fails. `wanted`: False once the caller no longer waits. `lasting`: the request gets any number of answers, none of them the
    last. `left`: it was sent, on this connection or an earlier one. It is set before `wanted` is looked at: a thread that sets
    `wanted` to False, and then finds this False, knows that it is never sent.
    """

    request_id: int
    wanted: bool
    resend: bool
    lasting: bool
    left: bool

    def encode(self) -> bytes:
        """Returns the frame to send. Called again after a reconnect."""

    def receive(self, answer: Answer, size_bytes: int) -> bool:
        """Takes an answer with a payload of `size_bytes`. Returns whether it was the last one."""

    def fail(self, error: EventStoreError) -> None:
        """Ends the request with an error instead of an answer."""


class Call(Generic[S]):
    """A request with one answer. `done` is set when the answer has arrived or the request has failed. `resend` None: as the
    request's declaration says.
    """

    lasting = False

    def __init__(self, request: Request, done: S, *, resend: bool | None = None) -> None:
        self.request_id = 0
        self.wanted = True
        self.left = False
        self.resend = DECLARATIONS[type(request)].resend if resend is None else resend
        self.request = request
        self.done = done
        self._answer: Answer | None = None
        self._error: EventStoreError | None = None

    def encode(self) -> bytes:
        return encode_request(self.request_id, self.request)

    def receive(self, answer: Answer, size_bytes: int) -> bool:
        if isinstance(answer, Failure):
            self._error = answer.error
        else:
            self._answer = answer
        self.done.set()
        return True

    def fail(self, error: EventStoreError) -> None:
        self._error = copy_error(error)
        self.done.set()

    def given_up(self, over: TimedOut) -> TimedOut:
        """Returns the error of a call that is no longer `wanted`: its time is over."""
        return timed_out_after(over, changed=self.left and DECLARATIONS[type(self.request)].needs.changes)

    def answer(self) -> Any:
        """Returns what its request is declared to be answered by, once `done` is set. Raises the server's error, or
        ConnectionLost; ProtocolError if the answer is another one.
        """
        declared = DECLARATIONS[type(self.request)]
        found = self._answer_of(declared.answered)
        return declared.form.decode(found.values) if isinstance(found, Ok) else found

    def ok(self) -> Ok:
        """As `answer`, with the values of an OK as they are."""
        return self._answer_of(Ok)

    def page(self) -> Page:
        """As `ok`, for requests answered by a page of events."""
        return self._answer_of(Page)

    def messages(self) -> Messages:
        """As `ok`, for requests answered by messages."""
        return self._answer_of(Messages)

    def _answer_of(self, kind: type[AnswerT]) -> AnswerT:
        if self._error is not None:
            raise copy_error(self._error)
        assert self._answer is not None, "the answer has not arrived"
        if not isinstance(self._answer, kind):
            raise ProtocolError(f"{type(self.request).__name__} was answered by {type(self._answer).__name__}")
        return self._answer
