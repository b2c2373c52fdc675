"""Where a reader begins in the log of a store or shard, as READ_ALL and SUBSCRIBE name it in `after`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple, Self

from eventstore.errors import InvalidArgument
from eventstore.event_identity import LogPosition
from eventstore.fields import check_int, shown
from eventstore.model import VERSION_MAX
from eventstore.records.splits import NEVER_SPLIT

_LAYOUT: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_AT: Final = "@"
_KEPT_MAX: Final = 256


class ReaderStart(NamedTuple):
    """`place`: to begin after; None: the end, wherever that is. `layout`: by which its shard got the slots that it reads by."""

    place: LogPosition | None
    layout: int = NEVER_SPLIT

    @property
    def wire(self) -> int | str | None:
        """The value of `after`: a sequence where that says it all."""
        if self.layout != NEVER_SPLIT:
            return f"{'' if self.place is None else self.place}{_AT}{self.layout}"
        if self.place is None:
            return None
        return str(self.place) if self.place.identity else self.place.sequence

    @classmethod
    @lru_cache(_KEPT_MAX, typed=True)  # True is not 1
    def parse(cls, field: str, value: object) -> Self:
        """Reads what `wire` returns. Raises InvalidArgument about the field.

        What was read is kept: a request is checked when it comes, and read when it is taken.
        """
        if not isinstance(value, str):
            return cls(None if value is None else LogPosition(check_int(field, value, 0, VERSION_MAX)))
        place, at, layout = value.partition(_AT)
        if not at:
            return cls(LogPosition.parse(field, place))
        if not _LAYOUT.fullmatch(layout):
            raise InvalidArgument(
                f"{field} is {shown(value)}, expected a place, @ and a layout", field=field, value=shown(value)
            )
        return cls(LogPosition.parse(field, place) if place else None, check_int(field, int(layout), 1, VERSION_MAX))

    @property
    def stored(self) -> LogPosition:
        """The place of a read of what is stored, which cannot begin at its end."""
        assert self.place is not None, "the request was checked"
        return self.place


def check_reader_start(field: str, value: object) -> None:
    """Raises InvalidArgument unless it is one, at the end perhaps."""
    ReaderStart.parse(field, value)


def check_stored_start(field: str, value: object) -> None:
    """As `check_reader_start`; not at the end."""
    if ReaderStart.parse(field, value).place is None:
        raise InvalidArgument(f"{field} is {shown(value)}, which is the end; only SUBSCRIBE begins there", field=field)
