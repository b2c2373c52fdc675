"""docs/ANALYSIS.md: its program, sessions and file do what the page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.documents.pages import file_of, output_of, programs, run_program, run_session, served, text_of, write_launchers

PAGE = text_of("docs/ANALYSIS.md")


@pytest.mark.heavy
async def test_the_page_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.py").write_text(file_of("shop.py", PAGE))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = write_launchers(tmp_path)
    ((source, expected),) = programs(PAGE)
    async with served(tmp_path / "served") as server:
        await run_program(source, expected, tmp_path, server.address)
        await run_session("lake", tmp_path, path, server.address, PAGE)
        await run_session("ocel", tmp_path, path, server.address, PAGE)
    assert {each["type"] for each in json.loads((tmp_path / "orders.json").read_text())["objects"]} == {"order", "customer"}


async def test_pm4py_finds_a_map_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("pm4py", reason="550 MB, and under the AGPL: not part of the extra dev")
    import sys

    from eventstore.cli.transfer.object_log import JsonObjectLog
    from tests.cli.commands.events.test_ocel import some_events

    with (tmp_path / "orders.json").open("w") as file, JsonObjectLog(file) as log:
        for event in some_events():
            log.add(event)
    program = "\n".join(line for line in file_of("map.py", PAGE).splitlines() if "save_vis" not in line)
    assert "ways through" in await output_of([sys.executable, "-c", program], tmp_path)
