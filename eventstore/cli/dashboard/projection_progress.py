"""Shows the progress of a projection: a bar on a terminal, a line from time to time anywhere else."""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from eventstore.cli.terminal.output import ends_text, meter, print_line, print_note
from eventstore.cli.terminal.shard_rows import of_shard
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.cli.terminal.output import Meter
    from eventstore.domain.projections.projector import Progress

_REDRAW_SECONDS: Final = 0.2
_LINE_SECONDS: Final = 10.0
_SPEED_SECONDS: Final = 1.0


class ProjectionProgress:
    """Counts every batch, and redraws at an interval, so that showing progress costs next to nothing."""

    def __init__(self, name: str, bar: bool | None, *, follows: bool) -> None:
        import sys

        self.name = name
        self._follows = follows
        self._drawn = sys.stderr.isatty() if bar is None else bar
        self._meter: Meter | None = None
        self._open = ExitStack()
        self._events = self._rows = self._total = self._parked = 0
        self._checkpoint: int | None = None
        self._ends: dict[int, int] = {}  # the checkpoints of shards, which have no sequence in common
        self._caught_up = self._dirty = False
        self._since: tuple[float, int] | None = None  # when and where the first batch was written
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._meter = self._open.enter_context(meter(self.name, self._drawn))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._draw()
        self._open.close()

    def begin(self, total: int) -> None:
        """Starts the clock. `total`: the sequence of the last event."""
        self._total, self._began = total, time.monotonic()

    def advance(self, progress: Progress) -> None:
        """Counts a written batch."""
        self._events += progress.events
        self._rows += progress.rows
        self._checkpoint, self._dirty, self._parked = progress.checkpoint, True, progress.parked_keys
        self._since = self._since or (time.monotonic(), progress.checkpoint)
        if progress.shard is not None:
            self._ends[progress.shard] = progress.sequence
        for key, sequence, error in progress.parked:
            print_note(f"{self.name}: parked key {key!r} at sequence {sequence}{of_shard(progress.shard)}: {error}")
        self._total = max(self._total, progress.checkpoint)
        if progress.caught_up and not progress.beside:
            self._caught_up, self._total = True, progress.checkpoint
            if self._follows and not self._drawn:
                print_note(f"{self.name}: caught up at {self._place()}; following (Ctrl-C ends)")
                self._dirty = False

    async def redraw(self) -> None:
        """Draws changes until cancelled."""
        import trio

        while True:
            await trio.sleep(_REDRAW_SECONDS if self._drawn else _LINE_SECONDS)
            if self._dirty:
                self._draw() if self._drawn else print_note(f"{self.name}: {self._words()}")
                self._dirty = False

    def conclude(self) -> None:
        """Prints the result to standard output."""
        if self._checkpoint is not None:
            print_line(f"{self.name}: {self._words()}; complete up to {self._place()}")

    def _place(self) -> str:
        return ends_text(self._ends) if self._ends else f"sequence {self._checkpoint}"

    def _draw(self) -> None:
        assert self._meter is not None
        state = "following, " if self._caught_up and self._follows else ""
        self._meter.update(self._checkpoint or 0, self._total or None, state + self._words())

    def _words(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-6)
        speed = "" if self._caught_up and self._follows else f" ({self._events / seconds:,.0f} events/s)"
        count = f"{self._checkpoint or 0:,} of {self._total:,}"
        position = "" if self._caught_up else f", {count} events" if self._ends else f", at sequence {count}"
        parked = f", {counted(self._parked, 'key')} parked (--retry-parked)" if self._parked else ""
        return f"{counted(self._events, 'event')}{speed}, {counted(self._rows, 'row')} written{position}{self._left()}{parked}"

    def _left(self) -> str:
        """Returns in how many seconds it will have caught up, at the speed so far."""
        if self._caught_up or self._since is None or self._checkpoint is None:
            return ""
        seconds, done = time.monotonic() - self._since[0], self._checkpoint - self._since[1]
        if seconds < _SPEED_SECONDS or done <= 0 or self._checkpoint >= self._total:
            return ""
        return f", about {seconds * (self._total - self._checkpoint) / done:,.0f} s left"
