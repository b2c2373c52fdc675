"""The Python blocks of docs/DOMAIN.md, one after the other, are a program that runs."""

from __future__ import annotations

import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

import eventstore as es
from eventstore.domain.encoding.event_type import event_type
from eventstore.domain.projections.projection import Projection
from eventstore.domain.testing import rows_of, sent_by, stored

PAGE = Path(__file__).parents[2] / "docs" / "DOMAIN.md"


@pytest.fixture(scope="module")
def shown() -> ModuleType:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert len(blocks) == 12
    module = sys.modules["domain_page"] = ModuleType("domain_page")
    exec("\n\n".join(blocks), vars(module))  # our own page
    return module


def test_the_projection_of_the_page_counts(shown: ModuleType) -> None:
    projection: Projection[int] = shown.Balances()
    assert rows_of(projection, stored(shown.Deposited(3), shown.Deposited(4))) == {"aggregate-1": {"cents": 7}}


async def test_the_projections_of_the_page_keep_their_tables(
    shown: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    events = shown.Deposited(3), shown.Enrolled("c1", "s1"), shown.Enrolled("c1", "s2"), shown.Deposited(4)
    async with es.open_store("data") as store:
        for event in events:
            await store.append("acc-1", [event_type(type(event)).encode(event)], es.ANY)
        assert await shown.keep_tables(store, until_caught_up=True) == {"balances": 4, "places": 4}
    with closing(sqlite3.connect("read.db")) as connection:
        assert connection.execute("SELECT key, cents FROM balances").fetchall() == [("acc-1", 7)]
        assert connection.execute("SELECT key, taken FROM places").fetchall() == [("c1", 2)]


async def test_the_command_id_of_the_page_is_what_is_sent(shown: ModuleType) -> None:
    (event,) = stored(shown.Deposited(3), aggregate_id="acc-1", version=7)
    ((command, command_id),) = await sent_by(shown.app.reactions["notify"], event)
    assert command == shown.Notify("acc-1", 3)
    assert command_id == "notify/acc-1/7/0"
    assert f"`{command_id}`" in PAGE.read_text(encoding="utf-8")


def test_the_domain_of_the_page_is_declared_correctly(shown: ModuleType) -> None:
    shown.app.check()
