"""Messages of a member that failed in place and wait for their next attempt. For trio and asyncio."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from eventstore.client.consumer.commit_window import Window
from eventstore.client.consumer.member_state import MemberState
from eventstore.errors import ProtocolError
from eventstore.flat import Scalar


class SuspendedMessages:
    """Has them handed out again when their delays are over; `wake` is called when there are some."""

    def __init__(self, state: MemberState, wake: Callable[[], None]) -> None:
        self._state = state
        self._wake = wake
        self._changed = anyio.Event()

    def suspend(self, places: Sequence[tuple[Window, int]], delays_ms: Sequence[Scalar]) -> None:
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
