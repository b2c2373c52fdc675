"""Keeps silences in a file, so that a silence outlives its process.

The file says until when, by the wall clock, since the monotonic clock restarts with the machine; and for how long, so that a
clock that is set back makes no silence longer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio

from eventstore.alarms.watch import Silence
from eventstore.chunks.documents import Tree, read_tree, write_document
from eventstore.chunks.files import OsFiles
from eventstore.errors import Corrupt
from eventstore.timing.shared_ticks import sleep_to_tick

SILENCES: Final = "silences.json"
_US: Final = 1_000_000
_log = logging.getLogger(__name__)


class KeptSilences:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten: Tree | None = None
        self._noted = trio.Event()
        self.attention: str | None = None

    def read(self, now: float, wall_us: int) -> dict[str, Silence]:
        """Returns the silences that have not ended. If the file cannot be read, nothing is silenced, and the log says so: an
        alarm too many is better than none.
        """
        try:
            found: Any = read_tree(OsFiles(), self._path)
            return _read(found, now, wall_us)
        except FileNotFoundError:
            return {}
        except (Corrupt, OSError, ArithmeticError, ValueError, TypeError, KeyError) as error:
            _log.warning("%s cannot be read, so no alarm is silenced: %s", self._path, error)
            return {}

    def note(self, silences: Mapping[str, Silence], now: float) -> None:
        """Has these silences written; does not wait for a disk."""
        self._unwritten = {
            name: {"until": each.until_us, "seconds": each.until - now, "who": each.who, "why": each.why}
            for name, each in silences.items()
        }
        self._noted.set()

    async def run(self, again_s: float) -> None:
        """Writes noted silences, and repeats failed writes every `again_s` seconds, until cancelled. No evaluation waits for
        it.
        """
        while True:
            await self._noted.wait()
            self._noted = trio.Event()
            await trio.to_thread.run_sync(self.write)  # not abandoned: the last write, at the end, is of the same files
            if self._unwritten is not None:
                self._noted.set()
                await sleep_to_tick(again_s)

    def write(self) -> None:
        """Replaces the file if anything was noted; blocks, for a thread. A failed write is reported, and tried again."""
        document = self._unwritten
        if document is None:
            return
        try:
            write_document(OsFiles(), self._path, document)
        except OSError as error:
            if self.attention is None:
                _log.warning("%s cannot be written: %s", self._path, error)
            self.attention = f"a restart ends the silence of alarms: {self._path} cannot be written ({error.strerror})"
            return
        self.attention = None
        if self._unwritten is document:  # nothing was noted meanwhile
            self._unwritten = None


def _read(found: Any, now: float, wall_us: int) -> dict[str, Silence]:
    kept = {}
    for name, each in found.items():
        rest_s = min((int(each["until"]) - wall_us) / _US, float(each["seconds"]))
        if rest_s > 0:
            kept[name] = Silence(now + rest_s, wall_us + int(rest_s * _US), str(each["who"]), str(each["why"]))
    return kept
