"""Processes over shards, one of which is split: orders, articles and processes lie in different ones."""

from __future__ import annotations

from pathlib import Path

import eventstore as es
from eventstore import blocking
from eventstore.client.blocking.store import BlockingStore
from eventstore.domain import restore
from fulfilment import Article, Deliver, Order
from tests.cluster.led_shards import LedShards
from tests.server.commands.short_fulfilment import Fulfilment, Pay, Place
from tests.waiting import wait_until

ORDERS = [f"order-{number}" for number in range(24)]
ARTICLES = [f"article-{number}" for number in range(6)]


def test_no_order_is_left_half_by_a_split(tmp_path: Path) -> None:
    with LedShards(tmp_path, 2, domain="tests.server.commands.short_fulfilment:app") as cluster:
        with blocking.connect(cluster.address) as store:
            for each in ARTICLES:
                store.send(Deliver(each, 2))
            place(store, ORDERS[:12])
        cluster.split(0, restarts=True)
        with blocking.connect(cluster.address) as store:
            place(store, ORDERS[12:])

            def states() -> set[str]:
                store.send_many([Pay(each) for each in ORDERS[::3]])  # too early, or too late: it is refused
                found = [restore(Fulfilment, name, store.read(name)) for name in (f"Fulfilment-{each}" for each in ORDERS)]
                return {each.state if each.ended else "" for each in found}

            wait_until(lambda: "" not in states(), "every process has ended", 240)
            paid = {each for each in ORDERS if restore(Order, each, store.read(each)).state == "paid"}
            taken = [
                each.id for each in (restore(Article, name, store.read(name)) for name in ARTICLES) if each.reserved - paid
            ]
            wait_until(
                lambda: {order for name in ARTICLES for order in restore(Article, name, store.read(name)).reserved} == paid,
                f"only what is paid is taken, not {taken}",
            )
            found = store.reactions.progress()
            assert {each.shard for each in found} == {0, 1, 2}
            assert not any(each.parked for each in found)


def place(store: BlockingStore, orders: list[str]) -> None:
    outcomes = store.send_many([Place(each, ARTICLES[number % len(ARTICLES)]) for number, each in enumerate(orders)])
    assert all(isinstance(each, es.Committed) for each in outcomes)
