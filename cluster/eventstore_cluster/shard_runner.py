"""The process of a shard, as its node sees it: started, told the map, asked for its figures, and started again when it died."""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import trio

from eventstore.chunks.documents import DocumentValue, Tree
from eventstore.errors import EventStoreError, from_wire
from eventstore.server.logs import get_logger
from eventstore.store.data_folder import ShardIdentity
from eventstore_cluster.channel import Channel
from eventstore_cluster.processes.starter import ShardStarter
from eventstore_cluster.shard_questions import ShardQuestions
from eventstore_cluster.shard_start import ShardStart

FIRST_DELAY_S: Final = 0.5
DELAY_S_MAX: Final = 30.0
SPARED_S: Final = 1.0
"""A replica that handed its shard over, and is not waited for, is started again after this time."""
STABLE_S: Final = 60.0
"""A shard that served this long begins with the first delay again."""
STOPS_S: Final = 20.0
"""A shard that takes longer to stop is named in the log, again and again."""
_HANGING: Final = "if it hangs, kill -KILL ends it, and loses nothing that was acknowledged"
_log = get_logger("eventstore.cluster")


@dataclass(frozen=True, slots=True)
class LeaderEnded:
    """A leader that has ended.

    Attributes:
        reason: why it leads no more.
    """

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Left:
    """What a leader says before it ends.

    Attributes:
        reason: why it ends.
        spare: no leader waits for it to follow.
    """

    reason: str
    spare: bool


class ShardRunner:
    """Runs the process of one shard, one after the other.

    `start` returns the first message to a new process. It is given the address of the last process, if any, so that clients
    find the new process there. `changed` is called when the shard begins or ceases to serve.

    Attributes:
        address: HOST:PORT while it serves.
        role: what the process of a replica said last about its part; it may follow and serve no client.
        error: why it neither serves nor follows.
        starts: how many processes it has had.
        settled: the first process serves or follows, or has failed.
        failing_since: seconds of Unix time, while no process of the shard was up after one has ended.
    """

    def __init__(
        self,
        identity: ShardIdentity,
        starter: ShardStarter,
        start: Callable[[str | None], ShardStart],
        changed: Callable[[], None],
        check: Callable[[], None],
        reaped: Callable[[int, LeaderEnded | None], Awaitable[None]] | None = None,
    ) -> None:
        """`check` is called before each start; it raises FolderRefused if the folder no longer holds the shard.

        `reaped` is called with the lease of a process that has ended, which is not renewed, and with what it led, unless the
        process said that itself.
        """
        self.identity = identity
        self._starter, self._start, self._changed, self._check, self._reaped = starter, start, changed, check, reaped
        self.address: str | None = None
        self.role: Tree | None = None
        self.pid: int | None = None
        self.error: EventStoreError | None = None
        self._told: EventStoreError | None = None  # by the process, before it ends
        self.starts = 0
        self.failing_since: int | None = None
        self.settled = trio.Event()
        self._stopping = trio.Event()
        self._up_since: float | None = None
        self._lease: int | None = None
        self._left: _Left | None = None
        self._sits_out = False
        self._last_address: str | None = None
        self._map_due = False
        self._news = trio.Event()
        self._questions = ShardQuestions(self._wake)

    async def run(self) -> None:
        """Keeps a process running until `stop`, and waits for its end."""
        delay = FIRST_DELAY_S
        while not self._stopping.is_set():
            code = None
            try:
                self._check()
                code = await self._live()
                how = "has ended, and the program that started it did not say how" if code is None else _how(code)
            except EventStoreError as error:
                self._told, how = error, "cannot be started"
            except OSError as error:  # no memory or descriptors for another process
                how = f"cannot be started ({error.strerror or error})"
            up_s = 0.0 if self._up_since is None else trio.current_time() - self._up_since
            was_up, is_replica = self._up_since is not None, self._reaped is not None
            left = is_replica and code == 0 and up_s >= FIRST_DELAY_S
            said, self._left = self._left, None
            led = self._led(said, code, how)
            self._ended(f"{how}{_more(code)}")
            await self._give_up_lease(led)
            if self._stopping.is_set():
                return
            if left:  # a replica that ceased to lead, or may not lead any more
                delay = FIRST_DELAY_S
                _log.info("a replica has ended its run and is started again", shard=self.identity.shard)
                waits_s = SPARED_S if said is not None and said.spare else 0.0  # the next leader begins: a start takes a core
                with trio.move_on_after(waits_s):
                    await self._stopping.wait()
                continue
            delay = FIRST_DELAY_S if up_s >= STABLE_S else delay
            if self.starts > 1 or was_up or is_replica:  # otherwise the node decides first whether it starts at all
                self.log_end()
            with trio.move_on_after(delay):
                await self._stopping.wait()
            delay = min(2 * delay, DELAY_S_MAX)

    def log_end(self) -> None:
        """Logs why the shard does not serve."""
        error = None if self.error is None else self.error.message
        _log.error("a shard has ended and is started again", shard=self.identity.shard, error=error)

    @property
    def up(self) -> bool:
        """Whether a process runs that has begun to serve, or to look for a leader to follow."""
        return self._up_since is not None

    @property
    def hangs(self) -> bool:
        """Whether its process runs and does not answer."""
        return self._questions.hangs

    @property
    def serves(self) -> bool:
        """Whether it serves clients, as far as it answers."""
        return self.address is not None and not self.hangs

    @property
    def works(self) -> bool:
        """Whether it serves, or follows a leader."""
        return self.serves or (not self.hangs and self.role is not None and self.role.get("follows") is True)

    def stop(self) -> None:
        """Has the shard stop in order; `run` ends when it has."""
        self._stopping.set()
        self._wake()

    def tell_map(self) -> None:
        """Sends the shard the newest map."""
        self._map_due = True
        self._wake()

    async def ask(self, what: str) -> DocumentValue:
        """Returns the shard's `health` or `metrics`; None if it is not up, or does not answer."""
        return await self._questions.ask(what) if self.up else None

    # ---- a process

    async def _live(self) -> int | None:
        """Runs one process to its end; returns its exit code, None if that is not known."""
        self._told = None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await self._starter.start(theirs)
            except BaseException:
                ours.close()
                raise
        self.pid = process.pid
        self.starts += 1
        async with trio.open_nursery() as beside:
            beside.start_soon(self._name_if_it_stays)
            async with Channel(trio.SocketStream(trio.socket.from_stdlib_socket(ours))) as channel:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._say, channel)
                    nursery.start_soon(self._questions.watch, lambda: self.up, self._note_hanging)
                    while (message := await channel.receive()) is not None:
                        self._hear(message)
                    nursery.cancel_scope.cancel()
            code = await process.wait()  # the channel is closed: it ends, if it has not yet
            beside.cancel_scope.cancel()
        return code

    def _note_hanging(self, hangs: bool) -> None:
        level, event = (logging.ERROR, "a shard does not answer") if hangs else (logging.INFO, "a shard answers again")
        _log.log(level, event, shard=self.identity.shard, pid=self.pid)

    async def _name_if_it_stays(self) -> None:
        await self._stopping.wait()
        while True:
            await trio.sleep(STOPS_S)
            _log.warning("waiting for a shard to stop", shard=self.identity.shard, pid=self.pid, hint=_HANGING)

    async def _say(self, channel: Channel) -> None:
        first = self._start(self._last_address)
        if self._sits_out and first.replica is not None:
            first = replace(first, replica=replace(first.replica, sit_out=True))
        self._sits_out = False
        await channel.send(first.message())
        while not self._stopping.is_set():
            if self._map_due:
                self._map_due = False
                await channel.send({"map": self._start(None).known.encode().decode()})
            elif (question := self._questions.take()) is not None:
                await channel.send(question)
            else:
                await self._news.wait()
                self._news = trio.Event()
        await channel.send({"stop": True})
        await channel.end()

    def _hear(self, message: Tree) -> None:
        match message:
            case {"serving": str(address)}:
                self.address = _host_and_port(address)
                self._is_up()
            case {"following": dict(role)}:
                self.role = role
                self._is_up()
            case {"lease": str(lease)} if lease.isdecimal():
                self._lease = int(lease)
            case {"left": str(reason), "spare": bool(spare)}:
                self._left, self._told = _Left(reason, spare), EventStoreError(reason)
            case {"sit_out": True}:
                self._sits_out = True
            case {"failed": list(flat)} if flat:
                self._told = from_wire([each if isinstance(each, str | int | bool) else None for each in flat])
            case {"answer": int(number), "value": value}:
                self._questions.answered(number, value)

    def _is_up(self) -> None:
        if self._up_since is None:
            self._up_since = trio.current_time()
        self.error = self.failing_since = None
        self.settled.set()
        self._changed()

    def _led(self, said: _Left | None, code: int | None, how: str) -> LeaderEnded | None:
        match self.role:
            case {"role": "leader" | "elected", "epoch": int(epoch)} if said is not None or code != 0:
                return LeaderEnded(epoch, f"its process {how}" if said is None else said.reason)
        return None

    async def _give_up_lease(self, led: LeaderEnded | None) -> None:
        lease, self._lease = self._lease, None
        if lease is not None and self._reaped is not None:
            await self._reaped(lease, led)

    def _ended(self, how: str) -> None:
        self._last_address = self.address  # None if it did not come so far: somebody else may listen there
        self.address = self.pid = self._up_since = self.role = None
        unknown = EventStoreError(f"shard {self.identity.shard} {how}")
        self.error = self._told or unknown
        self.failing_since = self.failing_since or int(time.time())
        self._questions.end()
        self.settled.set()
        self._changed()

    def _wake(self) -> None:
        self._news.set()


def _more(code: int | None) -> str:
    """Returns where to read why a process has ended; nothing if it could not be started, or no exit code is known."""
    if code is None:
        return ""
    if code == -signal.SIGKILL:
        return "; it could not say why: somebody did that, or the kernel, whose log (`dmesg`) tells, for lack of memory"
    return "; its last lines in the log say why"


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name if -code in signal.valid_signals() else f'signal {-code}'}"


def _host_and_port(address: str) -> str:
    """Returns the HOST:PORT of tcp://HOST:PORT or tls://HOST:PORT, with an IPv6 address in brackets."""
    host, _, port = address.partition("://")[2].rpartition(":")
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
