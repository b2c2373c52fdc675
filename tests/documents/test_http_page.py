"""docs/HTTP.md: what it shows of curl is what a server answers."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from eventstore.http_api import event_streams
from eventstore.http_api.operations import OPERATIONS
from eventstore.http_api.topics import TOPIC_OPERATIONS
from tests.documents.pages import output_of, session, text_of, without_times
from tests.http_api.asking import Api
from tests.server_thread import ServerThread

PAGE = text_of("docs/HTTP.md")
CLOUDEVENTS = text_of("docs/CLOUDEVENTS.md")
ADDRESS = "http://127.0.0.1:7702"
RECEIPT = "zBuMkGhWLW5E-1"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_examples_of_the_page_print_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.2)  # curl notices with the next that nobody reads what it prints
    await follow(tmp_path, PAGE, "http", "http-read", "http-stream", "http-commit", "http-messages")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_example_of_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    await follow(tmp_path, text_of("README.md"), "http")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_examples_of_cloudevents_print_what_the_page_says(tmp_path: Path) -> None:
    await follow(tmp_path, CLOUDEVENTS, "cloudevents")


async def follow(folder: Path, page: str, *sessions: str) -> None:
    """Runs what a page shows on a new server, and compares what is printed."""
    receipt = RECEIPT
    with ServerThread(folder / "data", http="127.0.0.1:0", http_api=True) as server:
        for name in sessions:
            for command, expected in session(name, page):
                given = command.replace(ADDRESS, server.http).replace(RECEIPT, receipt)
                assert given != command
                printed = await output_of(["sh", "-c", given], folder, PATH=os.environ["PATH"])
                if found := re.search(r'"receipt":"([^"]+)"', printed):
                    receipt = found[1]
                printed = printed.replace(receipt, RECEIPT)
                assert without_times(printed.rstrip("\n")) == without_times("\n".join(expected).rstrip("\n")), command


def test_the_page_names_every_operation() -> None:
    for each in (*OPERATIONS, *TOPIC_OPERATIONS):
        path = each.path.replace("{aggregate_id}", "{id}")
        assert f"`{each.method} /api{path}`" in PAGE


def test_the_command_of_the_page_is_handled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "examples"))
    with ServerThread(tmp_path / "data", http="127.0.0.1:0", http_api=True, domain="bank:app") as server:
        api = Api(server)
        api.post("/api/commands/Open", {"aggregate_id": "acc-1", "fields": {"account": "acc-1", "owner": "Ada"}})
        done = api.post("/api/commands/Deposit", {"aggregate_id": "acc-1", "fields": {"account": "acc-1", "cents": 500}}, "d-1")
        assert done.json["version"] == 2
