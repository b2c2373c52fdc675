"""Timers of a server with a domain: set, moved and cancelled by handlers, clients and reactions, and sent when they are due."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import eventstore as es
from eventstore.client.blocking.store import BlockingStore
from tests.server.commands.domain_hosts import KINDS, DomainHost
from tests.server.commands.orders import Extend, Pay, Place, Remind
from tests.server_thread import ServerThread
from tests.waiting import wait_until

DOMAIN = "tests.server.commands.orders:app"


def types(store: BlockingStore, aggregate_id: str) -> list[str]:
    return [event.type for event in store.read(aggregate_id)]


def outcomes(store: BlockingStore, owner: str) -> list[tuple[str, str | None]]:
    found = [json.loads(event.data) for event in store.read(f"$timers{{{owner}}}") if event.type == "$TimerEnded"]
    return [(each["how"], each.get("why")) for each in found]


def test_a_command_is_sent_when_it_is_due(tmp_path: Path) -> None:
    with ServerThread(tmp_path, domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
        store.send(Place("order-1", "20ms"))
        wait_until(lambda: outcomes(store, "order-1"), "it is sent, and its outcome recorded")
        assert types(store, "order-1") == ["Placed", "$TimerSet", "Cancelled"]
        assert outcomes(store, "order-1") == [("accepted", None)]
        fired = list(store.read("order-1"))[-1]
        assert fired.command_id == "timer/order-1/2"
        assert fired.causation_id == "order-1/2"
        assert store.timers() == []


def test_a_timer_that_was_cancelled_in_time_is_not_sent(tmp_path: Path) -> None:
    with ServerThread(tmp_path, domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
        store.send(Place("order-1", "1h"))
        assert [(each.aggregate_id, each.timer, each.command, each.target) for each in store.timers()] == [
            ("order-1", "payment", "CancelIfUnpaid", "order-1")
        ]
        store.send(Pay("order-1"))
        assert store.timers() == []
        assert outcomes(store, "order-1") == []


def test_a_timer_that_is_moved_is_sent_at_its_new_time_under_another_id(tmp_path: Path) -> None:
    with ServerThread(tmp_path, domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
        store.send(Place("order-1", "1h"))
        store.send(Extend("order-1", "10ms"))
        wait_until(lambda: outcomes(store, "order-1"), "it is sent")
        assert types(store, "order-1") == ["Placed", "$TimerSet", "$TimerMoved", "Cancelled"]
        assert list(store.read("order-1"))[-1].command_id == "timer/order-1/3"


def test_a_handler_that_refuses_sets_no_timer(tmp_path: Path) -> None:
    with ServerThread(tmp_path, domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
        store.send(Place("order-1", "1h"))
        with pytest.raises(es.Rejected):
            store.send(Place("order-1", "1h"))
        assert types(store, "order-1") == ["Placed", "$TimerSet"]


def test_a_client_and_a_reaction_set_timers(tmp_path: Path) -> None:
    with ServerThread(tmp_path, domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
        done = store.send_later(Remind("order-1", "hello"), "c-1", after="20ms")
        assert store.send_later(Remind("order-1", "hello"), "c-1", after="20ms").version == done.version
        store.send(Place("order-2", "1h"))
        store.append("order-3", [es.NewEvent("Placed", {"within": "reminded"})], 0)
        wait_until(lambda: outcomes(store, "order-1"), "the client's is sent")
        wait_until(lambda: outcomes(store, "order-3"), "the reaction's is sent")
        assert types(store, "order-1") == ["Reminded"]
        assert types(store, "order-3") == ["Placed", "Reminded"]
        assert [each.timer for each in store.timers()] == ["payment"]


def test_a_rejection_is_an_outcome_and_a_failure_is_parked_until_it_is_run_again(tmp_path: Path) -> None:
    with ServerThread(tmp_path, domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
        store.send(Place("order-1", "1h"))
        store.append("order-1", [es.NewEvent("Paid", {})], 2)
        store.run_now("order-1", "payment")
        wait_until(lambda: outcomes(store, "order-1"), "it is rejected")
        ((how, why),) = outcomes(store, "order-1")
        assert (how, why) == ("rejected", "Rejected: it is paid")
        store.send_later(Remind("order-2", "bug"), after="1ms", name="buggy")
        wait_until(lambda: store.timers(aggregate_id="order-2")[0].why, "it is parked")
        (parked,) = store.timers()
        assert (parked.timer, parked.command) == ("buggy", "Remind")
        assert "a bug in a handler" in str(parked.why)
        assert store.stats()["timers_parked"] == 1
        store.run_now("order-2", "buggy")
        wait_until(lambda: len(outcomes(store, "order-2")) == 2, "it has failed again")
        assert [each.timer for each in store.timers()] == ["buggy"]
        store.cancel_later("order-2", "buggy")
        assert store.timers() == []


def test_pending_timers_are_there_after_a_restart_also_without_the_file(tmp_path: Path) -> None:
    with ServerThread(tmp_path, domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
        store.send(Place("order-1", "1h"))
        store.send(Place("order-2", "1h"))
        assert len(store.timers()) == 2
    assert (tmp_path / "timers.index").exists()
    for _ in range(2):
        with ServerThread(tmp_path, domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
            assert len(store.timers()) == 2
        (tmp_path / "timers.index").unlink()


def test_a_malformed_event_hides_no_timer_of_its_aggregate(tmp_path: Path) -> None:
    with ServerThread(tmp_path, domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
        store.append("order-1", [es.NewEvent("$TimerMoved", b"no JSON")], es.ANY)
        store.send_later(Remind("order-1", "x"), after="1h", name="later")
        assert [each.timer for each in store.timers(aggregate_id="order-1")] == ["later"]


def test_an_unknown_command_or_timer_is_refused_by_name(tmp_path: Path) -> None:
    with ServerThread(tmp_path, domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
        with pytest.raises(es.UnknownCommand):
            store.send_later(es.RawCommand("Nothing", "a", b'{"a":"a"}'), after="1h")
        with pytest.raises(es.InvalidArgument, match="no timer 'payment'"):
            store.cancel_later("order-1", "payment")
        with pytest.raises(es.InvalidArgument, match="such as 1h30m"):
            store.send_later(Remind("order-1", "x"), after="soon")


@pytest.mark.parametrize("kind", KINDS)
def test_timers_run_where_the_domain_runs(kind: str, tmp_path: Path) -> None:
    host = DomainHost(kind, tmp_path, DOMAIN, tmp_path / "reactions.json")
    with host._stack, host.connect() as store, es.blocking.connect(host.store_address) as events:
        names = [f"order-{number}" for number in range(20)]
        for name in names:
            store.send(Place(name, "10ms"))
            store.send_later(Remind(name, "client"), after="10ms")
        store.send(Place("later", "1h"))
        events.append("reminded", [es.NewEvent("Placed", {"within": "reminded"})], 0)
        for name in names:
            wait_until(lambda name=name: len(outcomes(events, name)) == 2, f"both timers of {name} have ended")
            assert sorted(types(events, name)) == ["$TimerSet", "Cancelled", "Placed", "Reminded"]
        wait_until(lambda: outcomes(events, "reminded") == [("accepted", None)], "the reaction's is sent")
        wait_until(lambda: [each.aggregate_id for each in store.timers()] == ["later"], "one is pending")
        store.run_now("later", "payment")
        wait_until(lambda: outcomes(events, "later") == [("accepted", None)], "it was run")
