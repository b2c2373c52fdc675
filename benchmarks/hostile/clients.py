"""Hostile clients, each a process: `python -m benchmarks.hostile.clients KIND ADDRESS`. It runs until it is killed.

It gives way to the others on the processor (nice 19), as one on a machine of its own would: what is measured is what it takes
from the server. What it gets back is read and thrown away.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Final

from benchmarks.hostile import commands, events, floods, messages, scrapers, visits
from benchmarks.hostile.connections import Client, Kinds, ready_calls, say_ready
from benchmarks.hostile.floods import FLOODS, Flood


def _busy(_: str) -> None:
    """A processor that computes, without a connection: what the machine takes, and not the server."""
    say_ready()
    while True:
        pass


def _flood(flood: Flood, address: str) -> None:
    first = floods.prepare(flood, address)
    client = Client(address).socket
    client.sendall(first)
    floods.send(flood, client.sendall)


KINDS: Final[Kinds] = {
    "a busy processor": _busy,
    **visits.KINDS,
    **events.KINDS,
    **messages.KINDS,
    **commands.KINDS,
    **scrapers.KINDS,
    **{name: partial(_flood, flood) for name, flood in FLOODS.items()},
}


def begin(kind: str, address: str) -> None:
    os.nice(19)
    KINDS[kind](address)


class Forked:
    """A hostile client, from a process that has imported all that they need: most of a second less for each."""

    _fork: Final = multiprocessing.get_context("forkserver")
    _fork.set_forkserver_preload([__name__])

    def __init__(self, kind: str, address: str) -> None:
        ready, far = self._fork.Pipe(duplex=False)
        self._process = self._fork.Process(target=_begin_forked, args=(kind, address, far))
        self._process.start()
        far.close()
        with ready, suppress(EOFError):
            ready.recv()

    @property
    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _begin_forked(kind: str, address: str, ready: multiprocessing.connection.Connection) -> None:
    ready_calls(partial(ready.send, None))
    begin(kind, address)


if __name__ == "__main__":
    begin(*sys.argv[1:])
