"""Forks: what holds a socket, a thread or a lock is told in the child, before `os.fork` returns there.

A child has copies of the objects of its parent, but only the thread that forked; its sockets and locked files are the parent's.
So nothing has to compare process ids in each call. A child that runs another program, as of `subprocess`, is not told.
"""

from __future__ import annotations

import logging
import os
from typing import Final, Protocol
from weakref import WeakSet

from eventstore.errors import Closed

_log: Final = logging.getLogger(__name__)


class Forkable(Protocol):
    """An object that is to be told."""

    def forked(self) -> None:
        """Is called in the child, in the thread that forked, which may be within any call of the object: of a signal's handler.

        The other threads do not exist there, and their locks stay locked: it takes none. It writes to nothing that the parent
        has open.
        """


_told: Final[WeakSet[Forkable]] = WeakSet()


def tell_of_forks(each: Forkable) -> None:
    """Has `each.forked` called in every child of this process, as long as there is the object."""
    _told.add(each)


def of_parent(what: str, instead: str) -> Closed:
    """Returns the error of what belongs to the process that this one was forked from. `instead`: what to do here."""
    parent = os.getppid()
    return Closed(f"{what} belongs to process {parent}, which this one was forked from; {instead}", process=parent)


def _tell() -> None:
    for each in list(_told):
        try:
            each.forked()
        except Exception:  # the others must be told nevertheless: they would speak on the parent's connections
            _log.exception("a bug: %r does not take a fork", each)


os.register_at_fork(after_in_child=_tell)
