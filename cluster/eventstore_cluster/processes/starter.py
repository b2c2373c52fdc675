"""Starts the processes of shards through the template, a program that keeps running and has loaded what they need."""

from __future__ import annotations

import array
import errno
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from eventstore.server.logs import get_logger

TEMPLATE: Final = "eventstore_cluster.processes.template"
SHARD: Final = "eventstore_cluster.shard_process"
_USED_LATER: Final = ("numpy", "eventstore.server.exposition")
"""What a shard imports by its first use: the template has it, for all of them."""
_MESSAGE_BYTES_MAX: Final = 256
_ANSWERS_S: Final = 60.0
"""It loads what is needed in a second or two of a core."""
_REST_S: Final = 5.0
"""Before another template is started that no shard waits for: a template that always ends must not take a core."""
_CODE_S: Final = 5.0
"""Only a template that is stopped takes so long to say the exit code of a process that has ended."""
_log = get_logger("eventstore.cluster")


class Started:
    """A process that was started. Its end is seen by a descriptor: the template, which alone learns the exit code, may end
    before it, or be stopped.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._told = trio.Event()
        self._watched: int | None = None
        with suppress(OSError):  # it has ended already, there are no descriptors, or the kernel is old: the template says it
            self._watched = os.pidfd_open(pid)

    async def wait(self) -> int | None:
        """Waits for the end of the process. Returns the exit code, -N after signal N; None if the template does not say it."""
        watched, self._watched = self._watched, None
        if watched is None:
            await self._told.wait()
            return self._code
        try:
            await trio.lowlevel.wait_readable(watched)
        finally:
            os.close(watched)
        with trio.move_on_after(_CODE_S):
            await self._told.wait()
        return self._code

    def tell(self, code: int | None) -> None:
        """Takes the exit code; None: the template has ended."""
        self._code = code
        self._told.set()


class ShardStarter:
    """Starts processes through a template.

    The processes run `main` of the module `program`, with the channel as standard input. `loads`: other modules they will need.
    """

    def __init__(self, program: str = SHARD, loads: Sequence[str] = ()) -> None:
        flags = ["-X", "no_debug_ranges"]  # columns in tracebacks take 0.5 MB
        self._command = [sys.executable, *flags, "-m", TEMPLATE, program, *_USED_LATER, *loads]
        self._template: _Template | None = None
        self._one_at_a_time = trio.Lock()
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the template until cancelled. Processes can be started from the beginning on, and live on after it."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                with suppress(OSError):  # the start of a shard tries again, and says why
                    async with self._one_at_a_time:
                        template = await self._running()
                    await template.has_ended.wait()
                await trio.sleep(_REST_S)

    async def start(self, channel: socket.socket) -> Started:
        """Starts a process; the caller closes its own descriptor of `channel`.

        Raises:
            OSError: no memory, or too many processes or descriptors.
        """
        async with self._one_at_a_time:
            return await (await self._running()).start(channel)

    async def _running(self) -> _Template:
        if self._template is None or self._template.has_ended.is_set():
            self._template = await self._open()
        return self._template

    async def _open(self) -> _Template:
        assert self._nursery is not None, "run() has begun"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = await trio.lowlevel.open_process(
                    self._command,
                    stdin=theirs,
                    process_group=0,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a process is forked while it has one thread
                )
            except BaseException:
                ours.close()
                raise
        template = _Template(process, ours)
        self._nursery.start_soon(template.listen)
        return template


class _Template:
    def __init__(self, process: trio.Process, control: socket.socket) -> None:
        self._process, self._control = process, trio.socket.from_stdlib_socket(control)
        self._running: dict[int, Started] = {}
        self._answers, self._answer = trio.open_memory_channel[Started | int](1)
        self.has_ended = trio.Event()

    async def start(self, channel: socket.socket) -> Started:
        """Starts a process. Must not be called again before it has returned."""
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [channel.fileno()]).tobytes())]
        try:
            with trio.fail_after(_ANSWERS_S, shield=True):  # the answer is for who asked
                await self._control.sendmsg([b"s"], passed)
                answer = await self._answer.receive()
        except trio.TooSlowError:
            self._process.kill()  # it is stopped, perhaps
            self.has_ended.set()  # another one answers from now on
            raise OSError(errno.ETIMEDOUT, f"the program that starts shards did not answer for {_ANSWERS_S:g} s") from None
        except trio.EndOfChannel:
            raise OSError(errno.ECHILD, "the program that starts shards has ended") from None
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    async def listen(self) -> None:
        """Takes what the template says until it has ended; ends it when cancelled."""
        try:
            while said := await self._said():
                match json.loads(said):
                    case {"started": int(pid)}:
                        self._running[pid] = Started(pid)
                        self._answers.send_nowait(self._running[pid])
                    case {"failed": int(number)}:
                        self._answers.send_nowait(number)
                    case {"ended": int(pid), "code": int(code)} if pid in self._running:
                        self._running.pop(pid).tell(code)
        finally:
            self.has_ended.set()
            self._control.close()
            self._answers.close()
            for each in self._running.values():
                each.tell(None)
            self._process.kill()  # the end of its input ends it, too, but not while it is stopped
            with trio.CancelScope(shield=True):
                code = await self._process.wait()
        _log.error("the program that starts shards has ended; another one is started", code=code)

    async def _said(self) -> bytes:
        try:
            return await self._control.recv(_MESSAGE_BYTES_MAX)
        except OSError:
            return b""
