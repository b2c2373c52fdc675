"""Decisions beside clients that write what they depend on without a pause: after some conflicts, each goes first."""

from __future__ import annotations

from typing import Any

import pytest

import eventstore as es
from eventstore import flat
from eventstore.protocol.answers import Outcomes
from eventstore.protocol.request_codec import encode_append
from eventstore.server.requests import precedence
from tests.server.commands.accounts import Move, MoveSlowly, MoveWithin, Open
from tests.server.commands.enrolments import Enrol, EnrolSlowly, Offer
from tests.server.commands.hot_writers import hot_writers
from tests.server.conftest import Begin, Serve
from tests.server.raw import RawClient
from tests.waiting import wait_until

SCOPE = "{courses}"
QUERY = es.Query(["Offered"], ["course:c1"])
_FLIGHT = 3
"""Conflicts with what was already on its way to the disk, at most: the mailboxes pause for longer each time."""


@pytest.fixture(autouse=True)
def _as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "HELD_S_MAX", 600.0)


def offered(number: int) -> tuple[str, es.NewEvent]:
    return f"w-{SCOPE}-{number}", es.NewEvent("Offered", {"course": "c1", "places": 9}, tags=["course:c1"])


def decided(store: Any, command_id: str, after: object) -> None:
    store.commit(
        [es.Write(f"d-{SCOPE}", [es.NewEvent("Decided", b"")], es.ANY)],
        unless=QUERY,
        after=after,
        command_id=command_id,
        scope=SCOPE,
    )


@pytest.mark.parametrize("kind", [Enrol, EnrolSlowly])
def test_a_command_about_a_query_beside_a_hot_tag_is_stored_after_few_conflicts(host: Begin, kind: Any) -> None:
    """It was never stored, and its sender got no answer for 10 seconds."""
    running = host(domain="tests.server.commands.enrolments:app")
    with running.connect() as store:
        store.send(Offer(f"course-{SCOPE}-c1", "c1", 9))
        with hot_writers(running.store_address, offered) as counts:
            for number in range(5):
                before = running.stats()["command_conflicts"]
                assert isinstance(store.send(kind(f"e-{SCOPE}-{number}", "c1", f"s{number}")), es.Committed)
                conflicts = running.stats()["command_conflicts"] - before
                assert conflicts <= precedence.CONFLICTS_MAX + _FLIGHT, "others came before after it went first"
            written = list(counts)
            wait_until(lambda: all(new > old for new, old in zip(counts, written, strict=True)), "a writer was forgotten")


@pytest.mark.parametrize("kind", [Move, MoveSlowly, MoveWithin])
def test_a_command_about_hot_aggregates_is_stored_after_few_conflicts(host: Begin, kind: Any) -> None:
    running = host(domain="tests.server.commands.accounts:app")
    names = ("one{t}", "two{t}", "three{t}")
    others = names[2:] if kind is MoveWithin else ()
    with running.connect() as store:
        for name in names:
            store.send(Open(name, 500))
        with hot_writers(running.store_address, lambda number: (names[number % 2], es.NewEvent("Changed", {"cents": 0}))):
            for _ in range(5):
                before = running.stats()["command_conflicts"]
                assert isinstance(store.send(kind(*names[:2], 1, *others)), es.Committed)
                conflicts = running.stats()["command_conflicts"] - before
                assert conflicts <= precedence.CONFLICTS_MAX + _FLIGHT, "others came before after it went first"


def test_a_client_that_decides_beside_a_hot_tag_is_answered_after_few_conflicts(serve: Serve) -> None:
    server, conflicts = serve(), 0
    with es.blocking.connect(server.address) as store, hot_writers(server.address, offered):
        while True:
            _, after = store.query(QUERY)
            try:
                decided(store, "k", after)
            except es.ConditionFailed:
                conflicts += 1
                assert conflicts <= precedence.CONFLICTS_MAX + _FLIGHT, "others came before after it went first"
            else:
                break


def conflict(store: Any, times: int) -> object:
    """Has command k conflict so often; returns a place up to which it holds."""
    _, after = store.query(QUERY)
    name, event = offered(0)
    store.append(name, [event], es.ANY)
    for _ in range(times):
        with pytest.raises(es.ConditionFailed):
            decided(store, "k", after)
    return store.query(QUERY)[1]


def appending(*names: str, command: str = "of", request_id: int = 9) -> bytes:
    commits = [(name, es.ANY, f"{command}-{name}", None, flat.encode(es.NewEvent("E", b"x"))) for name in names]
    return encode_append(request_id, commits)


def wait_for_answer(client: RawClient) -> None:
    answered, outcomes = client.answer()
    assert answered == 9
    assert isinstance(outcomes, Outcomes)


def test_while_a_decision_goes_first_others_wait_in_its_slot_alone(serve: Serve) -> None:
    server = serve()
    with (
        es.blocking.connect(server.address) as store,
        RawClient(server.port) as held,
        RawClient(server.port) as gone,
        RawClient(server.port) as free,
    ):
        after = conflict(store, precedence.CONFLICTS_MAX)
        held.send(appending(f"h-{SCOPE}"))
        gone.send(appending(f"g-{SCOPE}"))
        wait_until(lambda: store.stats()["decisions_first_held"] == 2, "not both are held")
        gone.socket.close()
        free.send(appending("elsewhere"))
        wait_for_answer(free)
        decided(store, "k", after)
        wait_for_answer(held)
        assert not list(store.read(f"g-{SCOPE}")), "its client has gone"
        assert (store.stats()["decisions_first"], store.stats()["decisions_first_expired"]) == (1, 0)
        free.send(appending(f"f-{SCOPE}"))
        wait_for_answer(free)
        assert store.stats()["decisions_first_held"] == 2, "nothing is held any more"
        order = [event.aggregate_id for event in store.read_all() if SCOPE in event.aggregate_id]
    assert order[1:] == [f"d-{SCOPE}", f"h-{SCOPE}", f"f-{SCOPE}"]


def test_what_follows_a_request_that_waits_does_not_pass_it(serve: Serve) -> None:
    """A client may send events of an aggregate in several requests without waiting for an answer: they stay in order."""
    server = serve()
    with es.blocking.connect(server.address) as store, RawClient(server.port) as client:
        after = conflict(store, precedence.CONFLICTS_MAX)
        client.send(appending(f"h-{SCOPE}", "elsewhere", command="first"))
        client.send(appending("elsewhere", "further", command="second"))
        client.send(appending("further", command="third"))
        client.send(appending("free", request_id=10))
        assert client.answer()[0] == 10, "it has nothing in common with what waits"
        decided(store, "k", after)
        for _ in range(3):
            wait_for_answer(client)
        assert [event.command_id for event in store.read("elsewhere")] == ["first-elsewhere", "second-elsewhere"]
        assert [event.command_id for event in store.read("further")] == ["second-further", "third-further"]


def test_a_decision_that_does_not_come_back_goes_first_for_a_while_only(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "HELD_S_MAX", 0.05)
    server = serve()
    with es.blocking.connect(server.address) as store:
        conflict(store, precedence.CONFLICTS_MAX)
        name, event = offered(0)
        store.append(name, [event], es.ANY)
        wait_until(lambda: store.stats()["decisions_first_expired"] == 1, "it is held for ever")
        store.append(name, [event], es.ANY)


def test_fewer_conflicts_hold_nothing(serve: Serve) -> None:
    server = serve()
    with es.blocking.connect(server.address) as store:
        after = conflict(store, precedence.CONFLICTS_MAX - 1)
        decided(store, "k", after)
        assert store.stats()["decisions_first"] == 0


def test_a_decision_that_is_rejected_holds_nothing_any_longer(serve: Serve) -> None:
    """No commit says so: its handler changes nothing once the places are taken."""
    server = serve(domain="tests.server.commands.enrolments:app")
    full = es.NewEvent("Offered", {"course": "c1", "places": 0}, tags=["course:c1"])
    with es.blocking.connect(server.address) as store:
        store.send(Offer(f"course-{SCOPE}-c1", "c1", 9))
        with hot_writers(server.address, lambda number: (f"w-{SCOPE}-{number}", full)):
            with pytest.raises(es.Rejected, match="full"):
                store.send(Enrol(f"e-{SCOPE}", "c1", "s"))
        assert store.stats()["decisions_first_expired"] == 0
