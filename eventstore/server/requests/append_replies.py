"""Answers a batch of appends of which some wait for commands of their aggregates: the others are answered before them.

Such a request is treated as one of commands: if it takes long, a client that takes answers in parts gets the outcomes that are
there. All other requests of the batch are answered as soon as their own appends are durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from eventstore.flat import Scalar
from eventstore.server.net.gate import Gate
from eventstore.server.requests.batch_replies import BatchReplies
from eventstore.server.requests.command_replies import CommandReplies, PendingSend, ReplyValues
from eventstore.store.append import AppendOutcome

_log = logging.getLogger(__name__)

EncodeReply: TypeAlias = Callable[[Sequence[AppendOutcome], int], list[Scalar]]


class AppendReplies(BatchReplies):
    __slots__ = ("_late", "_places")

    def __init__(self, gate: Gate, values: EncodeReply, late: CommandReplies) -> None:
        super().__init__(gate, values)
        self._late = late
        self._places: list[tuple[PendingSend, int]] = []

    def wait_for(self, places: Sequence[int]) -> None:
        """Begins to answer in parts, after a while, the requests to which these places of the batch belong."""
        pending = self._pending()
        for request in {pending[place][0]: None for place in places}:
            if request.connection.in_parts:
                self._late.expect(request)

    def deliver_some(self, places: Sequence[int], outcomes: Sequence[AppendOutcome]) -> None:
        """Takes outcomes; a request is answered with its last one."""
        pending = self._pending()
        for place, outcome in zip(places, outcomes, strict=True):
            request, own = pending[place]
            try:
                self._late.put(request, own, cast("ReplyValues", tuple(self._values((outcome,), request.text_bytes_max))))
            except Exception:  # the other requests of the batch are answered
                _log.exception("an answer failed; its connection is closed")
                self._gate.drop(request.connection)
        self._late.flush()

    def _pending(self) -> list[tuple[PendingSend, int]]:
        if not self._places:
            for connection, request_id, count in self.requests:
                request = PendingSend(connection, request_id, count)
                self._places += [(request, place) for place in range(count)]
        return self._places
