"""Reads the files that nothing writes to any more again and again, slowly, so that rot is found while others have the bytes.

Sorted event files, and message files but the last. `verified.json` says which file is next, so that a restart continues with
it; one that is rotten is read first.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

import trio

from eventstore.chunks.documents import Document, read_document, write_document
from eventstore.chunks.files import OsFiles
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import Corrupt, EventStoreError
from eventstore.metrics import Metric, MetricSource, counter, gauge
from eventstore.server.feature import Feature
from eventstore.server.logs import get_logger
from eventstore.server.verification.verified_files import Verified
from eventstore.settings.server import ServerSettings
from eventstore.timing.shared_ticks import sleep_to_tick

DOCUMENT: Final = "verified.json"
_PAUSE_S: Final = 2.0
"""Between two passes, however little there is to read."""
_SAVE_S: Final = 60.0
_GIVE_WAY_S: Final = 600.0
_PIECE_BYTES: Final = (64 * 1024, 1024 * 1024)
T = TypeVar("T")
_log = get_logger("eventstore.server")


class Others(Protocol):
    """The other replicas of a shard."""

    async def differs(self, of: Verified, own: ChunkHeader) -> str | None:
        """Returns how the file differs from another replica's, though neither need be damaged; None: it does not, or no
        answer came.
        """

    async def mended(self, of: Verified, number: int) -> bool:
        """Puts another replica's file in the place of a rotten one, if one has it."""


class Verifying:
    """`rotten`: what is damaged now, by path."""

    def __init__(self, settings: ServerSettings, folders: Sequence[Verified], others: Others | None = None) -> None:
        self._path, self._folders, self._others = settings.data / DOCUMENT, folders, others
        self._rate = settings.verify_rate
        self._files = OsFiles()
        self._limiter = trio.CapacityLimiter(1)
        self.rotten: dict[Path, str] = {}
        self.verified_bytes = self.found = self.mended = self.passes = 0
        self.current = 0
        self._next = (0, 0)
        self._lacking: dict[Path, tuple[Verified, int]] = {}
        self._gave_way, self._gave_way_for = 0, ""
        self._saved_at = self._mended_at = -_SAVE_S
        self.news = trio.Event()
        self.feature = Feature(
            metrics=[MetricSource(VERIFYING_METRICS, lambda: self)], attention=lambda: self.attention, run=self.run
        )

    @property
    def attention(self) -> str | None:
        """What an operator has to know."""
        if not self.rotten:
            return None
        path, what = next(iter(self.rotten.items()))
        more = f", and {len(self.rotten) - 1} more files" if len(self.rotten) > 1 else ""
        return f"rot: {what}{more}; restore {path.name}, from a backup or another replica"

    async def run(self) -> None:
        """Reads until cancelled."""
        if not self._rate:
            return
        await trio.to_thread.run_sync(self._read_document)
        while True:
            before = self.verified_bytes
            for at, number in list(self._numbers()):
                if (at, number) >= self._next:
                    self._next = at, number
                    await self._verify(self._folders[at], number)
                    await self._save()
                    await self._mend()
            self._next = (0, 0)
            self.passes += self.verified_bytes > before  # not while no file is completed
            await self._save()
            await sleep_to_tick(_PAUSE_S)
            await self._mend()

    def _numbers(self) -> Iterator[tuple[int, int]]:
        """Yields the files that there have to be, and in which folder."""
        for at, each in enumerate(self._folders):
            yield from ((at, number) for number in each.numbers())

    async def _verify(self, of: Verified, number: int) -> None:
        path, self.current = of.folder.chunk_path(number), number
        rot, own = await self._rot(of, number)
        differs = None if rot is not None or own is None or self._others is None else await self._others.differs(of, own)
        if rot is not None:
            self._lacking[path] = of, number
            self._note(path, rot)
            await self._save(at_once=True)  # a restart reads it first
        elif differs is not None:
            self._note(path, f"{path} is not damaged, and differs from the leader's: {differs}")
        else:
            self.rotten.pop(path, None)
            self._lacking.pop(path, None)
            if own is not None:
                of.on_sound(number)

    def note_mended(self, files: int) -> None:
        """Counts files that were found missing, and mended, before it runs."""
        self.found, self.mended = self.found + files, self.mended + files

    async def _mend(self) -> None:
        """Has what is damaged replaced by what other replicas have."""
        if self._others is None or trio.current_time() < self._mended_at + _PAUSE_S:
            return
        for path, (of, number) in list(self._lacking.items()):
            if await self._others.mended(of, number):
                self.mended += 1
                del self.rotten[path], self._lacking[path]
                _log.warning("rot was mended", file=str(path))
                self.news.set()
        self._mended_at = trio.current_time() if self._lacking else -_PAUSE_S

    @property
    def lacking(self) -> tuple[Verified, int] | None:
        """A damaged file that another replica may have sound: the folder and the number."""
        return next(iter(self._lacking.values()), None)

    @property
    def gave_way(self) -> bool:
        """Whether this replica, leading, has handed over because of that file, and not long ago."""
        return self._lacking_name == self._gave_way_for and time.time() < self._gave_way + _GIVE_WAY_S

    @property
    def _lacking_name(self) -> str:
        return next((path.name for path in self._lacking), "")

    async def give_way(self) -> None:
        """Notes that a leader hands over because of rot: it does not soon again for the same file. Durable."""
        self._gave_way, self._gave_way_for = int(time.time()), self._lacking_name
        await self._save(at_once=True)

    async def stay(self) -> None:
        """Takes back what `give_way` noted: leadership could not be handed over now."""
        self._gave_way, self._gave_way_for = 0, ""
        await self._save(at_once=True)

    def _note(self, path: Path, rot: str) -> None:
        if path not in self.rotten:
            self.found += 1
            _log.error("rot", file=str(path), error=rot)
        self.rotten[path] = rot
        self.news.set()

    async def _rot(self, of: Verified, number: int) -> tuple[str | None, ChunkHeader | None]:
        """Reads a file. Returns what is damaged in it, and its header; neither if it is not final."""
        piece = min(max(self._rate, _PIECE_BYTES[0]), _PIECE_BYTES[1])
        try:
            check = await self._on_thread(of.check, number)
        except Corrupt as error:
            return error.message, None
        except FileNotFoundError:  # it may have been deleted, or cut off, since
            return (f"{of.folder.chunk_path(number)} is missing" if number in of.numbers() else None), None
        except OSError as error:
            unread = f"{of.folder.chunk_path(number)} cannot be read: {error.strerror}"
            return (unread if error.errno == errno.EIO else None), None
        except EventStoreError:  # none of ours
            return None, None
        with check:
            if not of.is_final(check.header):
                return None, None
            while True:
                try:
                    read = await self._on_thread(check.step, piece)
                except Corrupt as error:
                    return error.message, check.header
                except OSError as error:
                    return f"{of.folder.chunk_path(number)} cannot be read: {error.strerror}", check.header
                if not read:
                    return None, check.header
                self.verified_bytes += read
                await trio.sleep(read / self._rate)

    async def _on_thread(self, step: Callable[[int], T], value: int) -> T:
        return await trio.to_thread.run_sync(step, value, limiter=self._limiter)

    def _read_document(self) -> None:
        try:
            match read_document(self._files, self._path):
                case {"folder": int(at), "file": int(number), "gave_way": int(since), "gave_way_for": str(name)}:
                    self._next, self._gave_way, self._gave_way_for = (at, number), since, name
        except (EventStoreError, OSError):  # it is derived: without it, everything is read again
            pass

    async def _save(self, *, at_once: bool = False) -> None:
        """Notes where to continue, from time to time."""
        if not at_once and trio.current_time() < self._saved_at + _SAVE_S:
            return
        self._saved_at = trio.current_time()
        (folder, file), since, name = self._next, self._gave_way, self._gave_way_for
        document: Document = {"folder": folder, "file": file, "gave_way": since, "gave_way_for": name}
        try:
            await trio.to_thread.run_sync(write_document, self._files, self._path, document)
        except OSError as error:
            _log.warning("what was verified is not noted", error=str(error))


VERIFYING_METRICS: Final[tuple[Metric[Verifying], ...]] = (
    counter(
        "verified_bytes", "bytes of completed files that were read to find rot", lambda verifying: verifying.verified_bytes
    ),
    gauge("verified_passes", "how often all completed files were read since the start", lambda verifying: verifying.passes),
    gauge("verified_file", "the number of the file that is read, or was last", lambda verifying: verifying.current),
    counter(
        "rot_found",
        "files whose bytes are not those that were written",
        lambda verifying: verifying.found,
        "it grows: replace the disk",
    ),
    counter("rot_mended", "of them, those that another replica had", lambda verifying: verifying.mended),
    gauge("rot_files", "files that are damaged now", lambda verifying: len(verifying.rotten), "it is not 0: see `attention`"),
)
