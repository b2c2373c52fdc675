"""docs/DCB.md: each decision holds its rule, also if many make it at once."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

import eventstore as es
from tests.cluster.led_shards import LedShards
from tests.documents.pages import text_of
from tests.server_thread import ServerThread

PAGE = text_of("docs/DCB.md")
MINUTE = 60 * 1_000_000
NOW = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def page() -> ModuleType:
    module = ModuleType("decisions")
    sys.modules["decisions"] = module  # the classes of the page name it
    exec("\n".join(re.findall(r"^```python decisions\.py\n(.*?)^```", PAGE, flags=re.M | re.S)), vars(module))
    return module


@asynccontextmanager
async def opened(folder: Path, shards: int = 1) -> AsyncIterator[es.NetworkStore]:
    with ServerThread(folder / "data") if shards == 1 else LedShards(folder, shards) as server:
        async with es.connect(server.address) as store:
            yield store


async def at_once(count: int, call: Callable[[int], Awaitable[Any]], refused: type[Exception]) -> list[Any]:
    """Returns the results of the calls that were not refused."""
    results: list[Any] = []

    async def one(number: int) -> None:
        with suppress(refused):
            results.append(await call(number))

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(one, number)
    return results


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_course_is_never_overbooked_and_a_student_takes_five(page: Any, tmp_path: Path, shards: int) -> None:
    async with opened(tmp_path, shards) as store:
        with pytest.raises(page.Refused, match="there is no course"):
            await page.subscribe(store, "c1", "s1", "s-0")
        await page.define_course(store, "c1", 3, "d-1")
        with pytest.raises(page.Refused, match="is defined already"):
            await page.define_course(store, "c1", 4, "d-2")
        done = await at_once(12, lambda number: page.subscribe(store, "c1", f"s{number}", f"s-{number}"), page.Refused)
        assert len(done) == 3
        first = done[0]
        assert await page.subscribe(store, "c1", "other", first.command_id) == first
        for number in range(2, 10):
            await page.define_course(store, f"c{number}", 10, f"d-c{number}")
        done = await at_once(7, lambda number: page.subscribe(store, f"c{number + 2}", "ada", f"a-{number}"), page.Refused)
        assert len(done) == 5
        with pytest.raises(page.Refused, match="takes five courses"):
            await page.subscribe(store, "c9", "ada", "a-9")
        with pytest.raises(page.Refused, match="takes"):
            await page.subscribe(store, "c1", first.json()["student"], "again")


async def test_a_price_that_was_shown_holds_for_ten_minutes(page: Any, tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await page.change_price(store, "p1", 100, NOW)
        await page.change_price(store, "p1", 120, NOW + 20 * MINUTE)
        await page.change_price(store, "p2", 50, NOW)
        await page.order(store, {"p1": 120, "p2": 50}, NOW + 21 * MINUTE, "o-1")
        await page.order(store, {"p1": 100}, NOW + 29 * MINUTE, "o-2")
        for shown, now in (({"p1": 100}, 31), ({"p1": 110}, 21), ({"p1": 120, "p2": 51}, 21), ({"p3": 1}, 21)):
            with pytest.raises(page.Refused, match="does not cost"):
                await page.order(store, shown, NOW + now * MINUTE, f"o-{now}-{len(shown)}-{shown}")


async def test_a_title_changes(page: Any, tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await page.rename(store, "c1", "Logic", "r-1")
        with pytest.raises(page.Refused, match="already"):
            await page.rename(store, "c1", "Logic", "r-2")
        await page.rename(store, "c1", "Sets", "r-3")


@pytest.mark.parametrize("shards", [1, 3])
async def test_invoices_have_no_gap_and_no_number_twice(page: Any, tmp_path: Path, shards: int) -> None:
    async with opened(tmp_path, shards) as store:
        numbers = await at_once(15, lambda number: page.create_invoice(store, 100, f"i-{number}"), page.Refused)
        assert sorted(numbers) == list(range(1, 16))
        stored, _ = await store.query(es.Query(["InvoiceCreated"]))
        assert [event.json()["number"] for event in stored] == list(range(1, 16))
        assert await page.create_invoice(store, 100, stored[3].command_id) == 4


async def test_a_token_is_confirmed_once_in_its_hour(page: Any, tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await page.sign_up(store, "ada@example.org", "t-1", NOW)
        for address, token, now, words in (
            ("ada@example.org", "t-2", NOW, "no such"),
            ("bob@example.org", "t-1", NOW, "no such"),
            ("ada@example.org", "t-1", NOW + 61 * MINUTE, "expired"),
        ):
            with pytest.raises(page.Refused, match=words):
                await page.confirm(store, address, token, now, f"x-{words}-{address}")
        done = await at_once(6, lambda n: page.confirm(store, "ada@example.org", "t-1", NOW, f"c-{n}"), page.Refused)
        assert len(done) == 1


async def test_a_form_makes_one_order(page: Any, tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        done = await at_once(6, lambda number: page.place_order(store, "f-1", ["a"], f"c-{number}"), page.Refused)
        assert len(done) == 1
        assert await page.place_order(store, "f-1", ["a"], done[0].command_id) == done[0]


async def test_a_name_is_free_three_days_after_it_was_given_up(page: Any, tmp_path: Path) -> None:
    day = 24 * 60 * MINUTE
    async with opened(tmp_path) as store:
        done = await at_once(6, lambda number: page.claim(store, "ada", NOW, f"c-{number}"), page.Refused)
        assert len(done) == 1
        await page.give_up(store, "ada", NOW + day, "g-1")
        with pytest.raises(page.Refused, match="three days"):
            await page.claim(store, "ada", NOW + 3 * day, "c-8")
        await page.claim(store, "ada", NOW + 5 * day, "c-9")
