"""Places in the log that are known by their name: a subscription may begin at the end, wherever that is by then."""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

from eventstore.fields import check_int
from eventstore.model import VERSION_MAX


class Position(enum.Enum):
    """Values that `subscribe` takes instead of a sequence."""

    END = "end"


END: Final = Position.END

After: TypeAlias = int | Position


def start_of(after: After) -> int | None:
    """Returns the sequence to begin after; None: the last one.

    Raises:
        InvalidArgument: neither a sequence nor `END`.
    """
    return None if after is END else check_int("after", after, 0, VERSION_MAX)
