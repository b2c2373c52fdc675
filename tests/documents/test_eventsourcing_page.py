"""docs/EVENTSOURCING.md: its programs print what the page says, and a strict type checker accepts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.pages import STRICT, programs, run, run_program, served, text_of

PROGRAMS = programs(text_of("docs/EVENTSOURCING.md"))


@pytest.mark.parametrize(("source", "expected"), PROGRAMS, ids=["bank", "courses"])
async def test_a_program_prints_what_its_page_says(source: str, expected: str, tmp_path: Path) -> None:
    async with served(tmp_path / "served") as server:
        await run_program(source, expected, tmp_path, server.address)


@pytest.mark.heavy
async def test_the_programs_pass_a_strict_type_checker(tmp_path: Path) -> None:
    for number, (source, _) in enumerate(PROGRAMS):
        (tmp_path / f"program_{number}.py").write_text(source)
    printed = (await run(STRICT, tmp_path)).stdout.decode()
    assert printed == f"Success: no issues found in {len(PROGRAMS)} source files\n"
