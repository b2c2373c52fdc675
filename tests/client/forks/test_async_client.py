"""The async client in a child: refused by name, whatever runs there, while the parent goes on."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio
import trio.testing

import eventstore as es
from tests.client.forks.child import Child, error_of
from tests.client.test_connecting import loops
from tests.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
EVENT = es.NewEvent("Happened", b"1")
Runner = Callable[..., None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


def first_step(call: Any) -> Any:
    """Runs a coroutine up to where it would wait, or to its end."""
    try:
        call.send(None)
    except StopIteration as ended:
        return ended.value
    finally:
        call.close()
    return "it waits"


@loops
def test_every_call_is_refused_before_it_waits_for_anything(run: Runner, server: ServerProcess) -> None:
    async def use() -> None:
        async with es.connect(server.address) as store:
            await store.append("refused", [EVENT], es.ANY)
            before = await store.version("refused")
            events = store.subscribe()
            assert isinstance(await anext(events), es.Event)

            def asks() -> list[str]:
                calls = (
                    lambda: store.version("refused"), lambda: store.append("refused", [EVENT], es.ANY),
                    lambda: store.append_many([es.Commit("refused", [EVENT], es.ANY)]), lambda: anext(store.read("refused")),
                    store.stats, lambda: store.topic("t").send(b"1"), store.broker.topics,
                )  # fmt: skip
                return [error_of(lambda each=each: first_step(each())) for each in calls]  # type: ignore[misc]

            answers = await anyio.to_thread.run_sync(Child(asks).result)
            assert isinstance(answers, list), answers
            for each in answers:
                assert each.startswith(f"Closed: the client of {server.address} belongs to process {os.getpid()}, which"), each
            await store.append("refused", [EVENT], es.ANY)
            assert await store.version("refused") == before + 1
            while (item := await anext(events)).sequence != before + 1:
                assert isinstance(item, es.Event | es.CaughtUp)

    run(use)


@pytest.mark.parametrize("runs", [trio.run, lambda main: asyncio.run(main())], ids=["trio", "asyncio"])
def test_another_event_loop_of_the_child_opens_a_client_of_its_own(runs: Callable[..., None], server: ServerProcess) -> None:
    """Forked from another thread than that of the event loop, as with a pool of processes that is made in one."""
    opened, over = threading.Event(), threading.Event()
    stores = list[es.NetworkStore]()

    async def keeps_one_open() -> None:
        async with es.connect(server.address) as store:
            await store.append("others", [EVENT], es.ANY)
            stores.append(store)
            opened.set()
            await anyio.to_thread.run_sync(over.wait)
            assert await store.version("others") > 0

    thread = threading.Thread(target=runs, args=(keeps_one_open,))
    thread.start()
    assert opened.wait(60)
    answers = list[str]()

    async def in_child() -> None:
        for call in (lambda: stores[0].version("others"), lambda: anext(stores[0].read("others"))):
            try:
                await call()  # type: ignore[no-untyped-call]
            except es.Closed as error:
                answers.append(str(error))
        await stores[0].aclose()
        async with es.connect(server.address) as own:
            answers.append(str(await own.version("others") > 0))

    def asks() -> list[str]:
        runs(in_child)
        return answers

    try:
        *refused, own = Child(asks).result()
    finally:
        over.set()
        thread.join()
    assert [f"belongs to process {os.getpid()}" in each for each in refused] == [True, True]
    assert own == "True"


async def test_a_child_that_goes_on_in_the_copy_of_its_event_loop_comes_to_its_end(server: ServerProcess) -> None:
    """On trio: asyncio knows that its loop does not run in a child. What tasks wait for is refused, and contexts are left."""
    result, told = os.pipe()
    refused = list[str]()

    async def waits(items: Any) -> None:
        try:
            while True:
                await anext(items)
        except es.Closed as error:
            refused.append(str(error))

    child = None
    try:
        async with es.connect(server.address) as store, trio.open_nursery() as nursery:
            await store.broker.create_topic("left", if_missing=True)
            async with store.consumer("leavers", "left"):
                items = store.subscribe(after=es.END)
                assert isinstance(await anext(items), es.CaughtUp)  # nothing is under way that the child could take
                nursery.start_soon(waits, items)
                await trio.testing.wait_all_tasks_blocked()
                child = os.fork()
                if child == 0:
                    refused.append(error_of(lambda: first_step(store.version("a"))))
                else:  # waits here: the copy of the event loop would take what is for this one
                    assert os.waitpid(child, 0) == (child, 0)  # noqa: ASYNC222 # on purpose
                    nursery.cancel_scope.cancel()
        if child == 0:
            os.write(told, "\n".join(refused).encode())
            os._exit(0)
    finally:
        if child == 0:
            os._exit(1)
    os.close(told)
    assert os.read(result, 65536).count(f"belongs to process {os.getpid()}".encode()) == 2
    os.close(result)
