"""Limits how many sessions or open pages each identity may have, and all together, so that one token, given to many or stolen,
cannot lock the others out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from eventstore.errors import Overloaded

K = TypeVar("K")


def gives_way(held: Mapping[K, str | None], name: str | None, *, each_max: int, all_max: int, what: str) -> K | None:
    """Returns which of the held places, ordered from the oldest, gives way to one more of `name`; None: there is room.

    An identity at its own limit gives way to itself. If all places are taken, the identity with the most places gives way. A
    `name` of None (identities are off) stands for everyone, who has no limit of its own.

    Raises:
        Overloaded: all places are taken, each by another identity.
    """
    own = [key for key, each in held.items() if each == name]
    if name is not None and len(own) >= each_max:
        return own[0]
    if len(held) < all_max:
        return None
    most, count = Counter(held.values()).most_common(1)[0]
    if len(own) == count:
        return own[0]
    if count == 1:
        raise Overloaded(f"{all_max} {what}, the limit of a console", limit=all_max)
    return next(key for key, each in held.items() if each == most)
