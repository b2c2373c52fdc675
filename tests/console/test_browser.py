"""The console in Debian's chromium: no errors, live figures, actions, and what everyone needs to use a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore.console import history
from eventstore.console.pages import log
from tests.examples import EXAMPLES
from tests.security.access_file import give
from tests.server.commands import echoes
from tests.server_thread import ServerThread
from tests.waiting import wait_until

PAGES = (
    "/console", "/console/aggregates", "/console/aggregates/one?id=order-1", "/console/aggregates/one?id=order-2&from=52",
    "/console/log", "/console/broker",
    "/console/broker/topic?name=bills", "/console/broker/group?name=billing", "/console/do/add-queues?topic=bills&count=1",
    "/console/broker/messages?topic=bills&by=key&wanted=k", "/console/cluster", "/console/reactions", "/console/clients",
    "/console/alarms", "/console/nowhere?", "/console/do/close-queue?topic=bills&queue=0",
)  # fmt: skip
SCREENS = [("light", 1200), ("dark", 360)]
ECHOES = "tests.server.commands.echoes:app"
CHECKS = Path(__file__).with_name("checks.js").read_text()
OF_A_DOMAIN = (
    "/console", "/console/reactions", "/console/reactions?name=echo", "/console/do/skip?reaction=echo&aggregate=a",
    "/console/aggregates/one?id=b", "/console/aggregates/one?id=b&state=1",
    "/console/aggregates/chain?id=echo-b&version=1", "/console/log",
)  # fmt: skip


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("browsed") / "data", http="127.0.0.1:0") as server:
        with es.blocking.connect(server.address) as store:
            data = {"text": "long " * 100, "number": 12.5, "none": None, "wide": "w" * 300}
            store.append("order-1", [es.NewEvent("Placed", data), es.NewEvent("Raw", b"\\x00\\x01")], 0)
            store.append("order-" + "x" * 200, [es.NewEvent("Placed", {"a": 1}, {"causation_id": "order-1/2"})], 0)
            store.append("order-2", [es.NewEvent("Placed", {"n": number}) for number in range(120)], 0)
            store.broker.create_topic("bills", 2)
            store.topic("bills").send(b'{"total": 5}', key="k")
            with store.consumer("billing", "bills", retries=es.Retries((), attempts=1)) as consumer:
                next(iter(consumer)).retry("Failed")
        yield server


@pytest.fixture(scope="module")
def reacting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """Has a domain, an event that was reacted to, and one that is parked."""
    echoes.failing.update(a="a bug <b>" + "x" * 200)
    with ServerThread(tmp_path_factory.mktemp("reacting") / "data", http="127.0.0.1:0", domain=ECHOES) as server:
        with es.blocking.connect(server.address) as store:
            store.send_many([echoes.Call("a", 1), echoes.Call("b", 2)])
            wait_until(lambda: store.stats()["reactions_parked"] and store.version("echo-b"), "one is parked, one is echoed")
        yield server
    echoes.failing.clear()


@pytest.fixture(scope="module")
def banking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """Has an aggregate whose state has fields."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(EXAMPLES))
        with ServerThread(tmp_path_factory.mktemp("banking") / "data", http="127.0.0.1:0", domain="bank:app") as server:
            with es.blocking.connect(server.address) as store:
                store.send(es.RawCommand("Open", "acc-1", b'{"account": "acc-1", "owner": "Ada"}'))
                store.send(es.RawCommand("Deposit", "acc-1", b'{"account": "acc-1", "cents": 500}'))
            yield server


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page in whose script or console no error may appear."""
    errors: list[str] = []
    opened = browser.new_page()
    opened.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    opened.close()
    assert [each for each in errors if not re.search("status of 40[134]", each)] == []


def sure(page: Any, said: str) -> None:
    """Confirms an action, on a page that is as the others; waits for what is said then."""
    page.wait_for_selector("text=Are you sure?")
    assert page.evaluate(CHECKS) == []
    page.click("button.danger")
    page.wait_for_selector(f"text={said}")
    assert page.evaluate(CHECKS) == []


def on_screen(page: Any, scheme: str, width: int) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})


@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_every_page_has_labels_contrast_and_room(
    filled: ServerThread, reacting: ServerThread, banking: ServerThread, page: Any, scheme: str, width: int
) -> None:
    on_screen(page, scheme, width)
    addresses = [filled.http + path for path in PAGES] + [reacting.http + path for path in OF_A_DOMAIN]
    addresses += [f"{banking.http}/console/aggregates/one?id=acc-1{state}" for state in ("&state=1", "")]
    wrong = {}
    for address in addresses:
        page.goto(address, wait_until="domcontentloaded")
        if not address.endswith("?") and (found := page.evaluate(CHECKS)):
            wrong[address] = found
    assert wrong == {}
    assert "balance" in page.content()


@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_the_form_to_sign_in_and_what_a_reader_sees_have_labels_contrast_and_room(
    serve: Any, tmp_path: Path, page: Any, scheme: str, width: int
) -> None:
    token, admin = give(tmp_path / "data", "ann", "reader"), give(tmp_path / "data", "root", "admin")
    server: ServerThread = serve()
    with es.blocking.connect(server.address, token=admin) as store:
        store.broker.create_topic("bills", 1)
    on_screen(page, scheme, width)
    page.goto(f"{server.http}/console/broker/topic?name=bills")
    assert page.evaluate(CHECKS) == []
    for given, shown in (("wrong", "[role=alert]"), (token, "h1:has-text('bills')")):
        page.fill("#token", given)
        page.click("button:has-text('Sign in')")
        page.wait_for_selector(shown)
        page.wait_for_load_state()  # with its style: the text is there before
        assert page.evaluate(CHECKS) == []
    assert "Add queues" not in page.content()
    page.goto(f"{server.http}/console/do/close-queue?topic=bills&queue=0")
    page.click("button.danger")
    page.wait_for_selector("text=topics")  # the permission that it lacks
    page.wait_for_load_state()
    assert page.evaluate(CHECKS) == []


def test_live_figures_move(serve: Any, page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "INTERVAL_S", 0.1)
    server: ServerThread = serve()
    page.goto(f"{server.http}/console")
    page.wait_for_selector("figure svg")
    with es.blocking.connect(server.address) as store:
        store.append("a", [es.NewEvent("T")] * 23, 0)
    page.wait_for_selector("dd:text-is('23')")


def test_new_events_come_to_the_top_of_the_log(serve: Any, page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_LOOK_S", 0.05)
    server: ServerThread = serve()
    page.goto(f"{server.http}/console/log")
    page.wait_for_selector("text=Live.")
    with es.blocking.connect(server.address) as store:
        for number in range(1, 30):
            store.append("<b>a</b>", [es.NewEvent("T")], es.ANY)
            page.wait_for_selector(f"article:first-child:has-text('version {number}')")
            if number > 3:
                break
    assert page.locator("article a").first.text_content() == "<b>a</b>"


def test_an_action_is_clicked_through_by_keyboard(serve: Any, page: Any) -> None:
    server: ServerThread = serve()
    with es.blocking.connect(server.address) as store:
        store.broker.create_topic("bills", 1)
        page.goto(f"{server.http}/console/broker/topic?name=bills")
        page.keyboard.press("Tab")
        assert page.locator(":focus").text_content() == "Skip to the content"
        page.locator("#count").fill("2")
        page.locator("#count").press("Enter")
        page.wait_for_selector("text=Are you sure?")
        page.locator("button.danger").press("Enter")
        page.wait_for_selector("text=bills has 2 more queues")
        assert len(store.broker.queues("bills")) == 3


def test_offsets_are_reset_dead_letters_replayed_and_queues_closed_by_clicks(serve: Any, page: Any) -> None:
    server: ServerThread = serve()
    with es.blocking.connect(server.address) as store:
        store.broker.create_topic("bills", 2)
        store.topic("bills").send(b"one", key="k")
        with store.consumer("billing", "bills", retries=es.Retries((), attempts=1)) as consumer:
            next(iter(consumer)).retry("Failed")

        page.goto(f"{server.http}/console")
        page.click("nav >> text=Broker")
        page.click("a:text-is('billing')")
        page.click("a:has-text('Replay dead letter 0')")
        sure(page, "1 dead letters of billing are delivered again")
        page.select_option("#topic", "bills")
        page.click("button:has-text('Reset offsets')")
        sure(page, "billing is at offset 0 of queue 0, offset 0 of queue 1")
        with store.consumer("billing", "bills") as consumer:
            bodies = [next(messages) for messages in [iter(consumer)] for _ in range(2)]
        assert [each.body for each in bodies] == [b"one", b"one"]  # what was replayed, and what is read again
        page.click("a:text-is('bills') >> nth=0")
        page.click("a:text-is('close queue 1')")
        sure(page, "queue 1 of bills accepts no more messages")
        assert [each.state for each in store.broker.queues("bills")] == ["open", "draining"]


def test_a_topic_is_created_and_deleted_and_a_policy_set_by_clicks(serve: Any, page: Any) -> None:
    server: ServerThread = serve()
    with es.blocking.connect(server.address) as store:
        page.goto(f"{server.http}/console/broker")
        page.fill("#topic", "bills")
        page.fill("#queues", "2")
        page.click("button:has-text('Create topic')")
        sure(page, "the topic bills is created")
        with store.consumer("billing", "bills"):
            pass
        page.click("a:text-is('close queue 1')")
        sure(page, "queue 1 of bills accepts no more messages")
        page.click("a:text-is('remove queue 1')")
        sure(page, "queue 1 of bills is removed")
        page.goto(f"{server.http}/console/broker/group?name=billing")
        page.fill("#delays", "1, 2")
        page.click("button:has-text('Set retry policy')")
        sure(page, "billing has a retry policy of its own")
        assert store.broker.retries("billing").delays == (1.0, 2.0)
        page.click('a:has-text("Use the server\'s retry policy")')
        sure(page, "billing has the retry policy of the server")
        assert store.broker.retries("billing").delays != (1.0, 2.0)
        page.fill("#to", "2026-01-01T12:00")
        page.click("button:has-text('Reset offsets')")
        sure(page, "billing is at offset 0 of queue 0")
        page.goto(f"{server.http}/console/broker/topic?name=bills")
        page.select_option("#unconsumed", "delete")
        page.click("button:has-text('Delete topic')")
        sure(page, "the topic bills is deleted")
        assert "bills" not in [each.name for each in store.broker.topics()]


def test_an_alarm_is_silenced_and_rings_again_and_a_test_is_sent_by_clicks(serve: Any, page: Any) -> None:
    server: ServerThread = serve(alarm_rules="many_topics: broker_topics > 0", alarm_interval_s=0.05)
    with es.blocking.connect(server.address) as store:
        store.broker.create_topic("orders")
        wait_until(lambda: store.stats()["alarms"] == "many_topics", "it is raised")
        page.goto(f"{server.http}/console")
        page.click("nav >> text=Alarms")
        page.click("a:has-text('Silence many_topics for 8 hours')")
        page.fill("#why", "known")
        sure(page, "many_topics is silenced for 8 hours")
        (silenced,) = [each for each in store.alarms.list() if each.silenced_by is not None]
        assert (silenced.name, silenced.silenced_because) == ("many_topics", "known")
        page.click("a:has-text('End the silence of many_topics')")
        page.fill("#why", "over")
        sure(page, "many_topics is not silenced any more")
        assert not [each for each in store.alarms.list() if each.silenced_by is not None]
        page.click("a:has-text('Send a test')")
        sure(page, "no way is set up by which alarms are sent")


def test_without_script_all_but_live_figures_works(filled: ServerThread, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{filled.http}/console")
    page.click("text=Aggregates")
    page.fill("#id", "order-1")
    page.click("button:has-text('Look up')")
    assert page.locator("article").count() == 2
    context.close()
