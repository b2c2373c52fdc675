"""The tests that docs/FAULTS.md names exist, and each of its lines names some."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "FAULTS.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)


def test_every_test_the_page_names_is_there() -> None:
    missing = []
    for path, name in NAMED:
        source = (ROOT / path).read_text() if (ROOT / path).exists() else ""
        if not source or (name and not re.search(rf"^\s*(async def|def|class) {name}\b", source, re.MULTILINE)):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_every_line_names_its_tests() -> None:
    rows = re.findall(r"^\| (\d+) \|.*$", PAGE, re.MULTILINE)
    assert len(rows) >= 26
    assert rows == [str(number + 1) for number in range(len(rows))]
    for line in PAGE.splitlines():
        if re.match(r"\| \d+ \|", line):
            assert "::test_" in line, line[:60]
