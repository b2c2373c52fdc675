"""Ports that a test names before something listens there."""

from __future__ import annotations

import itertools
import random
import socket
from contextlib import ExitStack, suppress
from typing import Final

_FIRST: Final = 15_000
_COUNT: Final = 16_000
"""Below those that the kernel gives to connections, and to listeners that name none: it gives hundreds a second away here."""
_APART: Final = 37
"""No two answers of a process overlap, also with what is `above`, until it has been asked 16,000 times."""
_places = itertools.count(random.SystemRandom().randrange(_COUNT), _APART)


def free_port(*above: int) -> int:
    """Returns a port on which nothing listens, nor on those that are this far `above` it."""
    while True:
        port = _FIRST + next(_places) % _COUNT
        with ExitStack() as taken, suppress(OSError):
            for each in (0, *above):
                taken.enter_context(socket.create_server(("127.0.0.1", port + each)))
            return port
