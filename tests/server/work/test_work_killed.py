"""Real processes killed under load: the server with the domain, workers, the store of workers. The store agrees with the
outcomes that senders got, and each command took effect once, on the state that those before it left.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

import eventstore as es
from tests.server.commands.command_ledger import CommandLedger
from tests.server.conftest import Launch
from tests.server.test_kill import verify
from tests.server.work.worker_process import WorkerProcess
from tests.server_process import ServerProcess

pytestmark = pytest.mark.heavy
DOMAIN = "tests.server.commands.tallies:app"
Work = Callable[..., WorkerProcess]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """Starts worker processes; they are killed at the end of the test."""
    with ExitStack() as stack:
        yield lambda store, **options: stack.enter_context(WorkerProcess(store, tmp_path, **options))


def place(address: str) -> str:
    return address.removeprefix("tcp://")


def depth(address: str) -> int:
    with es.blocking.connect(address) as store:
        return int(store.stats()["mailbox_depth"] or 0)


def test_a_server_with_a_domain_that_is_killed_loses_and_doubles_nothing(launch: Launch) -> None:
    ledger, chance = CommandLedger("server"), random.Random("server")
    servers = [launch(domain=DOMAIN)]
    address = servers[0].address

    async def kill(ledger: CommandLedger) -> None:
        for _ in range(2):
            await ledger.until(chance.randint(50, 400))
            await trio.to_thread.run_sync(servers[-1].kill)
            servers.append(await trio.to_thread.run_sync(again))
        await ledger.until(100)

    def again() -> ServerProcess:
        return launch(data=servers[0].data, listen=place(address), domain=DOMAIN)

    ledger.run([address], 500, kill)
    assert depth(address) == 0
    ledger.check(address)
    assert servers[-1].terminate() == 0
    verify(servers[0].data)


def test_a_worker_that_is_killed_loses_and_doubles_nothing(launch: Launch, work: Work) -> None:
    ledger, chance = CommandLedger("worker"), random.Random("worker")
    server = launch()
    workers = [work(server.address)]
    address = workers[0].address

    async def kill(ledger: CommandLedger) -> None:
        for _ in range(2):
            await ledger.until(chance.randint(50, 400))
            await trio.to_thread.run_sync(workers[-1].kill)
            workers.append(await trio.to_thread.run_sync(lambda: work(server.address, listen=place(address))))
        await ledger.until(100)

    ledger.run([address], 500, kill)
    assert depth(address) == 0
    ledger.check(server.address)
    assert workers[-1].terminate() == 0


def test_a_worker_continues_when_its_killed_store_is_back(launch: Launch, work: Work) -> None:
    ledger, chance = CommandLedger("store"), random.Random("store")
    servers = [launch()]
    address = servers[0].address
    worker = work(address)

    async def kill(ledger: CommandLedger) -> None:
        for _ in range(2):
            await ledger.until(chance.randint(50, 400))
            await trio.to_thread.run_sync(servers[-1].kill)
            servers.append(await trio.to_thread.run_sync(lambda: launch(data=servers[0].data, listen=place(address))))
        await ledger.until(100)

    ledger.run([worker.address], 500, kill)
    assert depth(worker.address) == 0
    ledger.check(address)
    assert worker.terminate() == 0
    assert servers[-1].terminate() == 0
    verify(servers[0].data)


@pytest.mark.long
@pytest.mark.parametrize("seed", ["one", "two"])
def test_workers_that_share_aggregates_reach_the_result_of_a_single_one(launch: Launch, work: Work, seed: str) -> None:
    ledger, chance = CommandLedger(seed, senders=18), random.Random(seed)
    server = launch()
    workers = [work(server.address) for _ in range(3)]
    addresses = [worker.address for worker in workers]

    async def kill(ledger: CommandLedger) -> None:
        for _ in range(2):
            await ledger.until(chance.randint(50, 300))
            victim = chance.randrange(3)
            await trio.to_thread.run_sync(workers[victim].kill)
            restart = partial(work, server.address, listen=place(addresses[victim]))
            workers[victim] = await trio.to_thread.run_sync(restart)
        await ledger.until(100)

    ledger.run(addresses, 600, kill)
    assert [depth(address) for address in addresses] == [0, 0, 0]
    with es.blocking.connect(server.address) as store:
        assert int(store.stats()["conflicts"] or 0) > 20, "they met"
    ledger.check(server.address)
    assert [worker.terminate() for worker in workers] == [0, 0, 0]


def test_a_server_with_the_domain_and_workers_reach_the_same_result(launch: Launch, work: Work) -> None:
    ledger, chance = CommandLedger("mixed", senders=18), random.Random("mixed")
    server = launch(domain=DOMAIN)
    workers = [work(server.address) for _ in range(2)]
    addresses = [server.address, *(worker.address for worker in workers)]

    async def kill(ledger: CommandLedger) -> None:
        nonlocal server
        for _ in range(2):
            await ledger.until(chance.randint(50, 300))
            await trio.to_thread.run_sync(server.kill)
            restart = partial(launch, data=server.data, listen=place(addresses[0]), domain=DOMAIN)
            server = await trio.to_thread.run_sync(restart)
        await ledger.until(100)

    ledger.run(addresses, 600, kill)
    assert [depth(address) for address in addresses] == [0, 0, 0]
    ledger.check(server.address)
    assert [worker.terminate() for worker in workers] == [0, 0]
    assert server.terminate() == 0
    verify(server.data)
