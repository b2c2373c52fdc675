"""docs/CLI.md: the tour and the demo print what the pages show."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.documents.pages import ROOT, TIMEOUT_S, run, run_session, session, text_of, without_times, write_launchers
from tests.logged_process import EVENTSTORE
from tests.server_process import ServerProcess

PAGE = text_of("docs/CLI.md")


async def test_the_page_names_every_command_and_no_other(tmp_path: Path) -> None:
    printed = (await run([*EVENTSTORE, "--help"], tmp_path)).stdout.decode()
    commands = re.findall(r"^  ([a-z]+)  ", printed, flags=re.M)
    rows = re.findall(r"^\| \w+ \| (.*) \|$", PAGE, flags=re.M)
    assert sorted(re.findall(r"`([a-z]+)`", "\n".join(rows))) == sorted(commands)


@pytest.mark.heavy
async def test_the_tour_prints_what_the_page_says(tmp_path: Path) -> None:
    assert re.findall(r"eventstore serve --data \./(\w+)", PAGE) == ["tour"]
    path = write_launchers(tmp_path)
    with ServerProcess(tmp_path / "tour", preallocate_bytes=64 * 1024 * 1024) as server:
        await run_session("tour", tmp_path, path, server.address, PAGE)
        server.process.terminate()
        server.process.wait(TIMEOUT_S)
    await run_session("offline", tmp_path, path, "", PAGE)
    (command, shown), *_ = session("together", PAGE)
    (tmp_path / command.removeprefix("cat ")).write_text("\n".join(shown) + "\n")
    with ServerProcess(tmp_path / "tour") as server:
        await run_session("tags", tmp_path, path, server.address, PAGE)
        await run_session("together", tmp_path, path, server.address, PAGE)


@pytest.mark.heavy
async def test_the_demo_runs_through_prints_what_the_page_says_and_leaves_nothing_behind(tmp_path: Path) -> None:
    expected = text_of("docs/examples/demo.txt")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = await run([sys.executable, ROOT / "docs" / "examples" / "demo"], tmp_path, TMPDIR=str(scratch))
    printed = result.stdout.decode()
    assert result.returncode == 0, printed
    assert without_times(printed) == without_times(expected)
    assert printed.count("✓") == 24
    assert list(scratch.iterdir()) == []
