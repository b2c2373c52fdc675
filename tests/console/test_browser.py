"""The console in Debian's chromium: no errors, live figures, actions, and what everyone needs to use a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore.console import history
from eventstore.console.pages import log
from tests.server_thread import ServerThread

PAGES = (
    "/console", "/console/aggregates", "/console/aggregates/one?id=order-1", "/console/aggregates/one?id=order-2&from=52",
    "/console/log", "/console/broker",
    "/console/broker/topic?name=bills", "/console/broker/group?name=billing", "/console/do/add-queues?topic=bills&count=1",
    "/console/broker/messages?topic=bills&by=key&wanted=k", "/console/cluster", "/console/reactions", "/console/clients",
    "/console/nowhere?",
)  # fmt: skip
CHECKS = Path(__file__).with_name("checks.js").read_text()


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


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page in whose script or console no error may appear."""
    errors: list[str] = []
    opened = browser.new_page()
    opened.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    opened.close()
    assert [each for each in errors if "404" not in each] == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_every_page_has_labels_contrast_and_room(filled: ServerThread, page: Any, scheme: str, width: int) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    wrong = {}
    for path in PAGES:
        page.goto(filled.http + path, wait_until="domcontentloaded")
        if path != "/console/nowhere?" and (found := page.evaluate(CHECKS)):
            wrong[path] = found
    assert wrong == {}


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


def test_without_script_all_but_live_figures_works(filled: ServerThread, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{filled.http}/console")
    page.click("text=Aggregates")
    page.fill("#id", "order-1")
    page.click("button:has-text('Look up')")
    assert page.locator("article").count() == 2
    context.close()
