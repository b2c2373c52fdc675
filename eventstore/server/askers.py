"""The askers of a batch: whoever asked for a part of it gets the outcomes of that part, in one frame."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from eventstore.errors import EventStoreError
from eventstore.flat import Scalar
from eventstore.protocol import encode_error, encode_outcomes
from eventstore.protocol.limits import COMMITS_PER_FRAME_MAX, ERROR_TEXT_BYTES_MAX, FRAME_BYTES_MAX
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate

_MANY_OUTCOMES: Final = 1024
_ERROR_TEXTS_MAX: Final = 8  # message and fields of an error with the most of them, and their names
_SHORT_TEXT_BYTES_MAX: Final = FRAME_BYTES_MAX // COMMITS_PER_FRAME_MAX // _ERROR_TEXTS_MAX
_log = logging.getLogger(__name__)

assert _MANY_OUTCOMES * _ERROR_TEXTS_MAX * ERROR_TEXT_BYTES_MAX <= FRAME_BYTES_MAX


def error_text_bytes_max(outcomes: int) -> int:
    """The errors of a frame of many outcomes are cut shorter, so that however many there are, they fit into it."""
    return ERROR_TEXT_BYTES_MAX if outcomes < _MANY_OUTCOMES else _SHORT_TEXT_BYTES_MAX


class Askers:
    """`values` makes the flat values of the outcomes of a part, with texts of errors of at most the bytes it is told."""

    __slots__ = ("_gate", "_values", "requests")

    def __init__(self, gate: Gate, values: Callable[[Sequence[Any], int], list[Scalar]]) -> None:
        self._gate = gate
        self._values = values
        self.requests: list[tuple[Connection, int, int]] = []

    @property
    def source(self) -> object:
        """Who is alone in it, if somebody is."""
        lone = self.requests[0][0]
        return lone if all(connection is lone for connection, _, _ in self.requests) else self

    def deliver(self, outcomes: Sequence[Any]) -> None:
        gate, first = self._gate, 0
        for connection, request_id, count in self.requests:
            connection.owed -= 1
            part = outcomes[first : first + count]
            first += count
            if not connection.closed:
                try:
                    gate.send(connection, encode_outcomes(request_id, self._values(part, error_text_bytes_max(count))))
                except Exception:  # the others of this batch get their answers
                    _log.exception("an answer failed; its connection is closed")
                    gate.drop(connection)
        gate.flush()

    def refuse(self, error: EventStoreError) -> None:
        """None of it was taken."""
        for connection, request_id, _ in self.requests:
            connection.owed -= 1
            self._gate.send(connection, encode_error(request_id, error))
        self._gate.flush()

    def give_up(self) -> None:
        """Nobody will be answered: whoever sends the same commits again learns what became of them."""
        for connection, _, _ in self.requests:
            self._gate.drop(connection)
