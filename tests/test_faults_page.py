"""The tests that docs/FAULTS.md names exist, and each of its lines names some."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "FAULTS.md").read_text()
NAMED_IN = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
NAMED = NAMED_IN.findall(PAGE)


def test_every_test_the_page_names_is_there() -> None:
    missing = []
    for path, name in NAMED:
        source = (ROOT / path).read_text() if (ROOT / path).exists() else ""
        if not source or (name and not re.search(rf"^\s*(async def|def|class) {name}\b", source, re.MULTILINE)):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_every_line_names_its_tests() -> None:
    rows = re.findall(r"^\| (\d+)([a-z]?) \|(.*)$", PAGE, re.MULTILINE)
    assert [line[:60] for line in PAGE.splitlines() if re.match(r"\| *\d", line)] == [
        f"| {number}{letter} |{rest}"[:60] for number, letter, rest in rows
    ]
    plain = [number for number, letter, _ in rows if not letter]
    assert len(plain) >= 26
    assert plain == [str(place + 1) for place in range(len(plain))]
    assert len({(number, letter) for number, letter, _ in rows}) == len(rows)
    latest = "0"
    for number, letter, rest in rows:
        latest = latest if letter else number
        assert number == latest, f"{number}{letter} stands after {latest}"
        named = NAMED_IN.findall(rest.split(" | ")[-1])
        assert any(name or letter for _, name in named), f"line {number}{letter} names no test"
        for path, name in named:
            assert name or re.search(r"^\s*(async )?def test_", (ROOT / path).read_text(), re.MULTILINE), path
