"""Pools open files, maps and indexes by number: opens them on first use, and drops one above a limit.

It drops one at random from the half that was used longest ago, not always the very last: readers that walk over a few more
files than the limit, again and again, would otherwise find none of them open. Thread-safe. A dropped file stays usable for
callers that got it from the pool: it is closed when the last reference to it goes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from random import randrange
from typing import Generic, TypeVar

from eventstore.chunks.files import NotCached
from eventstore.errors import ReadFailed

Opened = TypeVar("Opened")


class OpenFiles(Generic[Opened]):
    """Keeps up to `limit` results of `open_`. `name` returns the path for error messages."""

    def __init__(self, open_: Callable[[int], Opened], limit: int, name: Callable[[int], str]) -> None:
        self._open = open_
        self._limit = limit
        self._name = name
        self._opened: OrderedDict[int, Opened] = OrderedDict()
        self._drops = 0
        self._lock = threading.Lock()

    def get(self, number: int, opened_only: bool = False) -> Opened:
        """Returns the open file. Raises ReadFailed for an OSError, and any other error of `open_`.

        With `opened_only` opens nothing: raises NotCached instead.
        """
        with self._lock:
            opened = self._opened.get(number)
            if opened is not None:
                self._opened.move_to_end(number)
                return opened
            if opened_only:
                raise NotCached
            drops = self._drops
        try:
            fresh = self._open(number)  # without the lock: a slow disk delays only callers who need this file
        except OSError as error:
            name = self._name(number)
            raise ReadFailed(f"{name}: opening it failed: {error.strerror}", file=name) from error
        with self._lock:
            if self._drops != drops:  # it may have been replaced meanwhile: good for this caller, not for later ones
                return fresh
            opened = self._opened.setdefault(number, fresh)
            if len(self._opened) > self._limit:
                del self._opened[next(islice(self._opened, randrange(len(self._opened) // 2), None))]
            return opened

    def missing(self, numbers: Iterable[int]) -> int:
        """Returns how many of these are not open."""
        with self._lock:
            return sum(number not in self._opened for number in numbers)

    def drop(self, number: int) -> None:
        """Forgets a file that was replaced or removed: the next `get` opens it again."""
        with self._lock:
            self._drops += 1
            self._opened.pop(number, None)

    def drop_through(self, number: int) -> None:
        """Forgets the files up to this number, which were removed."""
        with self._lock:
            self._drops += 1
            for old in [old for old in self._opened if old <= number]:
                del self._opened[old]

    def clear(self) -> None:
        with self._lock:
            self._drops += 1
            self._opened.clear()
