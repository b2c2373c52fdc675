"""A subscription, sans-io: the pages that have arrived, the position to continue from after a reconnect, and its credit.

Credit is counted in bytes of payload. What the server has sent and the consumer has not taken never exceeds the window by
more than one page, also across reconnects: the credit of a new request is the window minus the pages that wait here.

After a reconnect the server may have another history: it was restored from an older copy, or lost events. So a subscription
continues after the place where its last page ended, whose event the server compares with the identity that the page said. If
it said none, the subscription continues with the last event it received, not after it, and ends with Diverged unless that event
comes first. If there was none, the server checks the event that it started after, if that has an identity; else its consumer
can compare the event that it stands at itself, whenever `resumptions` has grown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from eventstore.client.session.calls import Signal, WantedByReader
from eventstore.errors import Diverged, EventStoreError, ProtocolError, copy_error
from eventstore.event_identity import LogPosition, check_identity, event_identity
from eventstore.model import CaughtUp, Event, PersonalEvent
from eventstore.protocol.answers import Answer, Failure, Page
from eventstore.protocol.limits import CREDIT_BYTES_DEFAULT
from eventstore.protocol.reader_start import ReaderStart
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import subscribe_request
from eventstore.records.cursors import personal_in
from eventstore.records.event_filter import EventFilter
from eventstore.records.event_page import PersonalPage, decode_page, settle
from eventstore.records.splits import NEVER_SPLIT

SubscriptionItem: TypeAlias = Event | CaughtUp
_NEXT_STEP: Final = "what was derived from its events may hold some that are gone: rebuild it from the first event"


class SessionSubscription(WantedByReader):
    """One subscription of a session. `receive` sets `arrived` when there is something to take; the consumer replaces it.
    `layout`: of the slots that it reads by, once it has been requested.
    """

    lasting = True
    resend = True
    left = False

    def __init__(
        self,
        after: LogPosition | int | None,
        accepts: EventFilter,
        window_bytes: int = CREDIT_BYTES_DEFAULT,
        layout: Callable[[], int] = lambda: NEVER_SPLIT,
    ) -> None:
        """`after`: the place to begin after, or its sequence; None: the end, wherever the server finds it. `layout` of the
        shard's slots, asked for when it is first requested; a shard with another one refuses it, and ends it when it is split.
        """
        self.request_id = 0
        self.arrived: Signal | None = None
        self._accepts = accepts
        self.start = LogPosition(after) if isinstance(after, int) else after
        self._after = None if self.start is None else self.start.sequence  # the last sequence received; None: not known
        self._taken = self._after or 0  # the last sequence taken
        self._window_bytes = window_bytes
        self._pages: deque[tuple[Page, int, int | None, Event | None]] = deque()  # where a request began, with this event
        self._last: Event | LogPosition | None = None  # that was taken, or where a page ended that said its identity
        self.end: LogPosition | None = None
        """Where the page ended that was taken last; None: it did not say the identity of the event there."""
        self.personal: Sequence[PersonalEvent] = ()
        """The events with a subject of the page that was taken last, encrypted."""
        self._expected: Event | None = None  # at the beginning of the next page
        self._begins: int | None = None  # the sequence that the next page was requested after; None: where the last one ends
        self._waiting_bytes = 0
        self._owed_bytes = 0
        self._caught_up = False
        self._error: EventStoreError | None = None
        self._requests = 0
        self._layout_now = layout
        self.layout: int | None = None

    @property
    def reached(self) -> int:
        """The sequence up to which everything was taken."""
        return self._taken

    def renew(self) -> None:
        """Forgets the error that has ended it, so that it can be requested again, from another server perhaps."""
        self._error = None

    @property
    def resumptions(self) -> int:
        """How often it was requested again, after a lost connection."""
        return max(0, self._requests - 1)

    def encode(self) -> bytes:
        self._owed_bytes = 0
        self._requests += 1
        last = self._last_received()
        self._expected = last if isinstance(last, Event) else None
        start = None if self._after is None else LogPosition(self._after)
        if self._expected is not None:
            start = LogPosition(self._expected.sequence - 1)
        elif isinstance(last, LogPosition):
            start = last
        elif self.start is not None and (self.start.identity or not self.start.sequence):  # every history has these
            start = self.start
        self._after = None if start is None else start.sequence
        if self.layout is None:
            self.layout = self._layout_now()
        self._begins = self._after
        credit = max(0, self._window_bytes - self._waiting_bytes)
        request = subscribe_request(ReaderStart(start, self.layout).wire, credit, self._accepts)
        return encode_request(self.request_id, request)

    def receive(self, answer: Answer, size_bytes: int) -> bool:
        if isinstance(answer, Page) and answer.next is not None and answer.next >= (self._after or 0):
            self._after = answer.next
            self._pages.append((answer, size_bytes, self._begins, self._expected))
            self._begins = self._expected = None
            self._waiting_bytes += size_bytes
        elif isinstance(answer, Failure):
            self._error = answer.error
        else:
            self._error = ProtocolError(f"a subscription was answered by {answer!r:.100}")
        self.wake()
        return self._error is not None

    def fail(self, error: EventStoreError) -> None:
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Sets `arrived`."""
        if self.arrived is not None:
            self.arrived.set()

    @property
    def ready(self) -> bool:
        """Whether there is something to take, be it an error."""
        return bool(self._pages) or self._error is not None

    def take(self) -> list[SubscriptionItem]:
        """Returns the items of the oldest page. Raises an error only after all pages that arrived before it were taken."""
        if not self._pages:
            assert self._error is not None, "nothing has arrived"
            raise copy_error(self._error)
        page, size_bytes, begins, expected = self._pages.popleft()
        self._waiting_bytes -= size_bytes
        self._owed_bytes += size_bytes
        self._taken = self._taken if begins is None else begins
        events = self._events(page, self._taken)
        if expected is not None:
            self._check(expected, events[0] if events else None)
            del events[0]
        assert page.next is not None
        self.end = LogPosition(page.next, page.identity) if page.identity else None
        self._last = self.end or (events[-1] if events else self._last)
        items: list[SubscriptionItem] = list(events)
        self._taken = page.next
        if page.at_end and not self._caught_up:
            self._caught_up = True
            items.append(CaughtUp(page.next))
        return items

    def _events(self, page: Page, after: int) -> list[Event]:
        decoded = decode_page(page.records)
        events = list(self._accepts.select(decoded, after))
        settle(events, page.next or 0)
        self.personal = personal_in(events) if decoded.__class__ is PersonalPage else ()
        return events

    def _last_received(self) -> Event | LogPosition | None:
        """Returns the last event, or place with an identity, of what was received, taken or not; None if there was none."""
        for page, *_ in reversed(self._pages):  # what comes last in a page with records is new
            if page.identity and page.next is not None:
                return LogPosition(page.next, page.identity)
            if events := self._events(page, 0):
                return events[-1]
        return self._expected or self._last

    def _check(self, expected: Event, first: Event | None) -> None:
        try:
            check_identity("a subscription", expected.sequence, event_identity(expected), first, _NEXT_STEP)
        except Diverged as error:
            self._error = error
            self._pages.clear()
            raise

    def credit_due(self) -> int:
        """Returns the credit to grant now: none until half the window was consumed, so that grants stay rare."""
        if 2 * self._owed_bytes < self._window_bytes:
            return 0
        due, self._owed_bytes = self._owed_bytes, 0
        return due
