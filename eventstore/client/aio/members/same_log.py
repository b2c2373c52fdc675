"""Looks, on each new connection, whether the broker still has what a member was handed. For trio and asyncio.

A broker that was restored from an older copy, or lost its unsynced end, gives the same offsets to other messages. A member that
went on where it was would skip those unnoticed. So it asks for the last message of each queue that it was handed; if that is
not there, the queue begins again at the group's offset. Before, nothing of a new connection is handed out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import anyio

from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.consumer.commit_window import Window
from eventstore.client.consumer.member_state import MemberState
from eventstore.client.consumer.reached import reached_by
from eventstore.client.session.calls import Call
from eventstore.errors import UnknownQueue, UnknownTopic
from eventstore.protocol.broker_requests import ReadMessage

_AT_ONCE: Final = 64  # messages of up to 4 MiB
_log: Final = logging.getLogger(__name__)


class SameMemberLog:
    """What a member holds, held against the log at the other end of its connection."""

    def __init__(self, connection: NetworkConnection, state: MemberState) -> None:
        self._connection = connection
        self._state = state
        self._looked_on = 0

    @property
    def is_sure(self) -> bool:
        """Whether the server at the other end of the present connection has the log that the windows are of."""
        return self._looked_on == self._connection.session.connections

    async def look(self) -> bool:
        """Closes the windows whose last message is not there. Returns whether there were any: join again, for their offsets.

        The other windows continue after their last message: what a filter left out after it may be another message by now.

        Raises:
            EventStoreError: the server's error, or ConnectionLost; call it again.
        """
        session, gone = self._connection.session, list[Window]()
        while not self.is_sure:
            on, in_hand, gone = session.connections, [each for each in self._state.windows if each.holds_more], []
            for at in range(0, len(in_hand), _AT_ONCE):
                gone += await self._gone(in_hand[at : at + _AT_ONCE])
            if session.connections == on:
                self._looked_on = on
        if gone:
            self._say(gone)
        for window in gone:
            window.close()
        for window in self._state.windows:
            window.go_back()
        return bool(gone)

    async def _gone(self, in_hand: Sequence[Window]) -> list[Window]:
        asked = list[tuple[Window, Call[anyio.Event]]]()
        try:
            for window in in_hand:
                assert window.reached is not None
                asked.append((window, Call(ReadMessage(window.topic, window.queue, window.reached.offset), anyio.Event())))
                self._connection.add(asked[-1][1])
            for _, call in asked:
                await call.done.wait()
        except BaseException:
            for _, call in asked:
                self._connection.drop(call)
            raise
        return [window for window, call in asked if not _is_there(window, call)]

    def _say(self, gone: Sequence[Window]) -> None:
        first, options = gone[0], self._state.options
        assert first.reached is not None
        _log.warning(
            "the broker does not have message %d of queue %d of %s any more, which member %s of group %s was handed%s: it was "
            "restored from an older copy, or lost messages that were not durable yet; continues at the group's offset",
            first.reached.offset,
            first.queue,
            first.topic,
            options.member,
            options.group,
            f", and those of {len(gone) - 1} other queues" if len(gone) > 1 else "",
        )


def _is_there(window: Window, call: Call[anyio.Event]) -> bool:
    try:
        answer = call.messages()
    except (UnknownTopic, UnknownQueue):
        return False
    return answer.count == 1 and reached_by(answer.records) == window.reached
