"""Answers the requests of a batch: each with its part of the outcomes, in one frame."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from eventstore.errors import EventStoreError
from eventstore.flat import Scalar
from eventstore.protocol import encode_error, encode_outcomes
from eventstore.protocol.limits import COMMITS_PER_FRAME_MAX, ERROR_TEXT_BYTES_MAX, FRAME_BYTES_MAX
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate

_MANY_OUTCOMES: Final = 1024
_ERROR_TEXTS_MAX: Final = 8  # message and fields of the error with the most of them, and their names
_SHORT_TEXT_BYTES_MAX: Final = FRAME_BYTES_MAX // COMMITS_PER_FRAME_MAX // _ERROR_TEXTS_MAX
_log = logging.getLogger(__name__)

assert _MANY_OUTCOMES * _ERROR_TEXTS_MAX * ERROR_TEXT_BYTES_MAX <= FRAME_BYTES_MAX


class BatchReplies:
    """The requests of a batch in order: connection, request id, how many outcomes of the batch are its answer, and its bytes.

    `values` encodes so many outcomes, which are all of a frame, as flat values. `of_commits`: the answer says how durable they
    are, to clients that ask for it.
    """

    __slots__ = ("_gate", "_values", "requests")
    of_commits: ClassVar[bool] = True

    def __init__(self, gate: Gate, values: Callable[[Sequence[Any], int], list[Scalar]]) -> None:
        self._gate = gate
        self._values = values
        self.requests: list[tuple[ServerConnection, int, int, int]] = []

    @property
    def source(self) -> object:
        """The batch's connection if it has a single one, else the batch itself."""
        first = self.requests[0][0]
        for connection, _, _, _ in self.requests:
            if connection is not first:
                return self
        return first

    def deliver(self, outcomes: Sequence[Any]) -> None:
        """Answers each request with its part of the outcomes, in one frame."""
        gate, first, durability = self._gate, 0, None
        for connection, request_id, count, _ in self.requests:
            part = outcomes[first : first + count]
            first += count
            if not connection.closed:
                try:
                    values = self._values(part, count)
                    if self.of_commits and connection.durability is not None:
                        if durability is None:
                            durability = connection.durability()
                        values += (durability,)
                    gate.answer(connection, encode_outcomes(request_id, values))
                except Exception:  # the other requests of the batch are answered
                    _log.exception("an answer failed; its connection is closed")
                    gate.drop(connection)
        gate.flush()

    def refuse(self, error: EventStoreError) -> None:
        """Answers all requests with `error`: nothing of the batch was stored."""
        for connection, request_id, _, _ in self.requests:
            self._gate.answer(connection, encode_error(request_id, error))
        self._gate.flush()

    def give_up(self) -> None:
        """Closes the connections of all requests; clients that retry learn the outcomes."""
        for connection, _, _, _ in self.requests:
            self._gate.drop(connection)


def error_text_bytes_max(outcomes: int) -> int:
    """Returns the bound on each text of an error in a frame of this many outcomes, so that any number of errors fits."""
    return ERROR_TEXT_BYTES_MAX if outcomes < _MANY_OUTCOMES else _SHORT_TEXT_BYTES_MAX
