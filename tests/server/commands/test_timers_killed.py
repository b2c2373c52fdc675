"""A real server is killed while it sends what is due: each timer takes effect once, and ends."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import eventstore as es
from eventstore.client.blocking.store import BlockingStore
from tests.cli.processes import run
from tests.server.commands.orders import Place
from tests.server.conftest import Launch
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.heavy
DOMAIN = "tests.server.commands.orders:app"
ROUNDS, ORDERS = 6, 150


def accepted(store: BlockingStore, at_least: int) -> bool:
    return int(store.stats()["timers_accepted"] or 0) >= at_least


def check_once(store: BlockingStore, orders: list[str]) -> None:
    """Each order was cancelled once, and each of its timers has one outcome."""
    wait_until(lambda: not store.timers(), "none is pending")
    events = Counter((event.aggregate_id, event.type) for event in store.read_all())
    for order in orders:
        assert (events[order, "Cancelled"], events[f"$timers{{{order}}}", "$TimerEnded"]) == (1, 1), order
    hows = {json.loads(event.data)["how"] for event in store.read_all(types=["$TimerEnded"])}
    assert hows == {"accepted"}


def test_each_timer_takes_effect_once_whenever_the_server_is_killed(launch: Launch) -> None:
    chance, orders = random.Random(11), list[str]()
    server = launch(domain=DOMAIN, file_size_bytes=64 * 1024, preallocate_bytes=16 * 1024)
    for number in range(ROUNDS):
        with es.blocking.connect(server.address, reconnect_timeout=0.0) as store, suppress(es.ConnectionLost, es.TimedOut):
            names = [f"order-{number}-{each}" for each in range(ORDERS)]
            store.send_many([(Place(name, f"{chance.randint(1, 400)}ms"), f"place-{name}") for name in names])
            orders += names
            wait_until(partial(accepted, store, chance.randint(1, ORDERS)), "some were sent", DEADLINE_SECONDS)
        server.process.kill()
        assert server.process.wait(DEADLINE_SECONDS) == -9
        if number % 2:
            (server.data / "timers.index").unlink(missing_ok=True)
        server = launch(data=server.data, domain=DOMAIN, file_size_bytes=64 * 1024, preallocate_bytes=16 * 1024)
    with es.blocking.connect(server.address) as store:
        check_once(store, orders)
    assert server.terminate() == 0
    checked = run("verify", server.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_what_has_become_due_while_no_server_ran_is_sent_in_its_order(launch: Launch, tmp_path: Path) -> None:
    server = launch(domain=DOMAIN)
    with es.blocking.connect(server.address) as store:
        for place in range(20):
            store.send_later(es.RawCommand("Remind", "order-1", json.dumps({"order": "order-1", "text": f"{place}"}).encode()),
                             after=f"{300 - place}ms")  # fmt: skip
    server.process.kill()
    server.process.wait(DEADLINE_SECONDS)
    server = launch(data=server.data, domain=DOMAIN)
    with es.blocking.connect(server.address) as store:
        wait_until(lambda: store.version("order-1") == 20, "all are sent")
        sent = [event.command_id for event in store.read("order-1")]
        due = {f"timer/$timers{{order-1}}/{event.version}": event.timestamp + event.json()["after_us"]
               for event in store.read("$timers{order-1}") if event.type == "$TimerSet"}  # fmt: skip
    assert sent == sorted(sent, key=lambda each: due[each])
