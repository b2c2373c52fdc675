"""Messages of a member that failed: reported, and if they stay in place, handed out again. For trio and asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from eventstore.client.consumer.commit_window import Window
from eventstore.client.consumer.member_state import MemberState
from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.protocol.broker_requests import BrokerRequest


class SuspendedMessages:
    """Has them handed out again when their delays are over; `wake` is called when there are some."""

    def __init__(self, state: MemberState, wake: Callable[[], None]) -> None:
        self._state = state
        self._wake = wake
        self._changed = anyio.Event()

    async def report(
        self, call: Callable[[BrokerRequest[Any]], Awaitable[Any]], reason: str, places: Sequence[tuple[Window, int]]
    ) -> None:
        """Reports that messages have failed. Raises the server's error, or ConnectionLost."""
        places = [place for place in places if not place[0].closed]  # by a heartbeat between two reports
        if not places:
            return
        try:
            answer = await call(self._state.failure_report(reason, places))
        except InvalidArgument as error:
            if error.fields.get("field") != "offset":
                raise
            if len(places) > 1:  # one was deleted with its chunk: it cannot be redelivered, and must not stop the others
                for place in places:
                    await self.report(call, reason, [place])
                return
            answer = [None]
        if self._state.ready.in_order:
            self._suspend(places, answer)
        else:
            self._state.reported(places)
        self._wake()  # a message that must be handled alone may have waited for these

    def _suspend(self, places: Sequence[tuple[Window, int]], delays_ms: Sequence[bool | int | None]) -> None:
        """Takes the server's answer to failures in place: a message without a delay has become a dead letter."""
        if len(delays_ms) != len(places):
            raise ProtocolError(f"{len(places)} failures were answered by {len(delays_ms)} delays", field="delays")
        for (window, offset), delay_ms in zip(places, delays_ms, strict=True):
            if isinstance(delay_ms, int):
                self._state.suspects.suspend(window, offset, anyio.current_time() + delay_ms / 1000)
            else:
                self._state.reported([(window, offset)])
        self._changed.set()

    def look_again(self) -> None:
        """Looks whether what held back those that are due is over."""
        if self._state.suspects.any:
            self._changed.set()

    def hand_out_due(self) -> None:
        """Hands out again those whose turn it is."""
        if self._state.hand_out_again(anyio.current_time()):
            self._wake()

    async def hand_out_again(self) -> None:
        """Hands each out again after its delay, until it is cancelled."""
        while True:
            changed = self._changed = anyio.Event()
            self.hand_out_due()
            with anyio.CancelScope(deadline=self._state.suspects.next_due(anyio.current_time())):
                await changed.wait()
