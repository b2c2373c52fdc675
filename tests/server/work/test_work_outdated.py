"""Two workers run a domain in two versions, as while it is deployed: the older one is passed over at what the newer stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import eventstore as es
from tests.server.work.worker_process import WorkerProcess
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS

BEFORE, NOW = "tests.server.work.people_before:app", "tests.server.work.people_now:app"
Workers = tuple[str, str, str]


def move(person: str, to: str) -> es.RawCommand:
    return es.RawCommand("Move", person, f'{{"person":"{person}","to":"{to}"}}'.encode())


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """The addresses of the older one, of the newer one, and of the store."""
    folder: Path = tmp_path_factory.mktemp("outdated")
    with (
        ServerThread(folder / "data") as server,
        WorkerProcess(server.address, folder, domain=BEFORE) as older,
        WorkerProcess(server.address, folder, domain=NOW) as newer,
    ):
        yield older.address, newer.address, server.address


def test_an_older_worker_says_so_retriably(workers: Workers) -> None:
    older, newer, _ = workers
    with es.blocking.connect(newer) as store:
        store.send(move("ada", "Paris"))
    with es.blocking.connect(older) as store:
        with pytest.raises(es.OutdatedCode, match="stored in version 2, but this code knows only up to 1") as caught:
            store.send(move("ada", "Rome"))
        assert caught.value.retriable
        assert caught.value.fields["schema"] == 2
        assert isinstance(store.send(move("bea", "Rome")), es.Committed)
    with es.blocking.connect(f"{older},{older.replace('127.0.0.1', 'localhost')}") as store:
        with pytest.raises(es.OutdatedCode):  # all that it knows are outdated
            store.send(move("ada", "Rome"))


def test_a_blocking_client_that_knows_another_worker_passes_it_over(workers: Workers) -> None:
    older, newer, _ = workers
    with es.blocking.connect(newer) as store:
        store.send(move("cid", "Paris"))
    with es.blocking.connect(f"{older},{newer}") as store:
        assert isinstance(store.send(move("cid", "Rome"), "to-rome"), es.Committed)
        assert store.send(move("cid", "Rome"), "to-rome").duplicate


def test_a_batch_is_sent_again_only_where_it_was_refused(workers: Workers) -> None:
    older, newer, stored = workers
    twice = older.replace("127.0.0.1", "localhost")  # a third worker, as far as the client knows
    with es.blocking.connect(newer) as store:
        store.send_many([move(person, "Paris") for person in ("dan", "eva")])
    with es.blocking.connect(older) as store:
        refused, done = store.send_many([move("dan", "Rome"), move("fay", "Rome")])
        assert isinstance(refused, es.OutdatedCode)
        assert isinstance(done, es.Committed)
    with es.blocking.connect(f"{older},{twice},{newer}") as store:
        commands = [(move(person, to), f"to-{to}") for person in ("dan", "gus", "eva") for to in ("Rome", "Oslo", "Bern")]
        outcomes = store.send_many(iter([*commands, "no command"]))
        assert [type(each) for each in outcomes] == [es.Committed] * 9 + [es.DomainRefused]
        versions = [each.version for each in outcomes if isinstance(each, es.Committed)]
        assert versions == [2, 3, 4, 1, 2, 3, 2, 3, 4], "in order for each aggregate"
        assert all(each.duplicate for each in store.send_many(commands) if isinstance(each, es.Committed))
    with es.blocking.connect(f"{older},{twice}") as store:
        assert isinstance(store.send_many([move("dan", "Kyiv")])[0], es.OutdatedCode)
    with es.blocking.connect(stored) as store:
        assert [store.version(person) for person in ("dan", "eva", "gus")] == [4, 4, 3]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_an_async_client_that_knows_another_worker_passes_it_over(backend: str, workers: Workers) -> None:
    older, newer, stored = workers
    people = [f"{backend}-{number}" for number in range(20)]

    async def test() -> None:
        with anyio.fail_after(DEADLINE_SECONDS):
            async with es.connect(newer) as store:
                await store.send_many([move(each, "Paris") for each in people])
            async with es.connect(f"{older},{newer}") as store, anyio.create_task_group() as tasks:
                for each in people:
                    tasks.start_soon(store.send, move(each, "Rome"), "to-rome")
            async with es.connect(f"{older},{newer}") as store:
                moved = await store.send_many([move(each, "Oslo") for each in people])
                assert all(isinstance(each, es.Committed) for each in moved)
            async with es.connect(stored) as store:
                assert [await store.version(each) for each in people] == [3] * len(people)

    anyio.run(test, backend=backend)
