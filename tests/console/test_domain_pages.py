"""What a loaded domain adds to the console: reactions with what they parked, and aggregates as the domain folds them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from tests.console.conftest import Serve
from tests.console.http import Visitor
from tests.console.test_browser import CHECKS
from tests.examples import EXAMPLES
from tests.security.access_file import give
from tests.server.commands import echoes
from tests.waiting import wait_until

DOMAIN = "tests.server.commands.echoes:app"


@pytest.fixture(autouse=True)
def broken() -> Iterator[None]:
    """The reaction to the calls of `a` and `c` fails until it is mended."""
    echoes.failing.update(a="a bug <b>", c="another")
    yield
    echoes.failing.clear()


def park(store: es.blocking.BlockingStore, *calls: echoes.Call) -> None:
    """Has the events of these calls parked."""
    store.send_many(calls)
    wait_until(lambda: store.stats()["reactions_parked"] == len(calls), "they are parked")


def test_parked_events_are_retried_and_skipped_in_a_browser(serve: Serve, browser: Any) -> None:
    server = serve(domain=DOMAIN)
    page = browser.new_page()
    with es.blocking.connect(server.address) as store:
        park(store, echoes.Call("a", 1), echoes.Call("a", 2), echoes.Call("c", 4))
        page.goto(f"{server.http}/console")
        page.click("nav >> text=Reactions")
        page.click("a:text-is('echo')")
        assert page.locator("a:has-text('Skip this event of a')").count() == 1  # the second waits behind it
        echoes.failing.clear()

        def do(action: str, why: str) -> None:
            page.click(f"a:has-text('{action}')")
            page.wait_for_selector("text=Are you sure?")
            page.fill("#why", why)
            page.click("button.danger")

        do("Skip this event of a", "sent by hand")
        page.wait_for_selector("text=echo: 2 events are no longer parked, 1 still are")
        do("Retry all", "mended")
        page.wait_for_selector("text=echo: 1 events are handled, 0 are still parked")
        page.wait_for_selector("text=Nothing is parked.")
        assert [event.json()["number"] for event in store.read("echo-a")] == [2]
        assert [event.json()["number"] for event in store.read("echo-c")] == [4]
        records = [event.json() for event in store.read("$parked{c}") if event.type == "$Unparked"]
    assert [each["why"] for each in records] == ["mended"]
    page.close()


def test_what_is_parked_is_shown_and_skipped_with_the_permission_alone_and_audited(serve: Serve, tmp_path: Path) -> None:
    reader, admin = give(tmp_path / "data", "ann", "reader"), give(tmp_path / "data", "root", "admin")
    server = serve(domain=DOMAIN)
    given = {"reaction": "echo", "aggregate": "a", "why": "by hand"}
    with es.blocking.connect(server.address, token=admin) as store:
        park(store, echoes.Call("a", 1))
        (reaction,) = store.reactions.progress()
        ann, root = Visitor(server.http), Visitor(server.http)
        ann.sign_in(reader)
        found = ann.get("/console/reactions?name=echo")
        assert f"echo Called running {reaction.position}" in found.words
        assert "needs the permission reactions to see what is parked" in found.words
        assert "Skip this" not in found.words
        assert ann.post("/console/do/skip", given).status == 403
        assert len(store.reactions.parked("echo")) == 1
        root.sign_in(admin)
        found = root.get("/console/reactions?name=echo")
        assert "ValueError: a bug <b>" in found.words
        assert "<b>" not in found.text
        assert "Skip this" in found.words
        assert "Nothing is parked." in root.get(f"/console/reactions?name=echo&skip={2**63 - 1}").words
        root.get("/console/do/skip?reaction=echo&aggregate=a")
        assert root.post("/console/do/skip", given).status == 303
        assert store.reactions.parked("echo") == []
        audited: list[Any] = [event.json() for event in store.read("$audit")]
        records: list[Any] = [event.json() for event in store.read("$parked{a}") if event.type == "$Unparked"]
    assert [(each["who"], each["details"]["why"]) for each in audited if each["what"] == "SKIP_PARKED"] == [("root", "by hand")]
    assert [each["who"] for each in records] == ["root"]


def test_a_visitor_who_is_not_signed_in_is_named_so_in_what_they_skip(serve: Serve) -> None:
    server = serve(domain=DOMAIN)
    with es.blocking.connect(server.address) as store:
        park(store, echoes.Call("a", 1))
        visitor = Visitor(server.http)
        visitor.get("/console/do/skip?reaction=echo&aggregate=a")
        assert visitor.post("/console/do/skip", {"reaction": "echo", "aggregate": "a", "why": ""}).status == 303
        records: list[Any] = [event.json() for event in store.read("$parked{a}") if event.type == "$Unparked"]
    assert [(each["who"], each["why"]) for each in records] == [("console (not signed in)", "console")]


def test_what_a_command_and_its_reactions_did_is_on_one_page(serve: Serve) -> None:
    server = serve(domain=DOMAIN)
    visitor = Visitor(server.http)
    with es.blocking.connect(server.address) as store:
        store.append("stranger", [es.NewEvent("Other")], 0, "another")
        store.send(echoes.Call("b", 3))
        wait_until(lambda: store.version("echo-b"), "it is echoed")
        (event,) = store.read("b")
    log = visitor.get("/console/log").text
    assert '<a href="/console/aggregates/chain?id=echo-b&amp;version=1">' in log
    for path in ("id=b&version=1", "id=echo-b&version=1"):
        found = visitor.get(f"/console/aggregates/chain?{path}")
        assert f"Correlation {event.command_id}" in found.words
        assert re.findall(r'class="depth-(\d)">\s*<article.*?<a [^>]*>([^<]+)</a>', found.text, re.DOTALL) == [
            ("0", "b"), ("1", "echo-b"),
        ]  # fmt: skip
    assert "these 2. What" in found.words
    assert "this one. What" in visitor.get("/console/aggregates/chain?id=stranger&version=1").words
    assert visitor.get("/console/aggregates/chain?id=b&version=9").status == 400


def test_what_belongs_together_is_found_among_more_events_of_the_same_minute_than_are_examined(serve: Serve) -> None:
    server = serve()
    visitor = Visitor(server.http)
    many = [es.NewEvent("Other", {"n": 1}, {"correlation_id": "others"})] * 1_000
    with es.blocking.connect(server.address) as store:
        for number in range(11):
            store.append(f"before-{number}", many, 0)
        store.append("asked", [es.NewEvent("Asked")], 0, 'say "hi"')
        for number in range(4):
            store.append(f"after-{number}", many, 0)
        store.append("stranger", [es.NewEvent("Told", {}, {"correlation_id": "another"})], 0, 'say "hi"')
        store.append("told", [es.NewEvent("Told", {}, {"correlation_id": 'say "hi"', "causation_id": "asked/1"})], 0)
    for path, examined in (("id=asked&version=1", "9,003"), ("id=told&version=1", "5,001")):
        found = visitor.get(f"/console/aggregates/chain?{path}")
        assert f'Correlation say "hi" : of {examined} events around {path[3:].partition("&")[0]}/1' in found.words
        assert re.findall(r'class="depth-(\d)">\s*<article.*?<a [^>]*>([^<]+)</a>', found.text, re.DOTALL) == [
            ("0", "asked"), ("1", "told"),
        ]  # fmt: skip


def test_an_aggregate_is_shown_as_the_domain_folds_it_at_any_version(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    server = serve(domain="bank:app")
    visitor = Visitor(server.http)
    with es.blocking.connect(server.address) as store:
        for type, fields in (("Open", {"owner": "Ada <b>"}), ("Deposit", {"cents": 500}), ("Deposit", {"cents": 70})):
            store.send(es.RawCommand(type, "acc-1", json.dumps({"account": "acc-1", **fields}).encode()))
        store.append("stranger", [es.NewEvent("Unknown")], 0)
    found = visitor.get("/console/aggregates/one?id=acc-1")
    assert "State at version 3: Account" in found.words
    assert "balance 570" in found.words
    assert "Ada <b>" in found.words
    assert "<b>" not in found.text
    assert "balance 500" in visitor.get("/console/aggregates/one?id=acc-1&state=2").words
    assert "balance" not in visitor.get("/console/aggregates/one?id=acc-1&state=1").words.partition("owner")[0]
    assert "balance 570" in visitor.get("/console/aggregates/one?id=acc-1&state=99").words
    assert "no class of the domain applies all these events" in visitor.get("/console/aggregates/one?id=stranger").words


def test_projections_of_connected_projectors_are_shown_with_their_lag_and_what_they_have_parked(serve: Serve) -> None:
    server = serve()
    visitor = Visitor(server.http)
    assert "No projector or worker has connected." in visitor.get("/console/reactions").words
    with es.blocking.connect(server.address) as store:
        store.append("a", [es.NewEvent("T")] * 5, 0)
        store.note_projection("<balances>", 3, 1, 2)
        page = visitor.get("/console/reactions")
        assert re.search(r"<balances> 127\.0\.0\.1:\d+ 3 2 [\d,.]+ d 2 [\d,.]+ \w+ ago", page.words)
        assert "<balances>" not in page.text
        assert "--retry-parked" in page.words
        wait_until(lambda: "Keys parked by projections 2" in visitor.get("/console").words, "the overview has them")


def test_timers_are_shown_run_and_cancelled_by_those_who_may(serve: Serve, tmp_path: Path) -> None:
    reader, admin = give(tmp_path / "data", "ann", "reader"), give(tmp_path / "data", "root", "admin")
    server = serve(domain="tests.server.commands.orders:app")
    with es.blocking.connect(server.address, token=admin) as store:
        ann, root = Visitor(server.http), Visitor(server.http)
        ann.sign_in(reader)
        root.sign_in(admin)
        assert "No timer is pending or parked." in ann.get("/console/timers").words
        for order in ("order-1", "order-2"):
            store.send_later(es.RawCommand("Pay", order, b'{"order":"%s"}' % order.encode()), after="1h", name="late")
        found = ann.get("/console/timers?id=order-1").words
        assert "order-1 late" in found
        assert "Run now" not in found
        assert ann.post("/console/do/run-timer", {"aggregate": "order-1", "timer": "late", "why": ""}).status == 403
        assert "Run now" in root.get("/console/timers").words
        for action, order in (("run-timer", "order-1"), ("cancel-timer", "order-2")):
            root.get(f"/console/do/{action}?aggregate={order}&timer=late")
            assert root.post(f"/console/do/{action}", {"aggregate": order, "timer": "late", "why": "x"}).status == 303
        wait_until(lambda: store.timers() == [], "one is sent, one cancelled")
        assert (store.version("order-1"), store.version("order-2")) == (2, 0)
        audited: list[Any] = [event.json() for event in store.read("$audit")]
    assert [each["who"] for each in audited if each["what"] == "CHANGE_TIMER"] == ["root", "root"]


def test_a_process_is_drawn_with_the_way_that_it_went(serve: Serve, browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    server = serve(domain="fulfilment:app")
    with es.blocking.connect(server.address) as store:
        store.send(es.RawCommand("Deliver", "pen", b'{"article": "pen", "pieces": 1}'))
        store.send(es.RawCommand("Place", "o-1", b'{"order": "o-1", "article": "pen"}'))
        wait_until(lambda: any(event.json()["state"] == "waiting for payment" for event in steps(store)), "it waits")
    page = browser.new_page()
    page.goto(f"{server.http}/console/aggregates/one?id=Fulfilment-o-1")
    assert page.get_attribute("svg", "aria-label") == "the states of Fulfilment; it is waiting for payment"
    assert page.locator("svg text[font-weight=bold]").text_content() == "waiting for payment"
    assert page.evaluate(CHECKS) == []
    page.goto(f"{server.http}/console/aggregates/one?id=Fulfilment-o-1&state=2")
    assert page.locator("svg text[font-weight=bold]").text_content() == "reserving"
    page.close()


def steps(store: es.blocking.BlockingStore) -> list[es.Event]:
    return [event for event in store.read("Fulfilment-o-1") if event.type == "FulfilmentStepped"]
