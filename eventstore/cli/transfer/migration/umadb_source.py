"""UmaDB, by its client: a log of events with tags, and without aggregates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from eventstore.cli.transfer.event_lines import ParsedLine, with_tags
from eventstore.cli.transfer.migration.source import SourceRefused, SourceRow
from eventstore.errors import InvalidArgument
from eventstore.extras import advice
from eventstore.fields import without_password
from eventstore.model import NewEvent
from eventstore.tags import checked_tags

_ROWS: Final = 2_000


class UmaDbSource:
    """The events of a server, in order of position. An event has the aggregate that its tag names, or one of its own."""

    first_place: int | None = 1

    def __init__(self, address: str, prefix: str | None, aggregate_tag: str | None) -> None:
        """`prefix`: of the aggregates, where each event has one of its own. `aggregate_tag`: tags with this before their colon
        name the aggregates.
        """
        try:
            import umadb
        except ImportError:
            raise SourceRefused(f"a source in UmaDB needs its client; {advice('umadb')}") from None
        self.name = "umadb"
        self._prefix = "{umadb}-" if prefix is None else prefix
        self._tag = None if aggregate_tag is None else f"{aggregate_tag}:"
        try:
            self._client: Any = umadb.Client(address)
        except Exception as error:
            raise SourceRefused(f"umadb at {without_password(address)}: {error}") from None

    def form(self) -> Mapping[str, str]:
        """It has one form; what names the aggregates must stay the same."""
        return {"aggregate": self._prefix if self._tag is None else f"tag {self._tag}"}

    def head(self, *, paused: bool) -> int:
        """Returns the last position: they are given out in the order of commits."""
        return int(self._asked(self._client.head) or 0)

    def rows(self, after: int, upto: int) -> Iterator[list[SourceRow]]:
        """Yields events in order of position."""
        place = max(after, 0)
        while place < upto:
            start, limit = place + 1, min(_ROWS, upto - place)
            found = self._asked(lambda start=start, limit=limit: list(self._client.read(start=start, limit=limit)))
            if not found:
                return
            yield [self._row(each) for each in found]
            place = found[-1].position

    def _asked(self, ask: Any) -> Any:
        try:
            return ask()
        except Exception as error:
            raise SourceRefused(f"umadb: {error}") from None

    def _row(self, found: Any) -> SourceRow:
        place, event = int(found.position), found.event
        try:
            metadata = dict(event.metadata) or None
            made = NewEvent(event.event_type, bytes(event.data), metadata)
            command_id = f"position-{place}" if event.uuid is None else str(event.uuid)
            return SourceRow(
                place,
                ParsedLine(self._aggregate(place, event.tags), command_id, None, with_tags(made, checked_tags(event.tags))),
            )
        except (InvalidArgument, ValueError) as error:
            why = error.message if isinstance(error, InvalidArgument) else error
            raise SourceRefused(f"umadb: the event at position {place} is none here: {why}") from None

    def _aggregate(self, place: int, tags: list[str]) -> str:
        if self._tag is None:
            return f"{self._prefix}{place}"
        found = [tag for tag in tags if tag.startswith(self._tag)]
        if len(found) != 1:
            what = f"it has {len(found)} tags that begin with {self._tag}, and its aggregate is named by one"
            raise ValueError(what)
        return found[0]

    def close(self) -> None:
        """Ends the streams of the client."""
        self._client.close()
