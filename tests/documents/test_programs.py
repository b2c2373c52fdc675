"""README.md and docs/CLIENT.md: every program and file prints and does what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.documents.pages import (
    ADDRESS,
    file_of,
    output_of,
    programs,
    run,
    run_program,
    run_session,
    served,
    text_of,
    write_launchers,
)
from tests.server_process import ServerProcess

README, PAGE = text_of("README.md"), text_of("docs/CLIENT.md")
PROGRAMS = [*programs(README), *programs(PAGE)]


def test_there_is_a_program_for_each_way_to_use_the_store() -> None:
    sources = [source for source, _ in PROGRAMS]
    assert ["es.connect(" in source for source in sources] == [True, False, False, False, True, True]
    assert ["es.open_store(" in source for source in sources] == [False, False, True, False, False, False]
    assert ["es.blocking.connect(" in source for source in sources] == [False, True, False, True, False, False]
    assert ["from bank import" in source for source in sources] == [False, False, False, False, True, False]
    assert ["store.consumer(" in source for source in sources] == [False, False, False, False, False, True]


@pytest.mark.parametrize(
    ("source", "expected"), [*PROGRAMS[:4], PROGRAMS[5]], ids=["network", "replay many", "embedded", "blocking", "messages"]
)
async def test_a_program_prints_what_its_page_says(source: str, expected: str, tmp_path: Path) -> None:
    async with served(tmp_path / "served") as server:
        await run_program(source, expected, tmp_path, server.address)


async def test_the_network_program_runs_on_asyncio_as_well(tmp_path: Path) -> None:
    source, expected = PROGRAMS[0]
    async with served(tmp_path / "served") as server:
        program = source.replace(ADDRESS, server.address).replace("trio.run(main)", "asyncio.run(main())")
        program = program.replace("import trio", "import asyncio")
        assert "trio" not in program
        assert await output_of([sys.executable, "-W", "error", "-c", program], tmp_path) == expected


async def test_the_tests_of_the_bank_pass(tmp_path: Path) -> None:
    for name in ("bank.py", "test_bank.py"):
        (tmp_path / name).write_text(file_of(name, PAGE))
    printed = await output_of([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."], tmp_path)
    assert "2 passed" in printed, printed


async def test_the_tests_of_the_bank_pass_in_a_clone_with_nothing_but_pytest_installed(tmp_path: Path) -> None:
    """The settings of the project's own tests are found there, but not the plugins of pytest that they are for."""
    for name in ("bank.py", "test_bank.py"):
        (tmp_path / name).write_text(file_of(name, PAGE))
    (tmp_path / "pyproject.toml").write_text(text_of("pyproject.toml"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_bank.py"]
    done = await run(command, tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert (done.returncode, done.stdout.count(b"warning")) == (0, 0), done.stdout.decode()


@pytest.mark.heavy
async def test_the_programs_can_be_followed_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, with the servers that the page starts."""
    (tmp_path / "bank.py").write_text(file_of("bank.py", PAGE))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    folders = re.findall(r"eventstore serve --data \./(\w+)", PAGE)
    assert folders == ["data", "data", "accounts", "data"]
    path = write_launchers(tmp_path)
    with ServerProcess(tmp_path / folders[0]) as server:
        for source, expected in PROGRAMS[:4]:
            await run_program(source, expected, tmp_path, server.address)
    with ServerProcess(tmp_path / folders[2], domain="bank:app") as server:
        await run_program(*PROGRAMS[4], tmp_path, server.address)
        await run_session("bank", tmp_path, path, server.address, PAGE)
    with ServerProcess(tmp_path / folders[3]) as server:
        await run_program(*PROGRAMS[5], tmp_path, server.address)
