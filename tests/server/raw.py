"""A client that is only a socket: it sends the bytes a test gives it, and decodes the answers."""

from __future__ import annotations

import socket
from collections import deque
from types import TracebackType
from typing import Self, TypeAlias

from eventstore import flat
from eventstore.errors import EventStoreError
from eventstore.model import NewEvent
from eventstore.protocol.answers import Answer, AnswerDecoder, Failure, Ok, Outcomes, Page
from eventstore.protocol.frames import LENGTH, LENGTH_BYTES, FrameReader, encode_frame
from eventstore.protocol.handshake import Welcome, read_welcome
from eventstore.protocol.limits import FRAME_BYTES_MAX
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.request_declaration import Request, code_of
from eventstore.protocol.requests import Append, Hello
from tests.waiting import DEADLINE_SECONDS


class Gone(Exception):
    """The server has closed the connection."""


class RawClient:
    """One connection. Sends HELLO at once if `greet`."""

    def __init__(self, port: int, *, greet: bool = True, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(DEADLINE_SECONDS)
        self._reader = FrameReader()
        self._decode = AnswerDecoder().decode
        self._answers: deque[tuple[int, Answer, int]] = deque()
        self._last_id = 0
        self.welcome: Welcome | None = None
        try:
            self.socket.connect(("127.0.0.1", port))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if greet:
                self.greet()
        except BaseException:  # the server may be killed meanwhile
            self.socket.close()
            raise

    def greet(self) -> None:
        answer = self.ask(Hello(1, "raw"))
        assert isinstance(answer, Ok), answer
        self.welcome = read_welcome(answer.values)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_payload(self, payload: bytes) -> None:
        self.send(LENGTH.pack(len(payload)) + payload)

    def send_request(self, request: Request) -> int:
        """Sends the request; returns its id."""
        self._last_id += 1
        self.send(encode_request(self._last_id, request))
        return self._last_id

    def ask(self, request: Request) -> Answer:
        """Returns the answer to a request; no other may be in flight."""
        request_id = self.send_request(request)
        answered, answer = self.answer()
        assert answered == request_id, f"an answer to {answered}, asked was {request_id}"
        return answer

    def answer(self) -> tuple[int, Answer]:
        """Returns the next answer, and its request id."""
        request_id, answer, _ = self.sized_answer()
        return request_id, answer

    def sized_answer(self) -> tuple[int, Answer, int]:
        """Returns the same as `answer`, and the size of its payload in bytes."""
        while not self._answers:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionError:
                data = b""
            if not data:
                raise Gone
            self._answers += [(*self._decode(payload), len(payload)) for payload in self._reader.feed(data)]
        return self._answers.popleft()

    def payload(self) -> bytes:
        """Returns the payload of the next answer, of which none may be left over."""
        payloads: list[bytes] = []
        while not payloads:
            payloads = self._reader.feed(self.socket.recv(1 << 20))
        (payload,) = payloads
        return payload

    def error(self) -> tuple[int, EventStoreError]:
        """Returns the next answer, which must be an error, and its request id."""
        request_id, answer = self.answer()
        assert isinstance(answer, Failure), answer
        return request_id, answer.error

    def hurry(self) -> None:
        """Raises the receive buffer to the size other clients have."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)

    def quiet(self) -> bool:
        """Whether there is no unread answer."""
        self.socket.setblocking(False)
        try:
            return not self._answers and not self._reader.buffered_bytes and not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(DEADLINE_SECONDS)

    def is_gone(self) -> bool:
        """Waits for an answer or the end; returns whether the server closed the connection without another answer."""
        try:
            self.answer()
        except Gone:
            return True
        return False

    def close(self) -> None:
        self.socket.close()

    def cut(self) -> None:
        """Resets the connection, as a restart of the machine would."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


WireCommit: TypeAlias = tuple[flat.Scalar, ...]


def commit(aggregate_id: str, command_id: str, data: bytes = b"data", expected: int | bool | None = None) -> WireCommit:
    """Returns a commit of one event."""
    return aggregate_id, expected, command_id, None, flat.encode(NewEvent("T", data))


def append_frame(request_id: int, *commits: WireCommit) -> bytes:
    return encode_frame(request_id, code_of(Append), flat.chain(commits))


def outcomes_of(answer: Answer) -> list[tuple[flat.Scalar, ...]]:
    """Returns the three values of each commit."""
    assert isinstance(answer, Outcomes), answer
    values = iter(answer.values)
    return list(zip(values, values, values, strict=True))


__all__ = [
    "FRAME_BYTES_MAX", "LENGTH", "LENGTH_BYTES", "Failure", "Gone", "Ok", "Outcomes", "Page", "RawClient", "append_frame",
    "commit", "outcomes_of",
]  # fmt: skip
