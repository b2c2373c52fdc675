"""The gate of a memory map: any number of threads read through it, and one changes it while none of them does.

LMDB forbids to change the size of a map while a transaction of this process is open, and does not check it: a reader on another
thread would continue in memory no longer mapped. The size changes once in the life of a directory, if at all, so a reader takes
no lock. It enters itself in a set and then looks whether the map is about to change. A thread that changes it says so first and
then looks for readers. Each of these is one step of the interpreter, so at least one of the two sees the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class MapGate:
    """`with gate:` reads; `with gate.alone():` changes the map. Neither may be nested on one thread."""

    def __init__(self) -> None:
        self._readers: set[int] = set()
        self._left = threading.Event()
        self._changer = threading.Lock()
        self.changing = False

    def __enter__(self) -> None:
        me = threading.get_ident()
        assert me not in self._readers, "the inner one would leave for the outer one"
        while True:
            self._readers.add(me)
            if not self.changing:
                return
            self.__exit__()
            with self._changer:  # wait for the change
                pass

    def __exit__(self, *_: object) -> None:
        self._readers.discard(threading.get_ident())
        if self.changing:
            self._left.set()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until every reader has left, and keeps others out."""
        assert threading.get_ident() not in self._readers, "it would wait for itself"
        with self._changer:
            self.changing = True
            try:
                while self._readers:
                    self._left.wait()
                    self._left.clear()
                yield
            finally:
                self.changing = False
