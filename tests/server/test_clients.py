"""Clients against a real server: one thread that sends and receives does not block itself; dropped subscriptions end."""

from __future__ import annotations

import threading

import eventstore as es
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS

LARGE = 12 * 1024 * 1024


def large() -> list[es.NewEvent]:
    return [es.NewEvent("T", bytes(LARGE // 4)) for _ in range(4)]


def test_large_appends_are_sent_while_a_large_page_arrives(shared: ServerThread) -> None:
    done: list[int] = []

    def copy() -> None:
        with es.blocking.connect(shared.address, silence_timeout=1.0) as store:
            for version in range(0, 12, 4):
                store.append("source", large(), version)
            for event in store.read("source"):  # the next page is in flight while this one is used
                if event.version % 4 == 1:
                    store.append("copy", large(), event.version - 1)
                    done.append(event.version)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    assert done == [1, 5, 9]


async def test_dropped_subscriptions_make_room_for_others(shared: ServerThread) -> None:
    async with es.connect(shared.address) as store:
        for version in range(3):
            await store.append("pages", [es.NewEvent("T", bytes(600_000))], version)
        for _ in range(70):  # a connection may have 64; the stored events use up the credit of each
            async for _ in store.subscribe(aggregate_prefix="pages"):
                break
