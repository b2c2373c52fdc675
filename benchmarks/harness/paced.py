"""A load at a set rate, which keeps its rate while the store stalls, beside another one."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Final

import trio

import eventstore as es
from benchmarks.harness.appender import check
from eventstore.records.slots import SLOTS, slot_of

_TURN_S: Final = 0.01
_IN_FLIGHT: Final = 64
_WAITING_MAX: Final = 1_000
_PAYLOAD: Final = b"x" * 100


class ThreadedLoad:
    """A load in a thread of its own, from its making until `stop`. A subclass has `_work`, which ends soon after `_stopped` is
    set, and sets its own attributes before it calls this constructor.
    """

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    async def _work(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            trio.run(self._work)
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raises what ended the load too early."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ends it. Raises as `check`."""
        self._stopped.set()
        self._thread.join()
        self.check()


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What was appended in some time: how many seconds each batch of the lower half took that was due then, in order, and how
    many events a second the upper half took.
    """

    seconds: list[float]
    beside: float


class PacedLoad(ThreadedLoad):
    """Appends `rate` events a second to the lower half of the slots, and `beside` to the upper half: infinity is what it can,
    with 64 in flight.

    A set rate is an open loop: what is due is sent when it is due, whether or not what was sent before is acknowledged, and a
    time counts from when it was due. So a stall counts for everything that came during it. One connection to each shard.
    """

    def __init__(self, address: str, rate: int, beside: float) -> None:
        self._address, self._rate, self._beside = address, rate, beside
        self._acknowledged: list[tuple[float, float]] = []
        self._others = 0
        super().__init__()

    def during(self, done: Callable[[], bool]) -> Meanwhile:
        """Waits until `done`."""
        began, before = time.perf_counter(), self._others
        while not done():
            time.sleep(_TURN_S)
            self.check()
        ended, after = time.perf_counter(), self._others
        while not any(due > ended for due, _ in reversed(self._acknowledged[-_WAITING_MAX:])):
            time.sleep(_TURN_S)
            self.check()
        times = [seconds for due, seconds in self._acknowledged if began <= due < ended]
        return Meanwhile(times, (after - before) / (ended - began))

    async def _work(self) -> None:
        async with (
            es.connect(self._address, reconnect_timeout=60.0, silence_timeout=60.0) as store,
            trio.open_nursery() as nursery,
        ):
            if self._beside == math.inf:
                nursery.start_soon(self._fill, store)
            elif self._beside:
                nursery.start_soon(self._keep, store, self._beside, True)
            nursery.start_soon(self._keep, store, self._rate, False)

    async def _keep(self, store: es.NetworkStore, rate: float, upper: bool) -> None:
        ids, due, size = _ids(upper=upper), time.perf_counter(), int(rate * _TURN_S)
        async with trio.open_nursery() as nursery:
            while not self._stopped.is_set():
                commits = [es.Commit(ids[at], _event(), es.ANY) for at in range(size)]
                ids = ids[size:] + ids[:size]
                if len(nursery.child_tasks) > _WAITING_MAX:
                    raise TimeoutError(f"{_WAITING_MAX} batches wait for their answers")
                nursery.start_soon(self._append, store, commits, due, upper)
                due += _TURN_S
                await trio.sleep(max(0.0, due - time.perf_counter()))

    async def _append(self, store: es.NetworkStore, commits: Sequence[es.Commit], due: float, upper: bool) -> None:
        check(await store.append_many(commits))
        if upper:
            self._others += len(commits)
        else:
            self._acknowledged.append((due, time.perf_counter() - due))

    async def _fill(self, store: es.NetworkStore) -> None:
        ids = _ids(upper=True)
        while not self._stopped.is_set():
            check(await store.append_many([es.Commit(each, _event(), es.ANY) for each in ids[:_IN_FLIGHT]]))
            self._others += _IN_FLIGHT
            ids = ids[_IN_FLIGHT:] + ids[:_IN_FLIGHT]


def _event() -> list[es.NewEvent]:
    return [es.NewEvent("Happened", _PAYLOAD)]


def _ids(*, upper: bool) -> list[str]:
    named = (f"paced-{number}" for number in count())
    return list(islice((each for each in named if (slot_of(each) >= SLOTS // 2) is upper), 997))
