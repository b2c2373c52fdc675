"""Sorts event files in a child process, which takes one step after the other and lives while there are any."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from eventstore.errors import Corrupt

PROGRAM: Final = "eventstore.store.sorting_process"
_SAID_BYTES_MAX: Final = 4096
_REPLY: Final = b'{"'
# Exit codes of a child that LMDB aborted or that touched a missing page; other signals come from operators and the kernel.
_KILLED_BY_DAMAGE: Final = {-number: number.name for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV)}


class ChildSorter:
    """A `Sorter` for the files of a disk. A process takes a quarter of a second to start: it is kept from step to step, until
    `idle`, which a caller must call at its end, too.
    """

    def __init__(self, data: Path, directory: Path) -> None:
        self._data, self._directory = data, directory
        self._child: _Child | None = None
        self._one_at_a_time = trio.Lock()
        self.token = uuid.uuid4().hex

    async def sort(self, number: int) -> None:
        await self._ask("sort", number)

    async def list_in_directory(self, number: int) -> None:
        await self._ask("list", number)

    async def prove_directory(self) -> None:
        """Takes long, in a process of its own: files are sorted meanwhile."""
        child = await self._start()
        try:
            await child.ask("prove", 0)
        finally:
            await child.end()

    async def idle(self) -> None:
        """Ends the process, if there is one; also while it is cancelled."""
        with trio.CancelScope(shield=True):
            async with self._one_at_a_time:
                if self._child is not None:
                    await self._child.end()
                    self._child = None

    async def _ask(self, step: str, number: int) -> None:
        async with self._one_at_a_time:
            child = self._child = self._child or await self._start()
            try:
                await child.ask(step, number)
            except BaseException:  # it may have ended, or be in the middle of a step that no caller waits for
                self._child = None
                await child.end()
                raise

    async def _start(self) -> _Child:
        command = [sys.executable, "-m", PROGRAM, str(self._data), str(self._directory), self.token]
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        return _Child(process, self._directory)


class _Child:
    def __init__(self, process: trio.Process, directory: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._directory = directory
        self._received = b""

    async def ask(self, step: str, number: int) -> None:
        """Has it carry out a step. After an error it is of no use.

        Raises:
            Corrupt: a file is, or the directory, which the process died of.
            RuntimeError: it was refused, or the process has ended.
        """
        said = b""
        with suppress(trio.BrokenResourceError):  # it has ended: what it said before is to be read
            await self._stdin.send_all(f"{step} {number}\n".encode())
        try:
            while not (line := await self._line()).startswith(_REPLY):
                said = (said + line)[-_SAID_BYTES_MAX:]
        except EOFError:
            code = await self._process.wait()
            if code in _KILLED_BY_DAMAGE and step != "sort":
                raise Corrupt(
                    str(self._directory), 0, f"a process that reads it is killed ({_KILLED_BY_DAMAGE[code]})"
                ) from None
            text = (said + self._received)[-_SAID_BYTES_MAX:].decode(errors="replace").strip()
            raise RuntimeError(f"exit code {code}: {text}" if text else f"exit code {code}") from None
        match json.loads(line):
            case {"done": int(done)} if done == number:
                return
            case {"corrupt": [str(file), int(offset), str(what)]}:
                raise Corrupt(file, offset, what)
            case {"failed": str(why)}:
                raise RuntimeError(why)
        raise RuntimeError(f"the sorting process answered {line!r}")

    async def _line(self) -> bytes:
        while b"\n" not in self._received:
            received = await self._stdout.receive_some()
            if not received:
                raise EOFError
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return line + b"\n"

    async def end(self) -> None:
        self._process.kill()
        with trio.CancelScope(shield=True):
            await self._process.wait()
            await self._stdin.aclose()
            await self._stdout.aclose()
