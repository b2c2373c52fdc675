"""The state of a client, sans-io: requests to send, in flight, and to send again. Both clients drive one.

The rules it keeps:
- Requests leave in the order they were added, also after a reconnect; commits to one aggregate depend on it.
- After a reconnect, unanswered requests are sent again. That is safe for appends because the server knows their command ids,
  and for most others because they change nothing. A subscription continues after its last page. A request that is not safe to
  repeat fails: whether it was carried out is unknown.
- A request that a leaving server refused (ShuttingDown) counts as unanswered.
- Of the queues of a router (`routed`), what was not answered fails when the connection ends, and what was not sent with it: the
  router sends both again, each to the shard that owns it by then.
- Nothing else is sent before the hello was answered; no more requests are in flight than the server allows.
- An address must lead to the same store every time, `several` of them to one cluster: cursors and versions mean nothing to
  another one.

A request whose caller no longer waits (`wanted` is False) is not sent again, and its answer is dropped. A discarded iterator
only has to set the flag, on any thread it is collected on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic

from eventstore.client.connection_errors import another_store, interrupted, outcome_unknown, too_large
from eventstore.client.session.batch import RowBatch, RowKind
from eventstore.client.session.batches import BatchQueue
from eventstore.client.session.calls import Call, PendingRequest, S
from eventstore.client.session.command_rows import COMMANDS
from eventstore.client.session.commit_rows import COMMITS
from eventstore.client.session.message_rows import MessageRows, SendResult
from eventstore.errors import EventStoreError, ProtocolError, ShuttingDown, Unauthenticated, UnsupportedVersion
from eventstore.model import Committed, Unchanged
from eventstore.protocol.answers import Answer, AnswerDecoder, Failure, Goodbye, Ok, Outcomes
from eventstore.protocol.broker_requests import WireMessage
from eventstore.protocol.frames import LENGTH_BYTES, FrameReader
from eventstore.protocol.handshake import Welcome, read_welcome
from eventstore.protocol.limits import PROTOCOL_VERSION, REQUESTS_MAX
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.request_declaration import DECLARATIONS
from eventstore.protocol.requests import Credit, Hello, Map, Ping, Unsubscribe, WireCommand
from eventstore.records.splits import NEVER_SPLIT


class ClientSession(Generic[S]):
    """One client, over any number of connections to one server, one after the other.

    `welcome`: the server's answer to the hello of this connection, or None; `leaving`: the server is about to close it;
    `answered` counts answers, except to pings; `fatal` is set when no further connection can help. `appends` and `sends` hold
    the commits and commands that have not left; `messages` returns such a queue for each topic. `dropped` gets something, on
    any thread, when a subscription or a request that waits is wanted no longer; the next data to send then ends it. `in_parts`:
    commands may be answered in parts. `several`: there are other addresses, so what is wrong at one of them is never fatal.
    `store`: the uuid of the store that answered last, `layout` of the slots of its shard. `connections` counts them.
    """

    def __init__(
        self,
        client: str,
        make_signal: Callable[[], S],
        requests_max: int = REQUESTS_MAX,
        *,
        in_parts: bool = False,
        several: bool = False,
        token: str | None = None,
    ) -> None:
        self._client, self._requests_max, self._in_parts, self._several = client, requests_max, in_parts, several
        self._token = token
        self.appends = BatchQueue(COMMITS, make_signal)
        self.sends: BatchQueue[S, WireCommand, Committed | Unchanged] = BatchQueue(COMMANDS, make_signal)
        self._messages: dict[tuple[str, bool], BatchQueue[S, WireMessage, SendResult]] = {}
        self._routed: dict[str, BatchQueue[S, Any, Any]] = {}
        self._make_signal = make_signal
        self._last_id = self._hello_id = 0
        self._unsent: deque[PendingRequest] = deque()
        self._sent: dict[int, PendingRequest] = {}
        self._refused: set[int] = set()
        self._notices: list[bytes] = []
        self._reader = FrameReader()
        self._decode = AnswerDecoder().decode
        self._known: bytes | None = None
        self._node: int | None = None
        self.welcome: Welcome | None = None
        self.store: bytes | None = None
        self.layout = NEVER_SPLIT
        self.connections = 0
        self.leaving = False
        self._has_sent = False  # a request, on this connection
        self.answered = 0
        self.dropped: deque[object] = deque()
        self.fatal: EventStoreError | None = None

    def wait_by(self, make_signal: Callable[[], S]) -> None:
        """Has callers wait for signals that this makes from now on."""
        self._make_signal = make_signal
        for queue in self._queues:
            queue.make_signal = make_signal

    # ---- requests

    def add(self, request: PendingRequest) -> None:
        """Queues a request; `data_to_send` returns it when its turn comes."""
        self._last_id = request.request_id = self._last_id + 1
        self._unsent.append(request)

    def messages(self, topic: str, *, resend: bool) -> BatchQueue[S, WireMessage, SendResult]:
        """Returns the queue of messages for a topic. `resend`: whether to send them again if the answer was lost."""
        queue = self._messages.get((topic, resend))
        if queue is None:
            kind = MessageRows(topic, lambda: self._node)
            made = BatchQueue(kind, self._make_signal, resend=resend)
            queue = self._messages.setdefault((topic, resend), made)  # another thread may do the same
        return queue

    def routed(self, kind: RowKind[Any, Any]) -> BatchQueue[S, Any, Any]:
        """Returns a router's queue of commits or of commands."""
        queue = self._routed.get(kind.name)
        return queue or self._routed.setdefault(kind.name, BatchQueue(kind, self._make_signal, routed=True))

    @property
    def _queues(self) -> list[BatchQueue[S, Any, Any]]:
        return [self.appends, self.sends, *list(self._routed.values()), *list(self._messages.values())]

    def grant(self, subscription: PendingRequest, credit: int) -> None:
        """Lets the server send this many more bytes for a subscription. (After a reconnect, its request has the credit.)"""
        if subscription.request_id in self._sent:
            self._notices.append(encode_request(0, Credit(subscription.request_id, credit)))

    def unsubscribe(self, subscription: PendingRequest) -> None:
        """Ends a subscription, or a request that waits. Drops its pages that still arrive."""
        subscription.wanted = False
        if self._sent.pop(subscription.request_id, None) is not None:
            self._notices.append(encode_request(self._next_id(), Unsubscribe(subscription.request_id)))

    def _unsubscribe_unwanted(self) -> None:
        self.dropped.clear()
        for request in list(self._sent.values()):
            if not request.wanted and (request.lasting or _waits(request)):
                self.unsubscribe(request)

    def fail(self, error: EventStoreError) -> None:
        """Ends all requests with this error."""
        for each in (*self._sent.values(), *self._unsent):
            each.fail(error)
        self._sent.clear()
        self._unsent.clear()
        for queue in self._queues:
            queue.fail(error)

    def reset(self) -> None:
        """Starts over after the last use was interrupted at an unknown point: fails all waiters. Call it without a connection.

        Everywhere else, a request or batch that moves from one place to another is in the new one before it leaves the old, so
        that it is found here. May itself be interrupted, and called again.
        """
        self.fail(interrupted())
        for queue in self._queues:
            queue.reset()
        self._decode = AnswerDecoder().decode

    @property
    def idle(self) -> bool:
        """Whether no request waits to be sent or answered."""
        return not self._unsent and not self._sent and all(queue.idle for queue in self._queues)

    @property
    def is_waited_for(self) -> bool:
        """Whether the server owes something. To a request that watches the map it does not: the map may never change."""
        return not (all(map(_is_watch, self._owed)) and all(queue.idle for queue in self._queues))

    @property
    def may_last(self) -> bool:
        """Whether all that it owes may rightly take long: subscriptions, and requests that wait, such as pulls."""
        lasts = all(each.lasting or _waits(each) or _is_watch(each) or _is_ping(each) for each in self._owed)
        return lasts and all(queue.idle for queue in self._queues)

    @property
    def _owed(self) -> list[PendingRequest]:
        """The requests whose answers are due, also of calls that were given up: that their time is over is not an answer."""
        sent = [each for each in self._sent.values() if each.wanted or not (each.lasting or _waits(each))]
        return sent + [each for each in self._unsent if each.wanted]

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    # ---- a connection

    def connected(self) -> bytes:
        """Starts a new connection. Returns the data to send first."""
        self._hello_id = self._next_id()
        self.connections += 1
        return encode_request(self._hello_id, Hello(PROTOCOL_VERSION, self._client, self._in_parts, True, self._token, True))

    def disconnected(self) -> None:
        """Ends the connection: unanswered requests are to be sent again, in the old order, or fail if that is not safe."""
        unanswered = [request for request in self._sent.values() if request.wanted]
        again = [request for request in unanswered if request.resend or request.request_id in self._refused]
        unknown = [request for request in unanswered if not (request.resend or request.request_id in self._refused)]
        self._unsent.extendleft(reversed(again))
        self._sent.clear()
        if self._has_sent and self._routed:
            unknown += [request for request in self._unsent if isinstance(request, RowBatch) and request.routed]
            self._unsent = deque(request for request in self._unsent if not (isinstance(request, RowBatch) and request.routed))
            for queue in list(self._routed.values()):
                queue.turn_over(outcome_unknown())
        for request in unknown:
            request.fail(outcome_unknown())
        self._refused.clear()
        self._notices.clear()
        self._has_sent = False
        self._reader = FrameReader()
        self.welcome = None
        self.leaving = False

    @property
    def drained(self) -> bool:
        """Whether the server is leaving and owes no answer on this connection: close it and open another."""
        return self.leaving and all(
            request_id in self._refused or request.lasting for request_id, request in self._sent.items()
        )

    def data_to_send(self) -> bytes:
        """Returns what may be sent now."""
        appends, sends = self.appends, self.sends
        if self.welcome is None:
            return b""
        if self.dropped:
            self._unsubscribe_unwanted()
        others = [queue for queue in self._queues[2:] if queue.waiting_rows] if self._messages or self._routed else ()
        if not (appends.waiting_rows or sends.waiting_rows or others or self._unsent or self._notices):
            return b""
        for queue in (appends, sends, *others):
            while queue.waiting_rows and (batch := queue.next()):
                self.add(batch)
                queue.left(batch)
        frames, self._notices = self._notices, []
        room = min(self._requests_max, self.welcome.requests_max) - len(self._sent)
        if room <= 0:  # subscriptions are answered already, and may last for ever
            room += sum(request.lasting for request in self._sent.values())
        emptied = False
        while room > 0 and self._unsent and not self.leaving:
            request = self._unsent[0]
            request.left = True  # before it is looked whether it is wanted
            if request.wanted:
                try:
                    frame = request.encode()
                except EventStoreError as error:
                    self._unsent.popleft()  # or it would block all others
                    request.fail(error)
                    raise
                limit = self.welcome.frame_bytes_max
                if not frame:
                    request.fail(outcome_unknown())  # nobody waits for it, except its queue, whose next one may leave now
                    emptied = True
                elif len(frame) - LENGTH_BYTES > limit:
                    request.fail(too_large(len(frame) - LENGTH_BYTES, limit))
                else:
                    self._sent[request.request_id] = request
                    self._has_sent = True
                    frames.append(frame)
                    room -= not request.lasting
            self._unsent.popleft()
        data = b"".join(frames) if len(frames) != 1 else frames[0]
        return data + self.data_to_send() if emptied else data

    # ---- answers

    def receive(self, data: bytes) -> None:
        """Passes the answers in `data` to their requests.

        Raises:
            EventStoreError: an error of the connection as a whole, or a violation of the protocol. Close the connection and
                call `disconnected`.
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
            if isinstance(answer.error, UnsupportedVersion | Unauthenticated) and not self._several:
                self.fatal = answer.error
            raise answer.error
        if request_id != self._hello_id or not isinstance(answer, Ok):
            raise ProtocolError(f"HELLO was answered by {type(answer).__name__} to request {request_id}")
        welcome = read_welcome(answer.values)
        by_cluster = self._several and welcome.cluster is not None
        found = welcome.cluster or b"" if by_cluster else welcome.store
        if self._known is not None and self._known != found:
            error = another_store(self._known, found, "cluster" if by_cluster else "store")
            self.fatal = None if self._several else error
            raise error
        self._known, self.store, self.layout = found, welcome.store, welcome.layout
        self._node = welcome.node
        self.welcome = welcome

    def _answered(self, request_id: int, answer: Answer, size_bytes: int) -> None:
        request = self._sent.get(request_id)
        if request is None:
            if request_id == 0 and isinstance(answer, Failure):
                raise answer.error
            if not 0 < request_id <= self._last_id:
                raise ProtocolError(f"an answer to request {request_id}, which was never sent", value=request_id)
            return
        if not _is_ping(request):
            self.answered += 1
        if _is_shutting_down(request, answer):
            self.leaving = True
            self._refused.add(request_id)
        elif request.wanted:
            if request.receive(answer, size_bytes):
                del self._sent[request_id]
            elif isinstance(request, RowBatch) and request.parts is not None and request.parts.refused:
                self.leaving = True
                self._refused |= set() if request.parts.frame_missing else {request_id}
        elif request.lasting:
            self.unsubscribe(request)
        else:
            del self._sent[request_id]


def _waits(request: PendingRequest) -> bool:
    return isinstance(request, Call) and DECLARATIONS[type(request.request)].waits


def _is_ping(request: PendingRequest) -> bool:
    return isinstance(request, Call) and isinstance(request.request, Ping)


def _is_watch(request: PendingRequest) -> bool:
    return isinstance(request, Call) and isinstance(request.request, Map) and request.request.after > 0


def _is_shutting_down(request: PendingRequest, answer: Answer) -> bool:
    """Whether a leaving server refused the request, or a part of a batch that is safe to send again as a whole."""
    if isinstance(answer, Failure):
        return isinstance(answer.error, ShuttingDown)
    if not isinstance(answer, Outcomes) or not isinstance(request, RowBatch) or not request.resend:
        return False
    kinds, refused = answer.values[0::3], request.kind.refused
    return refused in kinds and (refused, ShuttingDown.code) in zip(kinds, answer.values[1::3], strict=True)
