"""Ten clients that ask for little, each on a connection of its own, and how long they wait.

Eight make one request at a time: four append, two read, one sends messages, one asks for figures. A subscription follows what
the first of them appends, and a consumer what is sent: what they receive counts as answers do, from when its request began. So
they are fed by the others, and their rates follow those.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Final, NamedTuple

import trio

import eventstore as es
from eventstore.client.aio.store import NetworkStore

QUIET: Final = "quiet"
QUIET_QUEUES: Final = 4
_WARM_S: Final = 0.3
_FOLLOWED: Final = "quiet-0-"
_ASKING: Final = ("append",) * 4 + ("read",) * 2 + ("send", "stats")
_RECEIVING: Final = ("subscription", "consumer")


class Quiet(NamedTuple):
    """How long the answers to quiet clients took, in seconds, ascending, by what they ask for; `seconds`: the time measured.

    A client that waits long gets few answers, which the percentiles of all answers do not show: so those of each kind are
    known, and the worst is reported as well.
    """

    taken: dict[str, list[float]]
    seconds: float

    @property
    def rate(self) -> float:
        """Answers a second, to all."""
        return sum(map(len, self.taken.values())) / self.seconds

    @property
    def slowest_ms(self) -> float:
        return max(map(self._last, self.taken.values())) * 1e3

    @property
    def p99_ms(self) -> float:
        return _p99(sorted(chain.from_iterable(self.taken.values())), self.seconds) * 1e3

    @property
    def worst_p99_ms(self) -> float:
        """The highest of those of each kind."""
        return max(_p99(taken, self.seconds) for taken in self.taken.values()) * 1e3

    @property
    def worst(self) -> str:
        """The kind with that."""
        return max(self.taken, key=lambda kind: _p99(self.taken[kind], self.seconds))

    @property
    def starved(self) -> list[str]:
        """The kinds that got no answer."""
        return [kind for kind, taken in self.taken.items() if not taken]

    def kept(self, alone: Quiet) -> float:
        """Returns how much of its rate alone the kind has kept that lost the most."""
        return min(len(taken) / self.seconds / (len(alone.taken[kind]) / alone.seconds) for kind, taken in self.taken.items())

    def _last(self, taken: list[float]) -> float:
        return taken[-1] if taken else self.seconds


def _p99(ascending: list[float], otherwise: float) -> float:
    return ascending[len(ascending) * 99 // 100] if ascending else otherwise


async def quiet(address: str, seconds: float) -> Quiet:
    """Runs the quiet clients for a while."""
    taken: dict[str, list[float]] = {kind: [] for kind in (*_ASKING, *_RECEIVING)}
    async with trio.open_nursery() as clients:
        for kind in _RECEIVING:
            clients.start_soon(_again, _receive, address, kind, taken[kind])
        for number, kind in enumerate(_ASKING):
            clients.start_soon(_again, _ask, address, kind, number, taken[kind])
        await trio.sleep(_WARM_S)
        for each in taken.values():
            each.clear()
        started = time.perf_counter()
        await trio.sleep(seconds)
        found = Quiet({kind: sorted(each) for kind, each in taken.items()}, time.perf_counter() - started)
        clients.cancel_scope.cancel()
    return found


async def _again(client: Callable[..., Awaitable[None]], *given: object) -> None:
    while True:
        try:
            await client(*given)
        except es.Overloaded:  # all connections are taken by some that are not idle for long enough
            await trio.sleep(0.05)


async def _ask(address: str, kind: str, number: int, taken: list[float]) -> None:
    async with es.connect(address) as store:
        ask = _asking(store, kind, f"quiet-{number}-{time.monotonic_ns()}")
        while True:
            begun = time.perf_counter()
            await ask(b"%.9f" % begun)
            taken.append(time.perf_counter() - begun)


def _asking(store: NetworkStore, kind: str, name: str) -> Callable[[bytes], Awaitable[object]]:
    version = 0

    async def append(begun: bytes) -> None:
        nonlocal version
        version = (await store.append(name, [es.NewEvent("Happened", begun)], version)).version

    async def read(_: bytes) -> None:
        async for _event in store.read(f"filled-{version}"):
            pass

    async def send(begun: bytes) -> None:
        await store.topic(QUIET).send(begun)

    async def stats(_: bytes) -> None:
        await store.stats()

    return {"append": append, "read": read, "send": send, "stats": stats}[kind]


async def _receive(address: str, kind: str, taken: list[float]) -> None:
    since = time.perf_counter()

    def note(begun: bytes) -> None:
        if float(begun) >= since:  # not of an earlier measurement
            taken.append(time.perf_counter() - float(begun))

    async with es.connect(address) as store:
        if kind == "subscription":
            async for item in store.subscribe(after=es.END, aggregate_prefix=_FOLLOWED):
                if isinstance(item, es.Event):
                    note(item.data)
        else:
            async with store.consumer(QUIET, QUIET, from_end=True) as consumer:
                async for message in consumer:
                    note(message.body)
                    message.done()
