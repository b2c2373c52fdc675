"""A domain whose aggregates have many events, and a store with a runtime that keeps snapshots of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import trio

import eventstore as es
import eventstore.domain as d
from eventstore.chunks.files import Files, OsFiles
from eventstore.domain.encoding.event_type import event_type
from eventstore.domain.runtime import DomainRuntime, ResidentAggregate
from eventstore.domain.snapshots.snapshot_folder import SnapshotFolder
from eventstore.domain.snapshots.snapshots import Snapshots
from eventstore.model import Event
from eventstore.server.mailbox_wiring import embedded_access
from eventstore.store.embedded import EmbeddedStore
from tests.waiting import eventually

EVENTS_MIN = 10
MIB = 1024 * 1024


@dataclass(frozen=True)
class Put:
    name: str
    cents: int = 1


@dataclass(frozen=True)
class Emptied:
    pass


@dataclass(frozen=True)
class PutIn:
    basket: str
    name: str


class Basket(d.Aggregate):
    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self.total = 0

    @d.applies(Put)
    def _(self, event: Put) -> None:
        self.lines[event.name] = self.lines.get(event.name, 0) + event.cents
        self.total += event.cents

    @d.applies(Emptied)
    def _(self, event: Emptied) -> None:
        self.lines.clear()


def domain_of(*classes: type[d.Aggregate]) -> d.Domain:
    """Returns a domain whose aggregates are of these classes."""
    domain = d.Domain()
    for place, cls in enumerate(classes):

        def put_in(command: Any, basket: Any) -> None:
            basket.apply(Put(command.name))

        command = dataclass(frozen=True)(type(f"PutIn{place}", (), {"__annotations__": {"basket": str, "name": str}}))
        put_in.__annotations__ = {"command": command, "basket": cls}
        domain.handles(command)(put_in)
    return domain


class World:
    """A store, a runtime on it that keeps snapshots, and how many events the runtime has read."""

    def __init__(self, store: EmbeddedStore, runtime: DomainRuntime, snapshots: Snapshots) -> None:
        self.store = store
        self.runtime = runtime
        self.snapshots = snapshots
        self.read = 0
        self._numbers = count()

    async def put(self, aggregate_id: str, times: int, name: str = "tea") -> None:
        version = await self.store.version(aggregate_id)
        await self.store.append(aggregate_id, [event_type(Put).encode(Put(name))] * times, version)

    async def restore(self, aggregate_id: str) -> tuple[Any, int]:
        """Returns the aggregate, and how many events were read for it."""
        resident, read = await self.resident(aggregate_id)
        return resident.aggregate, read

    async def resident(self, aggregate_id: str) -> tuple[ResidentAggregate, int]:
        before = self.read
        resident = await self.runtime.restore(aggregate_id)
        return resident, self.read - before

    async def until(self, condition: Callable[[], object], what: str) -> None:
        async def holds() -> object:
            return condition()

        await eventually(holds, what)

    async def kept(self, aggregate_id: str, times: int = 25) -> Any:
        """Makes an aggregate of so many events that has a snapshot; returns it."""
        await self.put(aggregate_id, times)
        written = self.snapshots.written
        aggregate, _ = await self.restore(aggregate_id)
        await self.until(lambda: self.snapshots.written > written, "a snapshot is written")
        return aggregate

    def file(self) -> Path:
        """Returns the only snapshot."""
        (found,) = self.snapshots.folder.path.glob("*.snapshot")
        return found


@asynccontextmanager
async def world(
    folder: Path, *classes: type[d.Aggregate], files: Files | None = None, bytes_max: int = 16 * MIB, store_uuid: str = ""
) -> AsyncIterator[World]:
    """Opens the store in a folder, with snapshots of these classes (default: `Basket`)."""
    files = files or OsFiles()
    domain = domain_of(*(classes or (Basket,)))
    async with es.open_store(folder / "data") as store, trio.open_nursery() as nursery:
        access, task = embedded_access(store, nursery), trio.lowlevel.current_task()

        async def read_events(aggregate_id: str, from_version: int) -> AsyncGenerator[list[Event], None]:
            async with aclosing(access.read_events(aggregate_id, from_version)) as pages:
                async for page in pages:
                    if trio.lowlevel.current_task() is task:  # not what is compared meanwhile
                        made.read += len(page)
                    yield page

        kept = SnapshotFolder(files, folder / "snapshots", bytes_max)
        snapshots = Snapshots(files, kept, domain, store_uuid or str(store.opened.uuid), EVENTS_MIN)
        made = World(store, DomainRuntime(domain, read_events, snapshots), snapshots)
        nursery.start_soon(snapshots.run)
        yield made
        nursery.cancel_scope.cancel()
