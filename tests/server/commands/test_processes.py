"""Processes of a server with a domain, and of one that is killed: each order ends paid, or cancelled and without its piece."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.client.blocking.store import BlockingStore
from fulfilment import Article, Deliver, Fulfilment, Order, Pay, Place
from tests.cli.processes import run
from tests.examples import EXAMPLES
from tests.ports import free_port
from tests.server.commands import short_fulfilment
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import wait_until

DOMAIN = "fulfilment:app"
SHORT = "tests.server.commands.short_fulfilment:app"
ORDERS = 40


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def restored(store: BlockingStore, cls: type[d.Aggregate], name: str) -> d.Aggregate:
    return d.restore(cls, name, list(store.read(name)))


def state(store: BlockingStore, order: str) -> str:
    return str(vars(restored(store, Fulfilment, f"Fulfilment-{order}")).get("state", ""))


def test_an_order_goes_its_way_and_an_operator_looks_at_it(tmp_path: Path) -> None:
    with ServerThread(tmp_path, domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
        store.send(Deliver("pen", 1))
        for order in ("o-1", "o-2"):
            store.send(Place(order, "pen"))
            wait_until(lambda order=order: state(store, order) in ("waiting for payment", "cancelled"), "it is decided")  # type: ignore[misc]
        assert (state(store, "o-1"), state(store, "o-2")) == ("waiting for payment", "cancelled")
        assert vars(restored(store, Order, "o-2"))["state"] == "cancelled"
        at = ("--store", server.address)
        listed = json.loads(run("processes", "list", "Fulfilment", "--json", *at).stdout)
        assert [(each["process"], each["state"], each["stuck"]) for each in listed] == [
            ("Fulfilment-o-1", "waiting for payment", False)
        ]
        assert run("processes", "list", "Fulfilment", "--stuck", *at).stdout == "no process Fulfilment is stuck\n"
        shown = run("processes", "show", "Fulfilment-o-2", *at).stdout
        assert "refused Reserve" in shown
        assert "Cancel" in shown
        ended = run("processes", "end", "Fulfilment-o-1", "--because", "by hand", *at)
        assert ended.returncode == 0, ended.stderr
        again = run("processes", "end", "Fulfilment-o-1", "--because", "by hand", *at)
        assert (again.returncode, again.stdout) == (1, "Fulfilment-o-1 has not begun, or has ended\n")
        assert run("processes", "list", "Fulfilment", *at).stdout == "no process Fulfilment is under way\n"
        wait_until(lambda: vars(restored(store, Order, "o-1"))["state"] == "accepted", "it is accepted")
        store.send(Pay("o-1"))
        assert state(store, "o-1") == "waiting for payment", "it takes nothing any more"
        assert not store.timers()


def test_one_that_is_stuck_is_parked_and_no_longer_once_it_has_moved_on(tmp_path: Path) -> None:
    with ServerThread(tmp_path, domain=SHORT) as server, es.blocking.connect(server.address) as store:
        store.send(short_fulfilment.Start("j-1"))
        wait_until(lambda: store.stats()["reactions_parked"] == 1, "it is parked")
        (parked,) = store.reactions.parked("Quiet_stuck")
        assert "has made no step for 100ms, in state 'begun'" in parked.why
        store.send(short_fulfilment.Go("j-1"))
        wait_until(lambda: store.reactions.retry("Quiet_stuck", None, who="ann", why="it goes on").left == 0, "it has moved on")


@pytest.mark.heavy
def test_killed_again_and_again_no_order_is_left_half(tmp_path: Path) -> None:
    orders = [f"o-{number}" for number in range(ORDERS)]
    listen = f"127.0.0.1:{free_port()}"
    server = ServerProcess(tmp_path / "data", listen=listen, domain=SHORT)
    try:
        with es.blocking.connect(server.address) as store:
            store.send(Deliver("pen", ORDERS // 2))
            for number, order in enumerate(orders):
                store.send(short_fulfilment.Place(order, "pen"), f"place-{order}")
                if number % 8 == 7:
                    server.kill()
                    server = ServerProcess(tmp_path / "data", listen=listen, domain=SHORT)

            def ended() -> bool:
                store.send_many([short_fulfilment.Pay(each) for each in orders[::3]])  # too early, or too late: it is refused
                return all(
                    vars(restored(store, short_fulfilment.Fulfilment, f"Fulfilment-{each}")).get("ended") for each in orders
                )

            wait_until(ended, "every process has ended")
            states = {each: vars(restored(store, Order, each))["state"] for each in orders}
            pen = restored(store, Article, "pen")
            assert isinstance(pen, Article)
            paid = {each for each, found in states.items() if found == "paid"}
            assert set(states.values()) <= {"paid", "cancelled"}
            wait_until(lambda: vars(restored(store, Article, "pen"))["reserved"] == paid, "only what is paid is taken")
            assert store.stats()["reactions_parked"] == 0
    finally:
        server.kill()
