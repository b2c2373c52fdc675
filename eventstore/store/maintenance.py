"""Sorting in the background: completed files, one at a time, in a child process; then the switch, then the directory.

In between each step leaves a store that answers everything: memory covers the file until the directory does.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import uuid
from itertools import islice
from pathlib import Path
from typing import Protocol

import trio

from eventstore.store.engine import Engine
from eventstore.store.sorting import sort_file, switch
from eventstore.store.tail import TailFile

_log = logging.getLogger(__name__)
_FORGET_AT_ONCE = 2_000
_RETRY_SECONDS = 30.0
_SAID_BYTES_MAX = 4096


class Sorter(Protocol):
    """The two steps that cost time. `token` is part of the names of what `sort` writes: another process uses another."""

    token: str

    async def sort(self, number: int) -> None: ...

    async def list_in_directory(self, number: int) -> None: ...


class ChildSorter:
    """Runs each step in a process of its own."""

    def __init__(self, data: Path, directory: Path) -> None:
        self._data = data
        self._directory = directory
        self.token = uuid.uuid4().hex

    async def sort(self, number: int) -> None:
        await self._run("sort", number)

    async def list_in_directory(self, number: int) -> None:
        await self._run("list", number)

    async def _run(self, step: str, number: int) -> None:
        command = [
            sys.executable, "-m", "eventstore.store.sorting_process", step, str(self._data), str(number),
            str(self._directory), self.token,
        ]  # fmt: skip
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stderr is not None
        said = b""
        try:
            async for line in process.stderr:
                said = (said + line)[-_SAID_BYTES_MAX:]
            await process.wait()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                await process.stdin.aclose()
                await process.stderr.aclose()
        if process.returncode:
            raise RuntimeError(said.decode(errors="replace").strip() or f"exit code {process.returncode}")


class ThreadSorter:
    """Runs each step on a thread: for simulated disks, which another process cannot see."""

    token = ""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def sort(self, number: int) -> None:
        await trio.to_thread.run_sync(sort_file, self._engine.files.folder, number)

    async def list_in_directory(self, number: int) -> None:
        await trio.to_thread.run_sync(self._engine.directory.add_file, self._engine.files.index(number))


class Maintenance:
    """Sorts what is completed. A failure is logged and tried again later; the store goes on unsorted meanwhile."""

    def __init__(self, engine: Engine, sorter: Sorter) -> None:
        self._engine = engine
        self._sorter = sorter
        self._wake = trio.Event()
        self._quiet = trio.Event()
        self.failures = 0
        self.sorted_files = 0

    def wake(self) -> None:
        """Something was completed."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake = trio.Event()
            while unsorted := self._unsorted():
                file = unsorted[0]  # strictly in order: a later file in the directory would hide an earlier one in memory
                try:
                    await self._sort(file)
                except Exception as error:  # disk full, killed child: the event file itself is untouched
                    self.failures += 1
                    _log.error("sorting event file %d failed, tried again in %g s: %s", file.number, _RETRY_SECONDS, error)
                    await trio.sleep(_RETRY_SECONDS)
            self._quiet.set()
            self._quiet = trio.Event()
            await self._wake.wait()

    async def wait_until_sorted(self) -> None:
        """Returns once every completed file is sorted."""
        while self._unsorted():
            await self._quiet.wait()

    def _unsorted(self) -> list[TailFile]:
        headers = self._engine.files.headers
        return [file for file in self._engine.tail.files if headers[file.number - 1].completed]

    async def _sort(self, file: TailFile) -> None:
        engine = self._engine
        if not engine.files.headers[file.number - 1].sorted:
            await self._sorter.sort(file.number)
            await trio.to_thread.run_sync(switch, engine.files.folder, file.number, self._sorter.token)
            engine.use_sorted(file.number)
        await self._sorter.list_in_directory(file.number)
        await self._forget(file)
        engine.release(file)
        self.sorted_files += 1
        _log.info("event file %d is sorted", file.number)

    async def _forget(self, file: TailFile) -> None:
        """Drops what the version cache knew of these aggregates from before; a slice at a time, the loop is shared."""
        ids = iter(file.heads)
        while group := list(islice(ids, _FORGET_AT_ONCE)):
            for aggregate_id in group:
                self._engine.known.forget(aggregate_id)
            await trio.lowlevel.checkpoint()
