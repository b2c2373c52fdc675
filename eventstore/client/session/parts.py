"""The outcomes of a batch whose answer comes in parts, because some of its rows take longer than others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic

from eventstore.client.session.calls import S
from eventstore.errors import ProtocolError
from eventstore.flat import Scalar
from eventstore.protocol.answers import OUTCOME_VALUES, PLACED_OUTCOME_VALUES

Values = Sequence[Scalar]
_KIND: Final = 0
_CODE: Final = 1


class BatchParts(Generic[S]):
    """`values`: the outcome of each row, as its values on the wire; None until it is there.

    Rows that a leaving server refused have none: they are sent again, to the next one. So are, after a lost connection, those
    that have none, and only those: the others are settled, and their callers have gone on.

    `refused`: rows of the frame under way that a leaving server refused. `frame_missing`: those without any answer.
    """

    def __init__(self, rows: int, withdrawn: Iterable[int] = ()) -> None:
        """`withdrawn`: rows that nobody waits for any more, and that are never sent."""
        self.values: list[Values | None] = [None] * rows
        for row in list(withdrawn):
            self.values[row] = ()
        self.refused = 0
        self.frame_missing = self.values.count(None)
        self._frame: Sequence[int] = range(rows)
        self._waiting: list[tuple[range, S]] = []

    def begin_frame(self) -> Sequence[int]:
        """Returns the rows of the next frame: those without an outcome."""
        self._frame = [row for row, values in enumerate(self.values) if values is None]
        self.frame_missing, self.refused = len(self._frame), 0
        return self._frame

    def add(self, placed: Values, refusal: tuple[Scalar, Scalar]) -> bool:
        """Takes outcomes, each preceded by its place in the frame. Returns whether all rows have one. `refusal`: first values
        of one that counts as `refused`.

        Raises:
            ProtocolError: a place is not one of the frame, or was answered before.
        """
        for start in range(0, len(placed), PLACED_OUTCOME_VALUES):
            place, values = placed[start], placed[start + 1 : start + PLACED_OUTCOME_VALUES]
            if place.__class__ is not int or not 0 <= place < len(self._frame):
                raise ProtocolError(f"an outcome of command {place!r:.30}, of {len(self._frame)} in the frame")
            row = self._frame[place]
            if self.values[row] is not None:
                raise ProtocolError(f"a second outcome of command {place}")
            self.frame_missing -= 1
            if (values[_KIND], values[_CODE]) == refusal:
                self.refused += 1
            else:
                self.values[row] = values
        self._wake()
        return not self.frame_missing and not self.refused

    def add_all(self, values: Values, refusal: tuple[Scalar, Scalar]) -> bool:
        """As `add`, for a frame that was answered as a whole."""
        placed: list[Scalar] = []
        for place, start in enumerate(range(0, len(values), OUTCOME_VALUES)):
            placed += (place, *values[start : start + OUTCOME_VALUES])
        return self.add(placed, refusal)

    def waiting(self, rows: range, make: Callable[[], S]) -> S | None:
        """Returns a signal that is set when these rows have their outcomes; None if they have."""
        if self._settled(rows):
            return None
        signal = make()
        self._waiting.append((rows, signal))
        return signal

    def _settled(self, rows: range) -> bool:
        return all(self.values[row] is not None for row in rows)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for rows, signal in waiting:
            if self._settled(rows):
                signal.set()
            else:
                self._waiting.append((rows, signal))

    def end(self) -> None:
        """Wakes everyone: no more outcomes will come."""
        waiting, self._waiting = self._waiting, []
        for _, signal in waiting:
            signal.set()
