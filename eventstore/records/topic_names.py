"""Checks the names of topics and consumer groups.

A name never becomes part of a path (folders are named by the topic's number), so a name cannot lead out of the data folder, and
two names never share a folder. Only ASCII is allowed, so each name has one spelling; names that differ only in case are
different names. Names with a colon are the broker's own: `retry:GROUP` and `dead:GROUP`.
"""

from __future__ import annotations

import re
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.fields import shown

NAME_BYTES_MAX: Final = 127
RETRY: Final = "retry:"
DEAD: Final = "dead:"
_NAME: Final = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{NAME_BYTES_MAX - 1}}}")


def check_name(field: str, value: object) -> str:
    """Returns `value` if it is a valid name for a user's topic or group.

    Raises:
        InvalidArgument
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidArgument(
            f"{field} is {shown(value)}; allowed are 1 to {NAME_BYTES_MAX} of the characters A-Z a-z 0-9 . _ -, "
            "not beginning with a dot",
            field=field,
            limit=NAME_BYTES_MAX,
            value=shown(value),
        )
    return value


def is_own(topic: str) -> bool:
    """Whether the broker keeps the topic for a group: users cannot create it, send to it or delete it."""
    return ":" in topic


def retry_topic(group: str) -> str:
    return RETRY + group


def dead_topic(group: str) -> str:
    return DEAD + group
