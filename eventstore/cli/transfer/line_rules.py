"""What an import asks of the events in its lines: that they fit a domain's declarations; and the marks that it gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from eventstore.cli.transfer.event_lines import LineIds, LineRefused, ParsedLine, parse_line
from eventstore.errors import EventStoreError
from eventstore.import_marks import NO_PUBLISH, NO_REACTIONS, marked
from eventstore.model import Event

if TYPE_CHECKING:
    from eventstore.domain.domain import Domain
    from eventstore.domain.encoding.event_type import EventType

_NAMED_MAX: Final = 20


def line_rules(
    reactions: bool, publish: bool, domain: str | None, parse: Callable[[str], ParsedLine] = parse_line
) -> LineRules:
    """Returns the rules of these options. `domain`: its place, such as bank:app. Raises DomainRefused: it cannot be loaded."""
    marks = ([] if reactions else [NO_REACTIONS]) + ([] if publish else [NO_PUBLISH])
    if domain is None:
        return LineRules(marks, parse=parse)
    from eventstore.domain.import_path import load

    return LineRules(marks, load(domain), domain, parse)


class LineRules:
    """`checks`: whether there is a domain that every event has to fit."""

    def __init__(
        self,
        marks: Sequence[str] = (),
        domain: Domain | None = None,
        place: str = "",
        parse: Callable[[str], ParsedLine] = parse_line,
    ) -> None:
        """`marks`: of each event (see `import_marks`). `domain`, at `place`: has the declarations of all events. `parse`: reads
        a line, or raises LineRefused.
        """
        self._parse = parse
        self._marks = marks
        self._kinds = None if domain is None else domain.event_types
        self._place = place
        self.checks = domain is not None

    def parse(self, line: str) -> ParsedLine:
        """Returns the event in a line, with its marks.

        Raises:
            LineRefused: it is no event, does not fit the domain, or cannot be marked.
        """
        return self.checked(self._parse(line))

    def checked(self, parsed: ParsedLine) -> ParsedLine:
        """Returns an event with its marks. Raises LineRefused: it does not fit the domain, or cannot be marked."""
        try:
            if self._kinds is not None:
                self._check(self._kinds, parsed)
            if self._marks:
                parsed = parsed._replace(event=marked(parsed.event, self._marks))
        except EventStoreError as error:
            raise LineRefused(error.message, LineIds(parsed.aggregate_id, parsed.command_id)) from None
        return parsed

    def _check(self, kinds: Mapping[str, EventType[object]], parsed: ParsedLine) -> None:
        format_, type_, data, metadata = parsed.event
        kind = kinds.get(type_)
        if kind is None:
            names = sorted(kinds)
            more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
            raise LineRefused(
                f"{self._place} has no event type {type_!r}; it has: {', '.join(names[:_NAMED_MAX]) or 'none'}{more}",
                LineIds(parsed.aggregate_id, parsed.command_id),
            )
        stored = (parsed.aggregate_id, 1, type_, data, metadata, parsed.command_id, parsed.time or 0, 1, format_)
        kind.decode(tuple.__new__(Event, stored))
