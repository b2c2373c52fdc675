"""The protocol of a measured system, and the traffic that is the same for all of them.

The traffic lives here, once, so that no subject can be favoured by a cheaper loop around it: every client appends to its
own aggregate, connections are made before the clock starts, and all clients start together.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

PAYLOAD = os.urandom(256)
"""The data of every event. Random, so that no subject gains by compressing it."""

EVENT_TYPE = "Measured"
EVERYONE = "everyone"  # a tag of all events of decisions
READ_AGGREGATE = "order-100"
"""The aggregate that `read_aggregate_100` replays."""

AGGREGATE_EVENTS = 100
"""Events per aggregate in the data set of the read workloads."""

_PROCESS_CLOCK = 2  # with a process id it makes what clock_getcpuclockid(3) gives
CLIENTS_WAIT_S_MAX = 120.0
"""How long a crowd of clients may take to connect, and again to finish, before the workload counts as stuck."""


class Unavailable(Exception):
    """The subject cannot take part on this machine; the message names the missing part and how to install it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of a workload did: `count` events (or replays) in `seconds` of wall-clock time, and the processor time of
    the process with the clients and of the servers, once that was measured.
    """

    count: int
    seconds: float
    client_s: float | None = None
    server_s: float | None = None

    @property
    def rate(self) -> float:
        """Events (or replays) per second."""
        return self.count / self.seconds


Run = Callable[[int], Measured]


class Subject(Protocol):
    """A system under measurement."""

    @property
    def name(self) -> str:
        """How the table calls it."""

    @property
    def version(self) -> str:
        """Which release it is; known once started."""

    @property
    def durable(self) -> bool:
        """Whether every append is on disk before it is acknowledged. Only durable peers count for the ratio."""

    def start(self) -> None:
        """Start on a scratch folder and a free loopback port, and return when it answers.

        Raises:
            Unavailable: something that it needs is not installed, or it did not come up.
        """

    def stop(self) -> None:
        """End what `start` began and remove the scratch folder; also after a `start` that failed half way."""

    def workloads(self) -> Mapping[str, Run]:
        """The workloads it can do, by name; the others are reported as "–". Asked for after `start` and `fill`.

        A run takes a size and returns what it did. The size is the number of appends *per client* for the `append_*`
        workloads, of replays for `read_aggregate_100`, of passes over the whole data set for `read_all`.
        """

    def fill(self, events: int) -> None:
        """Write the data set of the read workloads into the fresh store: exactly `events` events, a multiple of 100.

        It ends with `READ_AGGREGATE`, written as 100 appends of one event; see `fill_through`. Not timed. Returns when
        the store is in the state in which it would be found on a quiet day (sorted, indexed, checkpointed).
        """


@dataclass(frozen=True, slots=True)
class Workload:
    """A row of the table. `smallest` is the size that calibration starts with, and the least a turn is cut down to."""

    name: str
    title: str
    unit: str
    smallest: int = 1


def timed(run: Run, size: int) -> Measured:
    """One run, with the garbage of the one before it out of the way; the collector stays on, as it would for a user.

    The servers of all subjects are processes that this one has started. Only one of them has something to do.
    """
    gc.collect()
    server_s, client_s = processor_s_below(os.getpid()), time.process_time()
    measured = run(size)
    if measured.client_s is not None:  # by the process that has the clients
        return measured
    client_s, server_s = time.process_time() - client_s, processor_s_below(os.getpid()) - server_s
    return replace(measured, client_s=client_s, server_s=server_s)


def processor_s_below(pid: int) -> float:
    """Processor time of the processes that this one has started, and of those that these have, as far as they still run."""
    started_by: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            started_by.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found += started_by.get(each, ())
    return sum(map(processor_s, found[1:]))


def processor_s(pid: int) -> float:
    """Processor time of all threads of a process, also of those that have ended; 0 if it has ended itself."""
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)
    return 0.0


class Client(Protocol):
    """One connection to a subject, used by one thread at a time."""

    def append(self, aggregate_id: str, expected: int, events: int) -> int:
        """Append `events` events durably in one commit, under a fresh command id, and return the next `expected`.

        `expected` is the condition of an append (a version, a position); 0 for a new aggregate.
        """


def append_workloads(clients: Callable[[int], Sequence[Client]]) -> dict[str, Run]:
    """The lock-step append workloads on top of `clients(n)`, which returns n connected clients."""
    return {
        "append_lockstep_1": lambda appends: lockstep(clients(1), appends, 1),
        "append_lockstep_64": lambda appends: lockstep(clients(64), appends, 1),
        "append_batch_100": lambda appends: lockstep(clients(1), appends, 100),
        "append_batch_1000_x16": lambda appends: lockstep(clients(16), appends, 1000),
    }


def decision_workloads(clients: Callable[[int], Sequence[Client]]) -> dict[str, Run]:
    """The same of clients whose appends are conditional on a query by two tags, one of which all of them have."""
    return {
        "decide_lockstep_1": lambda appends: lockstep(clients(1), appends, 1),
        "decide_lockstep_64": lambda appends: lockstep(clients(64), appends, 1),
    }


TENTH, HUNDRED = "a tenth", "a hundred"
"""Tags of stored events: of a tenth of them, and of 100."""


class Stored:
    """How many events are stored before the workloads that say so."""

    events = 10_000


class TaggedClient(Client, Protocol):
    """One whose appends have tags, and are conditional on a query by them."""

    def store(self, tags: Sequence[str], events: int) -> None:
        """Stores `events` events with these tags, on no condition."""

    def read(self, tag: str) -> int:
        """Reads the events with a tag, and returns how many they are."""


def stored_workloads(clients: Callable[[int], Sequence[TaggedClient]]) -> dict[str, Run]:
    """The workloads of decisions beside many stored events, which the first of them stores, untimed."""
    filled = False

    def beside(run: Run) -> Run:
        def first_fill(size: int) -> Measured:
            nonlocal filled
            if not filled and not clients(1)[0].read(HUNDRED):
                fill_tagged(clients(1)[0], Stored.events)
            filled = True
            return run(size)

        return first_fill

    runs = {f"{name}_stored": beside(run) for name, run in decision_workloads(clients).items()}
    read = replays(lambda: clients(1)[0].read(HUNDRED))
    return {**runs, "read_tag_100": beside(read)}


def fill_tagged(client: TaggedClient, events: int) -> None:
    """Stores the data set of `stored_workloads`: the events with `HUNDRED` lie among the others."""
    left, hundreds = events - AGGREGATE_EVENTS, AGGREGATE_EVENTS
    while left > 0 or hundreds:
        part = min(left, max(1_000, events // AGGREGATE_EVENTS))
        while part > 0:
            count = min(part, 1_000)
            client.store([TENTH], count // 10)
            client.store([], count - count // 10)
            left, part = left - count, part - count
        if hundreds:
            client.store([HUNDRED], 1)
            hundreds -= 1


def lockstep(clients: Sequence[Client], appends: int, events: int) -> Measured:
    """Each client appends `appends` times `events` events to a new aggregate, one after the other's answer."""

    def one_client(client: Client) -> None:
        aggregate_id, expected = uuid.uuid4().hex, 0
        for _ in range(appends):
            expected = client.append(aggregate_id, expected, events)

    if len(clients) == 1:
        started = time.perf_counter()
        one_client(clients[0])
        seconds = time.perf_counter() - started
    else:
        seconds = _together([partial(one_client, client) for client in clients])
    return Measured(len(clients) * appends * events, seconds)


def _together(works: Sequence[Callable[[], None]]) -> float:
    """Run each work in its own thread and return the seconds from the common start to the last end.

    Raises the first error of any of them: a rate with refused appends in it is not a rate.
    """
    started: list[float] = []
    errors: list[Exception] = []
    barrier = threading.Barrier(len(works), action=lambda: started.append(time.perf_counter()))

    def run(work: Callable[[], None]) -> None:
        try:
            barrier.wait(CLIENTS_WAIT_S_MAX)
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + CLIENTS_WAIT_S_MAX
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    ended = time.perf_counter()
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"clients still busy after {CLIENTS_WAIT_S_MAX:.0f} s")
    return ended - started[0]


def fill_through(client: Client, events: int) -> None:
    """Write the data set of the read workloads through one client; see `Subject.fill`."""
    if events % AGGREGATE_EVENTS:
        raise ValueError(f"events must be a multiple of {AGGREGATE_EVENTS}, not {events}")
    for _ in range(events // AGGREGATE_EVENTS - 1):
        client.append(uuid.uuid4().hex, 0, AGGREGATE_EVENTS)
    expected = 0
    for _ in range(AGGREGATE_EVENTS):
        expected = client.append(READ_AGGREGATE, expected, 1)


def replays(replay: Callable[[], int]) -> Run:
    """`read_aggregate_100` on top of `replay`, which reads `READ_AGGREGATE` and returns how many events it saw."""
    return lambda times: Measured(times, _repeated(replay, times, AGGREGATE_EVENTS))


def passes(read_all: Callable[[], int], events: int) -> Run:
    """`read_all` on top of a function that reads everything and returns how many events it saw, of `events` in all."""
    return lambda times: Measured(times * events, _repeated(read_all, times, events))


def _repeated(read: Callable[[], int], times: int, expected: int) -> float:
    """Seconds for `times` reads. A read that misses events is not a fast read, so every count is checked."""
    started = time.perf_counter()
    for _ in range(times):
        seen = read()
        if seen != expected:
            raise ValueError(f"read {seen} events where {expected} were written")
    return time.perf_counter() - started
