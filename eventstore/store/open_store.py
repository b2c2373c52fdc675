"""Opens an embedded store: its folder, its writer and its maintenance, for as long as the caller stays in the context."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from eventstore.allocator import expect_large_buffers
from eventstore.chunks.files import Files
from eventstore.chunks.writing.group_commit import Replication
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.settings.store import StoreSettings
from eventstore.store.committer import EventCommitter
from eventstore.store.data_folder import DIRECTORY, ShardIdentity
from eventstore.store.embedded import EmbeddedStore
from eventstore.store.engine import StoreEngine
from eventstore.store.maintenance import Maintenance, ThreadSorter
from eventstore.store.opening import OpenStore, open_folder
from eventstore.store.sorted.child_sorter import ChildSorter
from eventstore.timing.shared_ticks import sleep_to_tick

_WARMED_AT_ONCE: Final = 100
_WARM_PAUSE_S: Final = 0.02
_SORTS_AFTER_S: Final = 1.0
"""How long a replica leads before it sorts: clients have waited for it, and sorting takes a processor."""


@asynccontextmanager
async def open_store(
    path: str | Path,
    settings: StoreSettings | None = None,
    *,
    files: Files | None = None,
    directory: Path | None = None,
    shard: ShardIdentity | None = None,
    epoch: int | None = None,
    replication: Replication | None = None,
) -> AsyncIterator[EmbeddedStore]:
    """Opens, or creates, the store in the folder `path` for this process alone. On trio only.

    `files` and `directory` replace the disk in tests. `shard`: the shard of a cluster that the store must be, or becomes when
    it is created; None: a store of its own. `epoch`, `replication`: given for a replica that leads.

    Raises:
        FolderRefused, Corrupt: the folder cannot be opened.
        InvalidArgument: the caller runs on another event loop.
    """
    if not trio.lowlevel.in_trio_run():
        raise InvalidArgument(
            "an embedded store needs trio; use trio.run(main), or connect to a server, which works on asyncio too",
            field="event loop",
        )
    settings, path, process = settings or StoreSettings(), Path(path), os.getpid()
    expect_large_buffers()
    opened = await trio.to_thread.run_sync(
        lambda: open_folder(path, settings, files=files, directory=directory, shard=shard, epoch=epoch)
    )
    try:
        committer = EventCommitter(
            opened.engine,
            waiting_bytes_max=settings.waiting_bytes_max,
            sync=settings.durability == "sync",
            flush_interval_s=settings.flush_interval_s,
            replication=replication,
        )
        sorter = ChildSorter(path, directory or path / DIRECTORY) if files is None else ThreadSorter(opened.engine)
        maintenance = Maintenance(opened.engine, sorter)
        committer.on_completed = lambda _: maintenance.wake()
        store = EmbeddedStore(opened, committer, maintenance)
        async with trio.open_nursery() as nursery:
            await nursery.start(committer.run)
            background = store.background = await nursery.start(_in_background)
            if settings.sort:
                background.start_soon(_maintain, committer, maintenance, _SORTS_AFTER_S if epoch is not None else 0.0)
            if epoch is not None:
                background.start_soon(_warm_up_when_settled, committer, opened.engine)
            background.start_soon(_write_preload, opened, settings)
            error = None
            try:
                yield store
            except Exception as raised:  # leaves the nursery unwrapped, not in an ExceptionGroup
                error = raised
            finally:
                with trio.CancelScope(shield=True):
                    await store.aclose()
                    committer.stop()
                nursery.cancel_scope.cancel()
        if error is not None:
            raise error
    finally:
        if os.getpid() == process:  # not in a child, which has copies of the files that the parent writes
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(opened.close)


async def _in_background(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """Runs the tasks that nobody waits for."""
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()


async def _maintain(committer: EventCommitter, maintenance: Maintenance, rests_s: float) -> None:
    await committer.settled.wait()  # a replica may have to cut back what it was opened with: a sorted file is final
    maintenance.rest(rests_s)
    await maintenance.run()


async def _warm_up_when_settled(committer: EventCommitter, engine: StoreEngine) -> None:
    await committer.settled.wait()  # clients wait for that
    await warm_up(engine)


async def warm_up(engine: StoreEngine) -> None:
    """Loads the aggregates that changed last into the version cache, the last one first, while clients are served. Ends when a
    generation of the cache is full: more would drop the aggregates that changed last, and aggregates that clients have loaded.
    """
    cache = engine.version_cache
    empty = cache.young

    def look_up(part: list[str]) -> None:
        for each in part:
            if cache.peek(each) is None:
                engine.offer(each)

    names = (await trio.to_thread.run_sync(engine.recent_aggregates))[::-1]  # of a large tail, it reads for long
    with contextlib.suppress(EventStoreError):  # what cannot be read is reported to the first caller that needs it
        for start in range(0, len(names), _WARMED_AT_ONCE):
            await trio.to_thread.run_sync(look_up, names[start : start + _WARMED_AT_ONCE])
            cache.take_offers()
            if cache.young is not empty:
                return
            await trio.sleep(_WARM_PAUSE_S)


async def _write_preload(opened: OpenStore, settings: StoreSettings) -> None:
    while settings.preload_aggregates:
        await sleep_to_tick(settings.preload_interval_s)
        await trio.to_thread.run_sync(lambda: opened.preload.write(opened.engine.recent_aggregates()))
