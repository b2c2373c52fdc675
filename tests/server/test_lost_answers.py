"""Lost answers: the command sent again has the same result, and there is one event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import trio

import eventstore as es
from tests.server.conftest import Serve
from tests.server.proxy import LosingProxy
from tests.server.raw import RawClient, append_frame, commit, outcomes_of
from tests.server_thread import ServerThread

LOSSES = 4


def check_once(server: ServerThread, aggregate_id: str, events: int) -> None:
    with es.blocking.connect(server.address) as store:
        found = list(store.read(aggregate_id))
    assert [event.version for event in found] == list(range(1, events + 1))
    assert [event.json() for event in found] == [{"number": number} for number in range(events)]


def test_a_connection_cut_before_the_answer_leaves_one_event(shared: ServerThread) -> None:
    for number in range(60):
        aggregate_id = f"cut-{number}"
        frame = append_frame(5, commit(aggregate_id, "c-1", bytes(number * 100)))
        client = RawClient(shared.port)
        client.send(frame if number % 4 else frame[: number + 5])
        client.cut() if number % 2 else client.close()
        with RawClient(shared.port) as client:
            client.send(frame)
            kind, version, sequence = outcomes_of(client.answer()[1])[0]
            assert (kind in (0, 1), version) == (True, 1)
            client.send(frame)
            assert outcomes_of(client.answer()[1]) == [(1, 1, sequence)]


async def append_through(address: str, aggregate_id: str) -> None:
    async with es.connect(address) as store:
        for number in range(10):
            done = await store.append(aggregate_id, [es.NewEvent("T", {"number": number})], number)
            assert done.version == number + 1


def on_asyncio(use: Callable[..., Awaitable[None]], *arguments: object) -> None:
    async def main() -> None:
        await use(*arguments)

    asyncio.run(main())


@pytest.mark.parametrize("run", [trio.run, on_asyncio], ids=["trio", "asyncio"])
def test_a_client_resends_unanswered_requests(serve: Serve, run: Callable[..., None]) -> None:
    server = serve()
    with LosingProxy(server.port, LOSSES) as proxy:
        run(append_through, proxy.address, "a")
        assert proxy.losses_left == 0
    check_once(server, "a", 10)
    assert server.ask(lambda running: running.store.engine.appender.duplicates) == LOSSES


def test_a_blocking_client_resends_unanswered_requests(serve: Serve) -> None:
    server = serve()
    with LosingProxy(server.port, LOSSES) as proxy:
        with es.blocking.connect(proxy.address) as store:
            for number in range(10):
                assert store.append("a", [es.NewEvent("T", {"number": number})], number).version == number + 1
        assert proxy.losses_left == 0
    check_once(server, "a", 10)
    assert server.ask(lambda running: running.store.engine.appender.duplicates) == LOSSES


def test_reading_resumes_after_a_lost_page(serve: Serve) -> None:
    server = serve()
    with es.blocking.connect(server.address) as store:
        store.append_many(
            [es.Commit("a", [es.NewEvent("T", bytes(20_000))] * 10, es.ANY, f"c-{number}") for number in range(20)]
        )
    with LosingProxy(server.port, LOSSES) as proxy, es.blocking.connect(proxy.address) as store:
        assert [event.version for event in store.read("a")] == list(range(1, 201))
        assert proxy.losses_left == 0


def test_a_command_is_known_after_a_restart(serve: Serve) -> None:
    server = serve()
    frame = append_frame(5, commit("a", "c-1"), commit("b", "c-1"))
    with RawClient(server.port) as client:
        client.send(frame)
        assert outcomes_of(client.answer()[1]) == [(0, 1, 1), (0, 1, 2)]
    for _ in range(2):
        server.restart()
        with RawClient(server.port) as client:
            client.send(frame)
            assert outcomes_of(client.answer()[1]) == [(1, 1, 1), (1, 1, 2)]


def test_of_two_writers_on_one_version_exactly_one_wins(shared: ServerThread) -> None:
    with RawClient(shared.port) as first, RawClient(shared.port) as second:
        for version in range(100):
            for name, client in (("first", first), ("second", second)):
                client.send(append_frame(version + 10, commit("two", f"{name}-{version}", expected=version)))
            kinds = [outcomes_of(client.answer()[1])[0][:2] for client in (first, second)]
            assert sorted(kinds) == [(0, version + 1), (2, version + 1)]
