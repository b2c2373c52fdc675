"""KurrentDB, by its client: the events of all streams that are not the server's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from eventstore.cli.transfer.event_lines import ParsedLine, json_event
from eventstore.cli.transfer.migration.source import SourceRefused, SourceRow
from eventstore.errors import InvalidArgument
from eventstore.extras import advice
from eventstore.fields import without_password
from eventstore.model import NewEvent, micros

_ROWS: Final = 2_000
_JSON: Final = "application/json"
_SYSTEM: Final = "$"
_WITHOUT: Final = (r"\$.+",)
"""Types that are left out. The client's own default would also leave out any event of the type `Result`."""


class KurrentDbSource:
    """The events of a server, in order of commit position: places always have gaps."""

    first_place: int | None = None

    def __init__(self, address: str) -> None:
        try:
            from kurrentdbclient import KurrentDBClient
        except ImportError:
            raise SourceRefused(f"a source in KurrentDB needs its client; {advice('kurrentdb')}") from None
        self.name = "kurrentdb"
        try:
            self._client: Any = KurrentDBClient(uri=address)
        except Exception as error:
            why = str(error).replace(address, without_password(address))  # some of its errors quote the address
            raise SourceRefused(f"kurrentdb: {why}") from None

    def form(self) -> Mapping[str, str]:
        """It has one form."""
        return {}

    def head(self, *, paused: bool) -> int:
        """Returns the last commit position: they are given out in the order of commits."""
        try:
            return int(self._client.get_commit_position(filter_exclude=_WITHOUT))
        except Exception as error:
            raise SourceRefused(f"kurrentdb: {error}") from None

    def rows(self, after: int, upto: int) -> Iterator[list[SourceRow]]:
        """Yields events in order of commit position, those at the last one again: events of one append may have the same."""
        rows: list[SourceRow] = []
        try:
            for found in self._client.read_all(commit_position=None if after < 0 else after, filter_exclude=_WITHOUT):
                place = int(found.commit_position)
                if place > upto:
                    break
                if place >= after and not found.stream_name.startswith(_SYSTEM):
                    rows.append(self._row(place, found))
                if len(rows) >= _ROWS:
                    yield rows
                    rows = []
        except SourceRefused:
            raise
        except Exception as error:
            raise SourceRefused(f"kurrentdb: {error}") from None
        if rows:
            yield rows

    def _row(self, place: int, found: Any) -> SourceRow:
        try:
            event = self._event(found)
        except (InvalidArgument, ValueError) as error:
            raise SourceRefused(f"kurrentdb: event {found.id} at {place} is none here: {error}") from None
        time = None if found.recorded_at is None else micros(found.recorded_at)
        return SourceRow(place, ParsedLine(found.stream_name, str(found.id), time, event, found.stream_position + 1))

    def _event(self, found: Any) -> NewEvent:
        if found.content_type != _JSON:
            return NewEvent(found.type, found.data, found.metadata or None)
        return json_event(found.type, found.data.decode(), found.metadata.decode() if found.metadata else None)

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()
