"""docs/FRAMEWORKS.md: the programs do what the page says, each in a process of its own with the framework that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.documents.pages import ADDRESS, file_of, output_of, served, text_of

PAGE = text_of("docs/FRAMEWORKS.md")
ASKED = """
for item in ("tea", "tea", "milk"):
    answer = post("/carts/1/items", {"item": item}, {"Idempotency-Key": item})
    print(answer)
print(get("/carts/1/items"))
"""
ANSWERED = "{'version': 1}\n{'version': 1}\n{'version': 2}\n[{'item': 'tea'}, {'item': 'milk'}]\n"
DRIVERS = {
    "flask": """
from flask_shop import app
client = app.test_client()
post = lambda path, body, headers: client.post(path, json=body, headers=headers).json
get = lambda path: client.get(path).json
""",
    "django": """
import django_shop
from django.test import Client
client = Client()
post = lambda path, body, headers: client.post(path, body, content_type="application/json", headers=headers).json()
get = lambda path: client.get(path).json()
""",
    "fastapi": """
import threading, time, httpx, uvicorn
from fastapi_shop import app
server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started: time.sleep(0.01)
at = "http://{}:{}".format(*server.servers[0].sockets[0].getsockname())
post = lambda path, body, headers: httpx.post(at + path, json=body, headers=headers).json()
get = lambda path: httpx.get(at + path).json()
""",
}


@pytest.mark.parametrize("framework", DRIVERS)
async def test_a_service_answers_and_stores_a_repeated_request_once(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    async with served(tmp_path / "served") as server:
        name = f"{framework}_shop.py"
        (tmp_path / name).write_text(file_of(name, PAGE).replace(ADDRESS, server.address))
        assert await output_of([sys.executable, "-c", DRIVERS[framework] + ASKED], tmp_path) == ANSWERED


async def test_a_task_that_runs_again_stores_once(tmp_path: Path) -> None:
    pytest.importorskip("celery")
    driver = "from celery_shop import add_item\nfor task in 'aab': print(add_item.apply((1, {}), task_id=task).get())"
    async with served(tmp_path / "served") as server:
        (tmp_path / "celery_shop.py").write_text(file_of("celery_shop.py", PAGE).replace(ADDRESS, server.address))
        assert await output_of([sys.executable, "-c", driver], tmp_path) == "1\n1\n2\n"


async def test_the_fixtures_serve_a_test(tmp_path: Path) -> None:
    (tmp_path / "test_cart.py").write_text(file_of("test_cart.py", PAGE))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "eventstore.pytest_plugin", "."]
    printed = await output_of(command, tmp_path)
    assert "2 passed" in printed, printed


@pytest.mark.parametrize("plugin", ["anyio", "pytest_trio", "pytest_asyncio"])
async def test_the_async_fixtures_serve_a_test(plugin: str, tmp_path: Path) -> None:
    pytest.importorskip(plugin)
    name = f"test_{'anyio' if plugin == 'pytest_trio' else plugin.removeprefix('pytest_')}_shop.py"
    test = file_of(name, PAGE)
    (tmp_path / name).write_text(test.replace("mark.anyio", "mark.trio") if plugin == "pytest_trio" else test)
    asyncio = plugin == "pytest_asyncio"
    option = "asyncio_default_fixture_loop_scope = function\n" if asyncio else ""
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n" + option)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "eventstore.pytest_plugin", "."]
    options = {"PYTEST_ADDOPTS": ""} if asyncio else {}
    printed = await output_of(command, tmp_path, **options)
    assert "passed" in printed, printed
    assert "failed" not in printed, printed


async def test_a_client_of_a_notebook_stays_open_for_the_cells_that_follow(tmp_path: Path) -> None:
    cell = PAGE.partition("## Notebooks")[2].partition("`")[2].partition("`")[0]
    async with served(tmp_path / "served") as server:
        cells = f"import eventstore as es\n{cell.replace(ADDRESS, server.address)}\nprint(store.version('a'))\nstore.close()"
        assert await output_of([sys.executable, "-W", "error", "-c", cells], tmp_path) == "0\n"
