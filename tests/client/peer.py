"""The server's side of a session, sans-io: reads the frames a session sends, and answers as a test wants."""

from __future__ import annotations

from collections.abc import Sequence

from eventstore.client.session.calls import Call, PolledSignal
from eventstore.client.session.session import ClientSession
from eventstore.errors import EventStoreError
from eventstore.flat import Scalar
from eventstore.protocol.answers import (
    encode_error,
    encode_goodbye,
    encode_ok,
    encode_outcomes,
    encode_page,
    encode_scan_page,
)
from eventstore.protocol.frames import FrameReader
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.message_answers import QueuePage, encode_messages
from eventstore.protocol.request_codec import RequestDecoder
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Hello

STORE = bytes(range(16))


class Peer:
    """One connection of a session. Answers the hello at once, unless `greet` is False."""

    def __init__(self, session: ClientSession[PolledSignal], welcome: Welcome | None = None, *, greet: bool = True) -> None:
        self._session = session
        self._reader = FrameReader()
        self._decode = RequestDecoder().decode
        ((self.hello_id, hello),) = self._read(session.connected())
        assert isinstance(hello, Hello)
        if greet:
            self.greet(welcome or Welcome(1, "peer", STORE))

    def greet(self, welcome: Welcome) -> None:
        self._session.receive(encode_ok(self.hello_id, *welcome.values()))

    def received(self) -> list[tuple[int, Request]]:
        """Returns the requests that the session sends now."""
        return self._read(self._session.data_to_send())

    def _read(self, data: bytes) -> list[tuple[int, Request]]:
        return [self._decode(payload) for payload in self._reader.feed(data)]

    def ok(self, request_id: int, *values: Scalar) -> None:
        self._session.receive(encode_ok(request_id, *values))

    def error(self, request_id: int, error: EventStoreError) -> None:
        self._session.receive(encode_error(request_id, error))

    def outcomes(self, request_id: int, values: Sequence[Scalar]) -> None:
        self._session.receive(encode_outcomes(request_id, values))

    def page(self, request_id: int, following: int | None, records: bytes = b"") -> None:
        self._session.receive(encode_page(request_id, following, records))

    def scan_page(self, request_id: int, following: int, at_end: bool, records: bytes = b"") -> int:
        """Returns the payload's length, in which a subscription's credit is counted."""
        frame = encode_scan_page(request_id, following, at_end, records)
        self._session.receive(frame)
        return len(frame) - 4

    def messages(self, request_id: int, *pages: QueuePage) -> None:
        self._session.receive(b"".join(encode_messages(request_id, [], 0, pages)))

    def goodbye(self) -> None:
        self._session.receive(encode_goodbye())


def new_session(requests_max: int = 1024) -> ClientSession[PolledSignal]:
    return ClientSession("test", PolledSignal, requests_max)


def add_call(session: ClientSession[PolledSignal], request: Request) -> Call[PolledSignal]:
    """Returns a call that was added to the session."""
    call = Call(request, PolledSignal())
    session.add(call)
    return call
