"""Helpers to run an embedded store on a simulated disk that a test can block.

`slow` blocks the disk: other threads wait for it, the event loop keeps running. So a test controls what happens while a batch
is being written, without a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from eventstore.model import Event
from eventstore.settings.store import StoreSettings
from eventstore.store.embedded import EmbeddedStore
from tests.simulated_disk import SimulatedDisk
from tests.store.stepped import Stepped

ROOMY = StoreSettings(file_size_bytes=1 << 20, preallocate_bytes=64 << 10, sort=False, page_bytes=4096)
SMALL_FILES = replace(ROOMY, file_size_bytes=8192, preallocate_bytes=4096)
ASYNC = replace(ROOMY, durability="async", flush_interval_s=0.1)

Opener = Callable[..., AbstractAsyncContextManager[EmbeddedStore]]


def left_after(disk: SimulatedDisk, tmp_path: Path, mode: str = "lost") -> list[Event]:
    """Returns the events that would remain if the power failed now."""
    store = Stepped(disk.survivors(mode), tmp_path / f"left-{mode}-{disk._outcomes}")  # type: ignore[arg-type] # a mode
    state = store.state()
    store.abandon()
    return state


@contextmanager
def slow(disk: SimulatedDisk) -> Iterator[None]:
    with disk._lock:
        yield


async def everything(store: EmbeddedStore) -> list[Event]:
    return [event async for event in store.read_all()]
