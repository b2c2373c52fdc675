"""What a migration reads: rows of another store, in the order of their places there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from eventstore.cli.transfer.event_lines import ParsedLine
from eventstore.errors import EventStoreError


class SourceRefused(EventStoreError):
    """The source cannot be read, or not without a guess; the message says what to do."""


class SourceRow(NamedTuple):
    """An event of the source. `place`: its position there. `parsed.version`: of its aggregate, from 1 as here; 0: the source
    has no versions. `parsed.command_id`: its id there.
    """

    place: int
    parsed: ParsedLine


class Source(Protocol):
    """A store that events are copied from."""

    @property
    def name(self) -> str:
        """What it is, for errors and for the name of the checkpoint."""
        ...

    @property
    def first_place(self) -> int | None:
        """The place of a first event whose later ones have no gaps, unless some are missing; None: places always have gaps."""
        ...

    def form(self) -> Mapping[str, str]:
        """Returns the names and types of what is read of each event. Another form is another source."""
        ...

    def head(self, *, paused: bool) -> int:
        """Returns the last place, behind which nothing will appear any more. `paused`: nobody writes there.

        Raises:
            SourceRefused: this cannot be said of a source that is written.
        """
        ...

    def rows(self, after: int, upto: int) -> Iterator[list[SourceRow]]:
        """Yields the rows behind one place, up to another, some thousands at a time.

        Raises:
            SourceRefused: a row is not an event.
        """
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...
