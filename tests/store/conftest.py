"""Stores that tests start with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventstore.chunks import witness
from eventstore.model import NewEvent
from eventstore.store.append import NewCommit
from eventstore.store.sorted import command_hash
from tests.simulated_disk import SimulatedDisk
from tests.store.stepped import Stepped, raw

Maker = Callable[..., Stepped]


@pytest.fixture
def without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same files each time: otherwise the keys of witnesses and of the hashes of command ids are random."""
    monkeypatch.setattr(witness, "new_key", lambda: witness.NO_KEY)
    monkeypatch.setattr(command_hash, "new_key", lambda: command_hash.NO_KEY)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Maker]:
    """Opens stores, and closes their directories at the end, because LMDB must not be opened twice."""
    stores: list[Stepped] = []

    def make(disk: SimulatedDisk | None = None, directory: str = "lmdb", **changes: object) -> Stepped:
        store = Stepped(disk if disk is not None else SimulatedDisk(0), tmp_path / directory, **changes)  # type: ignore[arg-type]
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.abandon()


def order(number: int) -> NewCommit:
    """Returns a commit of one to three events on one of five aggregates."""
    events = [NewEvent(f"Type{place}", f"{number}.{place}".encode() * 8, b"meta") for place in range(1 + number % 3)]
    return raw(f"order-{number % 5}", f"command-{number}", *events)


@pytest.fixture
def filled(opened: Maker) -> Stepped:
    """Two sorted files, two completed ones, and an ongoing one of several batches."""
    return fill(opened())


def fill(store: Stepped, commits: int = 100) -> Stepped:
    for number in range(commits):
        store.append(order(number))
        if number in (commits // 4, commits // 2):
            store.sort(files=1)
    return store
