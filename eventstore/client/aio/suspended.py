"""Messages of a member that failed in place and wait for their next attempt. For trio and asyncio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count

import anyio

from eventstore.client.consumer.commit_window import Window
from eventstore.client.consumer.member_state import MemberState
from eventstore.errors import ProtocolError
from eventstore.flat import Scalar


class SuspendedMessages:
    """Holds them until their delays are over; `wake` is called when one may be handed out again."""

    def __init__(self, state: MemberState, wake: Callable[[], None]) -> None:
        self._state = state
        self._wake = wake
        self._due: list[tuple[float, int, Window, int]] = []  # a heap by time
        self._numbers = count()  # windows have no order
        self._changed = anyio.Event()

    def suspend(self, places: Sequence[tuple[Window, int]], delays_ms: Sequence[Scalar]) -> None:
        """Takes the server's answer to failures in place: a message without a delay has become a dead letter."""
        if len(delays_ms) != len(places):
            raise ProtocolError(f"{len(places)} failures were answered by {len(delays_ms)} delays", field="delays")
        for (window, offset), delay_ms in zip(places, delays_ms, strict=True):
            if not isinstance(delay_ms, int):
                self._state.reported([(window, offset)])
                continue
            self._state.suspended(window, offset)
            heappush(self._due, (anyio.current_time() + delay_ms / 1000, next(self._numbers), window, offset))
        self._changed.set()

    async def hand_out_again(self) -> None:
        """Hands each out again after its delay, until it is cancelled."""
        while True:
            changed = self._changed = anyio.Event()
            while self._due and self._due[0][0] <= anyio.current_time():
                _, _, window, offset = heappop(self._due)
                self._state.again(window, offset)
                self._wake()
            with anyio.CancelScope(deadline=self._due[0][0] if self._due else float("inf")):
                await changed.wait()
