"""Requests that wait for their answer, and how they make themselves heard when it is there."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from eventstore.errors import EventStoreError, ProtocolError, again
from eventstore.protocol.answers import Answer, Failure, Ok, Page
from eventstore.protocol.message_answers import Messages
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import Request


class Signal(Protocol):
    """What a request sets when it is answered: `anyio.Event` is one, `Flag` is another."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


S = TypeVar("S", bound=Signal)


class Flag:
    """A signal for those who look rather than wait."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


class Waiting(Protocol):
    """A request without its (last) answer.

    `resend`: to carry it out twice does no harm, so it is sent again where its answer was lost; else it fails.
    """

    request_id: int
    wanted: bool
    resend: bool
    lasting: bool  # more than one answer comes, and no last one

    def encode(self) -> bytes:
        """The frame to send; asked for again after a reconnect."""

    def receive(self, answer: Answer, size_bytes: int) -> bool:
        """Takes an answer, whose payload had `size_bytes`; whether it was the last one."""

    def fail(self, error: EventStoreError) -> None:
        """There will be no answer."""


class Call(Generic[S]):
    """A request with one answer."""

    lasting = False

    def __init__(self, request: Request, done: S, *, resend: bool = True) -> None:
        self.request_id = 0
        self.wanted = True
        self.resend = resend
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
        self._error = again(error)
        self.done.set()

    def ok(self) -> Ok:
        """The answer, when `done` is set. Raises what the server answered, or ConnectionLost."""
        answer = self._result()
        if not isinstance(answer, Ok):
            raise ProtocolError(f"{type(self.request).__name__} was answered by {type(answer).__name__}")
        return answer

    def page(self) -> Page:
        """As `ok`, for requests that are answered by a page."""
        answer = self._result()
        if not isinstance(answer, Page):
            raise ProtocolError(f"{type(self.request).__name__} was answered by {type(answer).__name__}")
        return answer

    def messages(self) -> Messages:
        """As `ok`, for requests that are answered by messages."""
        answer = self._result()
        if not isinstance(answer, Messages):
            raise ProtocolError(f"{type(self.request).__name__} was answered by {type(answer).__name__}")
        return answer

    def _result(self) -> Answer:
        if self._error is not None:
            raise self._error
        assert self._answer is not None, "asked for an answer that is not there yet"
        return self._answer
