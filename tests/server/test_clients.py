"""Clients against a real server: what sends and receives in one thread must not wait for itself; what is left ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import eventstore as es
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS

LARGE = 12 * 1024 * 1024


def large(size: int = LARGE) -> list[es.NewEvent]:
    return [es.NewEvent("T", bytes(size // 4)) for _ in range(4)]


def test_large_appends_go_out_while_a_large_page_comes_in(shared: ServerThread) -> None:
    done: list[int] = []

    def copy() -> None:
        with es.blocking.connect(shared.address, silence_timeout=1.0) as store:
            for version in range(0, 12, 4):
                store.append("source", large(), version)
            for event in store.read("source"):  # the next page is on its way while this one is used
                if event.version % 4 == 1:
                    store.append("copy", large(), event.version - 1)
                    done.append(event.version)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    assert done == [1, 5, 9]


class Interrupted(Exception):
    """What a user's signal handler raises."""


@contextmanager
def interrupting(seconds: float) -> Iterator[None]:
    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_call_that_is_interrupted_leaves_a_client_that_goes_on(shared: ServerThread) -> None:
    with es.blocking.connect(shared.address) as store:
        interrupted = 0
        for attempt in range(1, 9):
            try:
                with interrupting(attempt / 1000):
                    while True:
                        store.append("often", large(1024 * 1024), es.ANY)
            except Interrupted:
                interrupted += 1
            assert store.version("small") == 0
        assert interrupted == 8
        assert store.append("small", [es.NewEvent("T")], 0).version == 1
        versions = [event.version for event in store.read("often")]
        assert versions == list(range(1, len(versions) + 1))


async def test_subscriptions_that_are_dropped_make_room_for_others(shared: ServerThread) -> None:
    async with es.connect(shared.address) as store:
        for version in range(3):
            await store.append("pages", [es.NewEvent("T", bytes(600_000))], version)
        for _ in range(70):  # a connection may have 64; what is stored uses up the credit of each
            async for _ in store.subscribe(aggregate_prefix="pages"):
                break
