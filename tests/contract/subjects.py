"""One interface to the ways to use a store: a contract test is written once and runs with each of them.

embedded           `open_store`, on trio
network-trio       `connect`, on trio, to a real server in a thread
network-asyncio    `connect`, on asyncio
blocking           `blocking.connect`; each call on a thread, so that a test's tasks can make several at once
shards-trio        `connect`, on trio, to an entry with three shards
shards-blocking    `blocking.connect` to the same; a test about one sequence is skipped for both
"""

from __future__ import annotations

import asyncio
import inspect
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar, cast

import anyio
import anyio.to_thread
import pytest
import trio

import eventstore as es
from eventstore.client.blocking.store import BlockingStore
from eventstore.records.cluster_map import even_slots
from eventstore.records.slots import slot_of
from eventstore.settings.store import StoreSettings
from tests.cluster.led_shards import LedShards
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, eventually

KINDS = ("embedded", "network-trio", "network-asyncio", "blocking", "shards-trio", "shards-blocking")
SHARDS = 3
Item: TypeAlias = es.Event | es.CaughtUp
Result = TypeVar("Result")
_END = object()


class Iteration:
    """Turns an iterator of the blocking client into an async one."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    @property
    def position(self) -> es.Position:
        return cast("es.Position", self._items.position)  # type: ignore[attr-defined] # those of the log have one

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        item = await _on_thread(next, self._items, _END)
        if item is _END:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        await _on_thread(self._items.close)  # type: ignore[attr-defined] # those of the client have it


async def _on_thread(call: Callable[..., Result], *arguments: object) -> Result:
    return await anyio.to_thread.run_sync(partial(call, *arguments), abandon_on_cancel=True)


class Disguised:
    """Gives the blocking client the methods of the others."""

    def __init__(self, store: BlockingStore) -> None:
        self._store = store

    async def append(self, *arguments: Any, **named: Any) -> es.Committed:
        return await _on_thread(partial(self._store.append, *arguments, **named))

    async def append_many(self, commits: Iterable[es.Commit], **named: Any) -> list[es.Committed | es.EventStoreError]:
        return await _on_thread(partial(self._store.append_many, commits, **named))

    async def commit(self, writes: Iterable[es.Write], **named: Any) -> list[es.Committed]:
        return await _on_thread(partial(self._store.commit, writes, **named))

    async def query(self, *arguments: Any, **named: Any) -> tuple[list[es.Event], es.Position]:
        return await _on_thread(partial(self._store.query, *arguments, **named))

    async def replay_many(self, *arguments: Any, **named: Any) -> tuple[dict[str, list[es.Event]], es.Position]:
        return await _on_thread(partial(self._store.replay_many, *arguments, **named))

    def read(self, *arguments: Any, **named: Any) -> Iteration:
        return Iteration(self._store.read(*arguments, **named))

    def read_all(self, *arguments: Any, **named: Any) -> Iteration:
        return Iteration(self._store.read_all(*arguments, **named))

    def read_all_arrow(self, *arguments: Any, **named: Any) -> Iteration:
        return Iteration(self._store.read_all_arrow(*arguments, **named))

    def subscribe(self, *arguments: Any, **named: Any) -> Iteration:
        return Iteration(self._store.subscribe(*arguments, **named))

    async def version(self, aggregate_id: str) -> int:
        return await _on_thread(self._store.version, aggregate_id)

    async def wait_for(self, *arguments: Any) -> None:
        await _on_thread(partial(self._store.wait_for, *arguments))

    async def find_command(self, aggregate_id: str, command_id: str) -> es.Committed | None:
        return await _on_thread(self._store.find_command, aggregate_id, command_id)

    async def aggregates(self, *arguments: Any, **named: Any) -> list[es.AggregateInfo]:
        return await _on_thread(partial(self._store.aggregates, *arguments, **named))

    async def stats(self) -> dict[str, Any]:
        return await _on_thread(self._store.stats)

    async def aclose(self) -> None:
        await _on_thread(self._store.close)


class Summed:
    """A store of several shards. Its figures are the sums of theirs: those of the node are others."""

    def __init__(self, store: Any, shards: Callable[[], Iterable[Any]]) -> None:
        self._store = store
        self._shards = shards

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def stats(self) -> dict[str, Any]:
        summed: dict[str, Any] = {}
        for shard in self._shards():
            for name, value in (await shard.stats()).items():
                is_number = isinstance(value, int) and not isinstance(value, bool)
                summed[name] = summed.get(name, 0) + value if is_number else value
        return summed or cast("dict[str, Any]", await self._store.stats())


class Subject:
    """The store under test. `store` has the public methods; after `restart` it may be another object."""

    def __init__(self, kind: str, folder: Path, server: ServerThread | LedShards | None, settings: dict[str, Any]) -> None:
        self.kind = kind
        self.folder = folder
        self._server = server
        self._settings = StoreSettings(**{"preallocate_bytes": 1024 * 1024, **settings}) if server is None else None
        self._opened = AsyncExitStack()
        self._others = 0
        self.store: Any = None

    @property
    def embedded(self) -> bool:
        return self._server is None

    @property
    def address(self) -> str | None:
        """Of the server, if there is one."""
        return None if self._server is None else self._server.address

    @property
    def is_several(self) -> bool:
        """Whether there are several shards."""
        return isinstance(self._server, LedShards)

    def _open(self, folder: Path) -> AbstractAsyncContextManager[Any]:
        if self._server is None:
            return es.open_store(folder, self._settings)
        if self.kind.endswith("blocking"):
            return _disguised(self._server.address)
        return _summed(self._server.address) if self.is_several else es.connect(self._server.address)

    def another(self) -> AbstractAsyncContextManager[Any]:
        """Returns a separate store: another client of the same server, or, embedded, another folder."""
        self._others += 1
        return self._open(self.folder / f"other-{self._others}")

    async def restart(self) -> None:
        """Restarts the process that holds the files, in order. Clients stay open."""
        if self._server is not None:
            await anyio.to_thread.run_sync(self._server.restart)
        else:
            await self._opened.aclose()
            await self.open()

    async def changed(self, change: Callable[[Path], object]) -> None:
        """Has the files changed, below the given folder, while no process holds them. Clients stay open."""
        if self._server is not None:
            await anyio.to_thread.run_sync(self._server.stop_servers)
            change(self.folder)
            await anyio.to_thread.run_sync(self._server.start_servers)
        else:
            await self._opened.aclose()
            change(self.folder)
            await self.open()

    async def open(self) -> None:
        self.store = await self._opened.enter_async_context(self._open(self.folder / "data"))

    async def close(self) -> None:
        await self._opened.aclose()

    async def sorted(self) -> None:
        """Returns once every completed event file is sorted and indexed, and there is one."""

        async def done() -> bool:
            stats = await self.store.stats()
            return int(stats["sorted_files"]) > 0 and int(stats["unsorted_files"]) <= (SHARDS if self.is_several else 1)

        await eventually(done, "files are sorted")

    async def all(self, **filters: Any) -> list[es.Event]:
        return await collect(self.store.read_all(**filters))

    def by_shard(self, events: Iterable[es.Event]) -> list[list[es.Event]]:
        """Returns the events of each shard, in the same order; of a single store, all of them."""
        starts = [slots[0][0] for slots in even_slots(SHARDS if self.is_several else 1)]
        found: list[list[es.Event]] = [[] for _ in starts]
        for each in events:
            found[bisect_right(starts, slot_of(each.aggregate_id)) - 1].append(each)
        return found

    def check_gapless(self, events: Iterable[es.Event]) -> None:
        """Checks that these are all events, those of each shard in the order of their sequences."""
        for own in self.by_shard(events):
            assert [each.sequence for each in own] == list(range(1, len(own) + 1))


async def collect(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def take(items: AsyncIterator[Any], count: int) -> list[Any]:
    """Returns the next `count` items, and leaves the iterator open."""
    return [await anext(items) for _ in range(count)]


@asynccontextmanager
async def _summed(address: str) -> AsyncIterator[Summed]:
    async with es.connect(address) as store:
        yield Summed(store, lambda: store.shards.values())


@asynccontextmanager
async def _disguised(address: str) -> AsyncIterator[Disguised | Summed]:
    store = es.blocking.connect(address)
    await anyio.to_thread.run_sync(store.__enter__)
    try:
        yield Summed(Disguised(store), lambda: map(Disguised, store.shards.values())) if store.shards else Disguised(store)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(store.close)


Test: TypeAlias = Callable[..., Awaitable[None]]


def contract(test: Test | None = None, *, one_sequence: str = "", **settings: Any) -> Any:
    """Runs an async test with each kind of store in turn; `settings` are those of the store. `one_sequence`: why it is about
    a store with one sequence of events, which several shards have not.
    """
    if test is None:
        return partial(contract, one_sequence=one_sequence, **settings)
    own = [each for each in inspect.signature(test).parameters.values() if each.name != "subject"]

    def run(kind: str, tmp_path: Path, **given: Any) -> None:
        if kind == "embedded":
            trio.run(_main, test, Subject(kind, tmp_path, None, settings), given)
            return
        is_several = kind.startswith("shards")
        if is_several and one_sequence:
            pytest.skip(f"several shards: {one_sequence}")
        with LedShards(tmp_path, SHARDS, **settings) if is_several else ServerThread(tmp_path / "data", **settings) as server:
            subject = Subject(kind, tmp_path, server, settings)
            if kind == "network-asyncio":
                asyncio.run(_main(test, subject, given))
            else:
                trio.run(_main, test, subject, given)

    fixtures = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("kind", "tmp_path")]
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature([*fixtures, *own])  # type: ignore[attr-defined] # what pytest looks at
    return pytest.mark.parametrize("kind", KINDS)(run)


async def _main(test: Test, subject: Subject, given: dict[str, Any]) -> None:
    with anyio.fail_after(DEADLINE_SECONDS):
        await subject.open()
        try:
            await test(subject, **given)
        finally:
            await subject.close()


def event(number: int, type_: str = "Happened") -> es.NewEvent:
    return cast(es.NewEvent, es.NewEvent(type_, {"number": number}))
