"""The state of a client, sans-io: what was asked, what was sent, what must be sent again. Both clients drive one.

The rules it keeps:
- Requests leave in the order they were added, after a reconnect as well; commits to one aggregate depend on it.
- After a reconnect everything unanswered is sent again. That is safe for appends because the server knows their
  command ids, and for most else because it changes nothing. A subscription goes on where its last page ended. What is not
  safe, and was not asked to be sent again all the same, fails: nobody knows whether it was carried out.
- What a leaving server refused (ShuttingDown) counts as unanswered.
- Before the hello was answered nothing else is sent; no more requests are in flight than the server allows.
- The server behind an address must be the same store every time: cursors and versions mean nothing to another one.

A request that nobody waits for any more (`wanted` is False) is not sent again, and its answer is dropped. Setting the
flag is all that a discarded iterator has to do, from whatever thread it is collected in.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from typing import Generic

from eventstore.client.appends import COMMITS
from eventstore.client.batches import Batch, BatchQueue
from eventstore.client.calls import Call, S, Waiting
from eventstore.client.messages import SendResult, TopicMessages
from eventstore.client.sends import COMMANDS
from eventstore.errors import ConnectionLost, EventStoreError, InvalidArgument, ProtocolError, ShuttingDown, UnsupportedVersion
from eventstore.model import Committed, Unchanged
from eventstore.protocol.answers import Answer, AnswerDecoder, Failure, Goodbye, Ok, Outcomes
from eventstore.protocol.broker_requests import WireMessage
from eventstore.protocol.frames import LENGTH_BYTES, FrameReader
from eventstore.protocol.handshake import Welcome, read_welcome
from eventstore.protocol.limits import PROTOCOL_VERSION, REQUESTS_MAX
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import Credit, Hello, Ping, Unsubscribe, WireCommand


class Session(Generic[S]):
    """One client, over any number of connections, one after the other, to one server.

    `welcome` is what the server said on this connection, None before it did; `leaving`: it is going to close it;
    `answered` counts answers, except to pings; `fatal` is set when no further connection can help. In `appends` and `sends`
    wait the commits and the commands that have not left; `messages` has such a queue for each topic. `left_some` is set by
    whoever drops a subscription, in any thread; it is ended then with whatever is sent next.
    """

    def __init__(self, client: str, make_signal: Callable[[], S], requests_max: int = REQUESTS_MAX) -> None:
        self._client = client
        self._requests_max = requests_max
        self.appends = BatchQueue(COMMITS, make_signal)
        self.sends: BatchQueue[S, WireCommand, Committed | Unchanged] = BatchQueue(COMMANDS, make_signal)
        self._messages: dict[tuple[str, bool], BatchQueue[S, WireMessage, SendResult]] = {}
        self._make_signal = make_signal
        self._last_id = 0
        self._hello_id = 0
        self._unsent: deque[Waiting] = deque()
        self._sent: dict[int, Waiting] = {}
        self._refused: set[int] = set()
        self._notices: list[bytes] = []
        self._reader = FrameReader()
        self._decode = AnswerDecoder().decode
        self._store: bytes | None = None
        self._node: int | None = None
        self.welcome: Welcome | None = None
        self.leaving = False
        self.answered = 0
        self.left_some = False
        self.fatal: EventStoreError | None = None

    # ---- requests

    def add(self, waiting: Waiting) -> None:
        """Queues a request; `data_to_send` has it when its turn comes."""
        waiting.request_id = self._next_id()
        self._unsent.append(waiting)

    def messages(self, topic: str, *, resend: bool) -> BatchQueue[S, WireMessage, SendResult]:
        """Where messages for a topic wait. `resend`: whether they are sent again where the answer was lost."""
        queue = self._messages.get((topic, resend))
        if queue is None:
            kind = TopicMessages(topic, lambda: self._node)
            made = BatchQueue(kind, self._make_signal, resend=resend)
            queue = self._messages.setdefault((topic, resend), made)  # another thread may ask for it as well
        return queue

    def grant(self, subscription: Waiting, credit: int) -> None:
        """The server may send so many bytes more for a subscription. (After a reconnect its request says so by itself.)"""
        if subscription.request_id in self._sent:
            self._notices.append(encode_request(0, Credit(subscription.request_id, credit)))

    def unsubscribe(self, subscription: Waiting) -> None:
        """Ends a subscription, or a pull that waits. Pages of it that are on their way are dropped."""
        subscription.wanted = False
        if self._sent.pop(subscription.request_id, None) is not None:
            self._notices.append(encode_request(self._next_id(), Unsubscribe(subscription.request_id)))

    def _unsubscribe_unwanted(self) -> None:
        self.left_some = False
        for waiting in list(self._sent.values()):
            if waiting.lasting and not waiting.wanted:
                self.unsubscribe(waiting)

    def fail(self, error: EventStoreError) -> None:
        """Nobody needs to wait any longer."""
        for each in (*self._sent.values(), *self._unsent):
            each.fail(error)
        self._sent.clear()
        self._unsent.clear()
        self.appends.fail(error)
        self.sends.fail(error)
        for queue in list(self._messages.values()):
            queue.fail(error)

    def start_over(self) -> None:
        """Whoever used it was interrupted, at whatever step: all who wait are told so, and nothing of before is left. There is
        no connection any more.

        Wherever a request or a batch goes from one place to another, it is in the new one before it leaves the old, so that it
        is found here. May itself be interrupted, and called again.
        """
        self.fail(_interrupted())
        self.appends.start_over()
        self.sends.start_over()
        for queue in list(self._messages.values()):
            queue.start_over()
        self._decode = AnswerDecoder().decode

    @property
    def idle(self) -> bool:
        """Nobody waits for anything."""
        idle = not self._unsent and not self._sent and self.appends.idle and self.sends.idle
        return idle and all(queue.idle for queue in self._messages.values())

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    # ---- a connection

    def connected(self) -> bytes:
        """A new connection is there; what to send on it first."""
        self._hello_id = self._next_id()
        return encode_request(self._hello_id, Hello(PROTOCOL_VERSION, self._client))

    def disconnected(self) -> None:
        """The connection is gone: whatever was not answered is to be sent again, in the old order."""
        unanswered = [waiting for waiting in self._sent.values() if waiting.wanted]
        again = [waiting for waiting in unanswered if waiting.resend or waiting.request_id in self._refused]
        unknown = [waiting for waiting in unanswered if not (waiting.resend or waiting.request_id in self._refused)]
        for waiting in unknown:
            waiting.fail(_outcome_unknown())
        self._unsent.extendleft(reversed(again))
        self._sent.clear()
        self._refused.clear()
        self._notices.clear()
        self._reader = FrameReader()
        self.welcome = None
        self.leaving = False

    @property
    def drained(self) -> bool:
        """The server is leaving and owes no answer on this connection: close it and look for another."""
        return self.leaving and all(
            request_id in self._refused or waiting.lasting for request_id, waiting in self._sent.items()
        )

    def data_to_send(self) -> bytes:
        """What may be sent now."""
        appends, sends = self.appends, self.sends
        if self.welcome is None:
            return b""
        if self.left_some:
            self._unsubscribe_unwanted()
        waiting_messages = [queue for queue in list(self._messages.values()) if queue.waiting] if self._messages else ()
        if not (self._unsent or self._notices or appends.waiting or sends.waiting or waiting_messages):
            return b""
        for queue in (appends, sends, *waiting_messages):
            while batch := queue.next():
                self.add(batch)
                queue.left(batch)
        frames, self._notices = self._notices, []
        room = min(self._requests_max, self.welcome.requests_max) - len(self._sent)
        if room <= 0:  # subscriptions are answered already, and may last for ever
            room += sum(waiting.lasting for waiting in self._sent.values())
        while room > 0 and self._unsent and not self.leaving:
            waiting = self._unsent[0]
            if waiting.wanted:
                try:
                    frame = waiting.encode()
                except EventStoreError as error:
                    self._unsent.popleft()  # or it would be in the way of all others
                    waiting.fail(error)
                    raise
                limit = self.welcome.frame_bytes_max
                if len(frame) - LENGTH_BYTES > limit:
                    waiting.fail(_too_large(len(frame) - LENGTH_BYTES, limit))
                else:
                    self._sent[waiting.request_id] = waiting
                    frames.append(frame)
                    room -= not waiting.lasting
            self._unsent.popleft()
        return b"".join(frames) if len(frames) != 1 else frames[0]

    # ---- answers

    def receive(self, data: bytes) -> None:
        """Hands on the answers in `data`.

        Raises:
            EventStoreError: what the server says about the connection as a whole, or that it does not keep to the
                protocol. Close the connection and call `disconnected`.
        """
        for payload in self._reader.feed(data):
            request_id, answer = self._decode(payload)
            if isinstance(answer, Goodbye):
                self.leaving = True
            elif self.welcome is None:
                self._greeted(request_id, answer)
            else:
                self._answered(request_id, answer, len(payload))
        if self._reader.failed is not None:
            raise self._reader.failed

    def _greeted(self, request_id: int, answer: Answer) -> None:
        if isinstance(answer, Failure):
            if isinstance(answer.error, UnsupportedVersion):
                self.fatal = answer.error
            raise answer.error
        if request_id != self._hello_id or not isinstance(answer, Ok):
            raise ProtocolError(f"HELLO was answered by {type(answer).__name__} to request {request_id}")
        welcome = read_welcome(answer.values)
        if self._store is not None and self._store != welcome.store:
            self.fatal = _another_store(self._store, welcome.store)
            raise self.fatal
        self._store = welcome.store
        self._node = welcome.node
        self.welcome = welcome

    def _answered(self, request_id: int, answer: Answer, size_bytes: int) -> None:
        waiting = self._sent.get(request_id)
        if waiting is None:
            if request_id == 0 and isinstance(answer, Failure):
                raise answer.error
            if not 0 < request_id <= self._last_id:
                raise ProtocolError(f"an answer to request {request_id}, which was never sent", value=request_id)
            return
        if not (isinstance(waiting, Call) and isinstance(waiting.request, Ping)):
            self.answered += 1
        if _is_shutting_down(waiting, answer):
            self.leaving = True
            self._refused.add(request_id)
        elif waiting.wanted:
            if waiting.receive(answer, size_bytes):
                del self._sent[request_id]
        elif waiting.lasting:
            self.unsubscribe(waiting)
        else:
            del self._sent[request_id]


def _is_shutting_down(waiting: Waiting, answer: Answer) -> bool:
    """Whether a leaving server refused the request; of a batch, a part of it, which must be safe to send again as a whole."""
    if isinstance(answer, Failure):
        return isinstance(answer.error, ShuttingDown)
    if not isinstance(answer, Outcomes) or not isinstance(waiting, Batch) or not waiting.resend:
        return False
    refused = (waiting.kind.refused, ShuttingDown.code)
    return refused in zip(answer.values[0::3], answer.values[1::3], strict=True)


def _outcome_unknown() -> ConnectionLost:
    return ConnectionLost(
        "the connection was lost before the answer came: it may have been carried out, or not; look before you try again",
        outcome="unknown",
    )


def _interrupted() -> ConnectionLost:
    return ConnectionLost(
        "another call of this client was interrupted before the answer came: it may have been carried out, or not; look before "
        "you try again",
        outcome="unknown",
    )


def _too_large(size: int, limit: int) -> InvalidArgument:
    return InvalidArgument(
        f"a request of {size} bytes, this server takes up to {limit}", field="frame length", limit=limit, value=size
    )


def _another_store(before: bytes, now: bytes) -> ConnectionLost:
    known, found = str(uuid.UUID(bytes=before)), str(uuid.UUID(bytes=now))
    return ConnectionLost(
        f"another store answers at this address: {found}, it was {known}; connect anew", expected=known, actual=found
    )
