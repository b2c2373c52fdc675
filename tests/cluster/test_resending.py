"""What a shard refuses because it gave the slot away is sent again as soon as a map says where to: no timer is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import eventstore as es
from eventstore import ANY, NewEvent, blocking
from eventstore.client import backoff
from eventstore.records.slots import slot_of
from tests.cluster.led_shards import LedShards
from tests.waiting import wait_until

EVENT = [NewEvent("Happened", b"1")]
NEVER_S = 1e6


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedShards]:
    with LedShards(tmp_path, 1) as cluster:
        monkeypatch.setattr(backoff, "FIRST_DELAY_S", NEVER_S)
        monkeypatch.setattr(backoff, "DELAY_S_MAX", NEVER_S)
        yield cluster


def leaving(cluster: LedShards) -> str:
    """Returns the id of an aggregate that the shard refuses from now on."""
    cluster.ask(0, lambda server: server.slots.give_up([(2048, 4095)]))
    return next(each for each in map("a-{}".format, range(1, 100)) if slot_of(each) >= 2048)


def requests(cluster: LedShards) -> int:
    return int(cluster.ask(0, lambda server: server.reports.stats()["requests"]))


def split_when_refused(cluster: LedShards, append: Callable[[], object]) -> None:
    """Splits the shard once it has refused the append twice: the second time the client has to wait."""
    before = requests(cluster)
    thread = threading.Thread(target=append)
    thread.start()
    wait_until(lambda: requests(cluster) >= before + 2, "it is refused twice")
    cluster.split(0)
    thread.join()


def test_a_blocking_client_sends_again_when_it_hears_of_the_split(cluster: LedShards) -> None:
    outcomes: list[Any] = []
    with blocking.connect(cluster.address) as store:
        store.append("a-0", EVENT, ANY)
        name = leaving(cluster)
        split_when_refused(cluster, lambda: outcomes.append(store.append(name, EVENT, ANY)))
        assert [each.version for each in outcomes] == [1]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_client_sends_again_when_it_hears_of_the_split(cluster: LedShards, backend: str) -> None:
    async def main() -> None:
        async with es.connect(cluster.address) as store, anyio.create_task_group() as tasks:
            await store.append("a-0", EVENT, ANY)
            name = leaving(cluster)
            before = requests(cluster)
            tasks.start_soon(store.append, name, EVENT, ANY)
            await anyio.to_thread.run_sync(lambda: wait_until(lambda: requests(cluster) >= before + 2, "it is refused twice"))
            await anyio.to_thread.run_sync(cluster.split, 0)

    anyio.run(main, backend=backend)
