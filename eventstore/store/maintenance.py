"""Sorts completed files in the background, one at a time, repairs damaged indexes, and measures what a split left behind.

Each file is sorted, then switched, then added to the directory. After each step the store answers every request: memory covers
the file until the directory does.

Files are sorted strictly in order, and a corrupt one stops the later ones. It cannot be skipped: lookups read the memory of
unsorted files first, so the earlier file in memory would hide a later file that only the directory holds, and an old version
would count as the current one. The store keeps serving, but each further file stays in memory. So `attention` names the file
and what to do about it, until the file is restored.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Protocol

import trio

from eventstore.errors import Corrupt
from eventstore.store.engine import StoreEngine
from eventstore.store.memory.cache_extension import extend, sorted_parts
from eventstore.store.memory.unsorted_tail import TailFile
from eventstore.store.read.foreign_bytes import ForeignBytes
from eventstore.store.sorted.directory_recovery import mark_proven
from eventstore.store.sorted.index_format import FORMAT
from eventstore.store.sorted.sorting import sort_file, switch

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 30.0
_MEASURE_PAUSE = 9  # times what a file took
_DAMAGED_RETRY_SECONDS_MAX = 600.0  # each retry reads the whole file


class Sorter(Protocol):
    """The steps that take time. `token` is part of the file names that `sort` writes, and unique to the process.

    Raises:
        Corrupt: the file, its index or the directory is damaged.
    """

    token: str

    async def sort(self, number: int) -> None: ...

    async def list_in_directory(self, number: int) -> None: ...

    async def prove_directory(self) -> None:
        """Reads the whole directory, and returns if it is sound. Other steps may be taken meanwhile."""

    async def idle(self) -> None:
        """Ends what is kept for the next step, which may come late; also while it is cancelled."""


class ThreadSorter:
    """Runs each step on a thread, for simulated disks, which a child process cannot see."""

    token = ""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    async def sort(self, number: int) -> None:
        await trio.to_thread.run_sync(sort_file, self._engine.files.folder, number)

    async def list_in_directory(self, number: int) -> None:
        await trio.to_thread.run_sync(self._engine.directory.add_file, self._engine.files.index(number))

    async def prove_directory(self) -> None:
        await trio.to_thread.run_sync(self._engine.directory.probe)
        await trio.to_thread.run_sync(self._engine.directory.check)

    async def idle(self) -> None:
        pass


class Maintenance:
    """Sorts completed files. Logs a failure and retries later; meanwhile the store works with the unsorted file.

    Attributes:
        stopped_at: the corrupt file that blocks the later ones, or 0.
        attention: a message for the operator about that file.
        index_attention: a message about a damaged index that cannot be rebuilt.
        foreign: how much of the log other shards hand out; measured again after a split and after a file was sorted.
    """

    def __init__(self, engine: StoreEngine, sorter: Sorter) -> None:
        self._engine, self._sorter = engine, sorter
        self._wake, self._quiet, self._damage = trio.Event(), trio.Event(), trio.Event()
        self._unmeasured = trio.Event()
        self.foreign = ForeignBytes(engine.files, lambda: engine.slot_filter)
        engine.slots_changed.append(self._measure_again)
        self._damaged: set[int] = set()
        self._perhaps_old: set[int] = set()
        self._token: trio.lowlevel.TrioToken | None = None
        engine.files.on_damage = self._note_damage
        self._writing = trio.Lock()  # of sorted files and indexes: both use the same temporary names
        self._pause = _RETRY_SECONDS
        self._rests_until = 0.0
        self.failures = 0
        self.sorted_files = 0
        self.stopped_at = 0
        self.attention: str | None = None
        self.index_attention: str | None = None

    def wake(self) -> None:
        """Wakes the sorter after a file was completed."""
        self._wake.set()

    def rest(self, seconds: float) -> None:
        """Starts no new sort for `seconds`, so other work gets the processor. A running sort continues. A file that already
        waits is not put off again, so rests in a row put none off for ever.
        """
        self._rests_until = max(self._rests_until, trio.current_time() + seconds)

    async def run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._prove)
                nursery.start_soon(self._repair_indexes)
                nursery.start_soon(self._measure)
                await self._sort_completed()
        finally:
            await self._sorter.idle()

    async def _prove(self) -> None:
        """Reads the whole directory if it was opened unproven after an unclean stop."""
        directory = self._engine.directory
        if directory.proven:
            return
        try:
            await self._sorter.prove_directory()
        except Corrupt as error:
            directory.report_damage(error)
        except Exception as error:  # it stays unproven: if this process is killed, the next start reads all of it
            _log.error("reading the whole directory failed: %s", error)
        else:
            mark_proven(directory)
            _log.info("all of the directory was read after the unclean stop; it is sound")

    async def _measure(self) -> None:
        while True:
            self._unmeasured = trio.Event()
            more = True
            while more:  # a file at a time: a store that closes does not wait for all
                await trio.sleep_until(self._rests_until)
                began = trio.current_time()
                try:
                    more = await trio.to_thread.run_sync(self.foreign.measure)
                except Exception as error:  # a figure for people is not worth a store
                    _log.error("how much of others is kept cannot be measured: %s", error)
                    more = False
                await trio.sleep(_MEASURE_PAUSE * (trio.current_time() - began))
            await self._unmeasured.wait()

    def _measure_again(self) -> None:
        self._unmeasured.set()

    def _note_damage(self, number: int) -> None:
        """Records a damaged index; readers call this on their threads."""
        self._damaged.add(number)
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._wake_index_repair)

    def _wake_index_repair(self) -> None:
        self._damage.set()

    def renew_index(self, number: int) -> None:
        """Has the index of this file built again if an older program wrote it. The file was read a moment ago, and is good."""
        if self._engine.files.headers[number - 1].sorted:
            self._perhaps_old.add(number)
            self._damage.set()

    async def _renew_indexes(self) -> None:
        while self._perhaps_old:
            number = self._perhaps_old.pop()
            try:
                files = self._engine.files
                if (await trio.to_thread.run_sync(files.index_header, files.headers[number - 1])).format == FORMAT:
                    continue
                await trio.sleep_until(self._rests_until)
                await self._write_index(number)
            except Exception as error:  # what is damaged is noted; an old index is as good as a new one
                _log.warning("the index of event file %d is of an older format, and was not built again: %s", number, error)
            else:
                _log.info("the index of event file %d has format %d now", number, FORMAT)

    async def _repair_indexes(self) -> None:
        """Rebuilds the indexes that readers found damaged, and old ones. Everything in an index follows from its event file."""
        pause = _RETRY_SECONDS
        while True:
            if not self._damaged and not self._perhaps_old:
                await self._damage.wait()
            self._damage = trio.Event()
            await self._renew_indexes()
            for number in sorted(self._damaged):
                name = self._engine.files.index_name(number)
                try:
                    await self._write_index(number)
                except Exception as error:
                    self.failures += 1
                    self.index_attention = f"{name} is damaged or incomplete, and could not be rebuilt: {error}"
                    _log.error("%s. Next attempt in %g s", self.index_attention, pause)
                    await trio.sleep(pause)
                    pause = min(2 * pause, _DAMAGED_RETRY_SECONDS_MAX)
                else:
                    self._damaged.discard(number)
                    self.index_attention, pause = None, _RETRY_SECONDS
                    _log.warning("%s was damaged or incomplete, and has been rebuilt", name)
            await self._sorter.idle()

    async def _write_index(self, number: int) -> None:
        await self._write(number)
        files = self._engine.files
        files.update(files.headers[number - 1])

    async def _sort_completed(self) -> None:
        while True:
            self._wake = trio.Event()
            while unsorted := self._unsorted():
                file = unsorted[0]  # strictly in order, see the module
                await trio.sleep_until(self._rests_until)
                try:
                    await self._sort(file)
                except Exception as error:  # disk full, child killed: the event file itself is unchanged
                    self._fail(file.number, error)
                    await trio.sleep(self._pause)
                else:
                    self.stopped_at, self.attention, self._pause = 0, None, _RETRY_SECONDS
            self._quiet.set()
            self._quiet = trio.Event()
            await self._sorter.idle()
            await self._wake.wait()

    async def wait_until_sorted(self) -> None:
        """Returns once every completed file is sorted."""
        while self._unsorted():
            await self._quiet.wait()

    def _unsorted(self) -> list[TailFile]:
        headers = self._engine.files.headers
        return [file for file in self._engine.tail.files if headers[file.number - 1].completed]

    def _fail(self, number: int, error: Exception) -> None:
        self.failures += 1
        if isinstance(error, Corrupt):
            self._pause = _RETRY_SECONDS if self.stopped_at != number else min(2 * self._pause, _DAMAGED_RETRY_SECONDS_MAX)
            self.stopped_at, self.attention = number, f"sorting stopped at event file {number}: {error}. {self._advice(error)}"
            _log.error("%s Next attempt in %g s", self.attention, self._pause)
        else:
            self.stopped_at, self.attention, self._pause = 0, None, _RETRY_SECONDS
            _log.error("sorting event file %d failed, next attempt in %g s: %s", number, self._pause, error)

    def _advice(self, error: Corrupt) -> str:
        if Path(str(error.fields["file"])).parent != self._engine.files.folder.path:
            self._engine.directory.report_damage(error)
            return "Restart: the directory is rebuilt then. Until then this file and all later ones stay in memory."
        return (
            "Restore the file from a copy (move it into place, the server may keep running); `eventstore verify` on the "
            "stopped folder lists all damage. Until then this file and all later ones stay in memory, and a restart "
            "refuses the folder."
        )

    async def _sort(self, file: TailFile) -> None:
        if not self._engine.files.headers[file.number - 1].sorted:
            await self._write_sorted(file.number)
        try:
            await self._sorter.list_in_directory(file.number)
        except Corrupt as error:
            if error.fields["file"] != self._engine.files.index_name(file.number):
                raise
            _log.warning("%s; rebuilding it", error)
            await self._write_sorted(file.number)  # the file is sorted: only its index is written
            await self._sorter.list_in_directory(file.number)
        await self._release(file)

    async def _write_sorted(self, number: int) -> None:
        await self._write(number)
        self._engine.use_sorted(number)

    async def _write(self, number: int) -> None:
        async with self._writing:
            await self._sorter.sort(number)
            await trio.to_thread.run_sync(switch, self._engine.files.folder, number, self._sorter.token)

    async def _release(self, file: TailFile) -> None:
        engine = self._engine
        await trio.to_thread.run_sync(engine.recent_aggregates)  # the last moment to learn which of this file changed last
        try:
            await self._extend_cache(file.number)
        except Exception as error:  # the next look-ups find out what is wrong
            engine.version_cache.clear()
            _log.warning("the version cache was emptied, it could not be brought up to event file %d: %s", file.number, error)
        engine.release(file)
        self.sorted_files += 1
        self._measure_again()
        _log.info("event file %d is sorted", file.number)

    async def _extend_cache(self, number: int) -> None:
        """Does what `StoreEngine.extend_cache` does, some aggregates at a time so as not to block the event loop."""
        cache, files = self._engine.version_cache, self._engine.files
        cache.begin_extension()
        parts = await trio.to_thread.run_sync(lambda: sorted_parts(files.index(number), cache))
        while (group := await trio.to_thread.run_sync(lambda: next(parts, None))) is not None:
            extend(cache, group)
