"""One row of the list of aggregates, and which rows a page of it holds. The embedded store, the clients and the server share
the checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from eventstore.fields import check_int, check_text

AGGREGATES_PER_PAGE_MAX: Final = 1_000
"""A page is made in one go: a few milliseconds on a thread, and at most 270 KB."""


class AggregateInfo(NamedTuple):
    """An aggregate, and the version of its last event."""

    aggregate_id: str
    version: int


@dataclass(frozen=True, slots=True)
class IdRange:
    """The ids that begin with `prefix` and come after `after`, in the order of their bytes in UTF-8.

    Python orders texts by code points, which is the same order.
    """

    prefix: str
    after: str

    @property
    def low(self) -> str:
        """The smallest id that may be in the range."""
        return max(self.prefix, self.after)

    def holds(self, aggregate_id: str) -> bool:
        return aggregate_id > self.after and aggregate_id.startswith(self.prefix)

    def ends_before(self, aggregate_id: str) -> bool:
        """Whether neither this id nor a larger one is in the range."""
        return aggregate_id > self.prefix and not aggregate_id.startswith(self.prefix)


def id_range(prefix: str | None, after: str | None, limit: int) -> IdRange:
    """Returns the range for a user's arguments, of which `limit` ids are wanted.

    Raises:
        InvalidArgument
    """
    check_int("limit", limit, 1, AGGREGATES_PER_PAGE_MAX)
    return IdRange(
        "" if prefix is None else check_text("prefix", prefix, 0), "" if after is None else check_text("after", after, 0)
    )
