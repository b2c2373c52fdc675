"""Ports that a test names before something listens there."""

from __future__ import annotations

import atexit
import itertools
import random
import socket
from contextlib import ExitStack, suppress
from typing import Final

_FIRST: Final = 15_000
_COUNT: Final = 16_000
"""Below those that the kernel gives to connections, and to listeners that name none: it gives hundreds a second away here."""
_APART: Final = 37
_places = itertools.count(random.SystemRandom().randrange(_COUNT), _APART)
_reserved = ExitStack()
"""Holds the reservations until this process ends."""
atexit.register(_reserved.close)


def free_port(*above: int) -> int:
    """Returns a port on which nothing listens, nor on those that are this far `above` it. No other process that runs tests is
    given one of them until this one ends.
    """
    while True:
        port = _FIRST + next(_places) % _COUNT
        with ExitStack() as taken, ExitStack() as reserved, suppress(OSError):
            for each in (0, *above):
                reserved.enter_context(_reservation(port + each))
                taken.enter_context(socket.create_server(("127.0.0.1", port + each)))
            _reserved.enter_context(reserved.pop_all())
            return port


def _reservation(port: int) -> socket.socket:
    """Returns a socket with an abstract name (unix(7)), which the kernel gives to one process and frees when that ends.

    Raises:
        OSError: another process has it.
    """
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0eventstore-test-port-{port}")
    except OSError:
        reservation.close()
        raise
    return reservation
