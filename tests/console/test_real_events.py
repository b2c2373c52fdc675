"""A walk through the pages on real events: two years of declarations of travel expenses, where the folder beside has them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from tests.console.test_browser import CHECKS
from tests.console.test_browser import page as page
from tests.server_thread import ServerThread

FILE = Path(__file__).parents[3] / "shared" / "data" / "international_declarations.jsonl.gz"
COUNT = 1_000
SUBMITTED = "Permit SUBMITTED by EMPLOYEE"

pytestmark = pytest.mark.heavy


def commits() -> Iterator[es.Commit]:
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        for line in islice(lines, COUNT):
            each = json.loads(line)
            event = es.NewEvent(each["event_type"], each["data"])
            happened = datetime.fromisoformat(each["timestamp"])
            yield es.Commit(each["aggregate_id"], [event], es.ANY, each["command_id"], happened)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    if not FILE.exists():
        pytest.skip(f"{FILE.parent} with real events is missing")
    settings = {"http": "127.0.0.1:0", "publish": "declarations"}
    with ServerThread(tmp_path_factory.mktemp("real") / "data", **settings) as server:
        with es.blocking.connect(server.address) as store:
            assert all(isinstance(each, es.Committed) for each in store.append_many(commits()))
            with store.consumer("auditors", "declarations") as consumer:
                for message in islice(consumer, 20):
                    message.done()
        yield server


def test_the_pages_are_walked_on_real_events(real: ServerThread, page: Any) -> None:
    seen: list[str] = []

    def look(*clicks: str) -> None:
        """Clicks, and looks at the page that this leads to."""
        for each in clicks:
            with page.expect_navigation(wait_until="domcontentloaded"):
                page.click(each)
        assert page.evaluate(CHECKS) == [], page.url
        seen.append(page.locator("h1").text_content())

    page.goto(f"{real.http}/console", wait_until="domcontentloaded")
    look()
    look("nav >> text=Aggregates")
    first = page.locator("td a, th a").first.text_content()
    page.fill("#prefix", first[:-1])
    look("button:has-text('Look up')")
    look(f"a:text-is('{first}')")
    assert page.locator("article").count() > 0
    assert "Permit_RequestedBudget" in page.content()
    look("a:has-text('what belongs to it') >> nth=0")
    look("nav >> text=Log")
    page.fill("#type", SUBMITTED)
    look("button:has-text('Show')")
    look("a:has-text('Older events')")
    assert {SUBMITTED} == set(page.locator("article header strong").all_text_contents())
    look("nav >> text=Broker")
    look("a:text-is('declarations')")
    look("td a >> nth=0")
    assert page.locator("article").count() == 20
    look("nav >> text=Broker", "a:text-is('auditors')")
    for name in ("Reactions", "Clients", "Cluster"):
        look(f"nav >> text={name}")
    assert seen == [
        "Overview", "Aggregates", "Aggregates", first, "What belongs together", "Log", "Log", "Log", "Broker",
        "Topic declarations", "Messages of declarations", "Group auditors", "Reactions and projections", "Clients", "Cluster",
    ]  # fmt: skip
