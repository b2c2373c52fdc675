"""The pictures of the console page: each one kept is shown, and together they are small."""

from __future__ import annotations

import re

from tests.documents.pages import ROOT

PICTURES_BYTES_MAX = 300_000  # of the console, together


def test_the_pictures_of_the_console_are_small() -> None:
    docs = ROOT / "docs"
    shown = {docs / path for path in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (docs / "CONSOLE.md").read_text(encoding="utf-8"))}
    assert len(shown) == 4
    assert shown == set((docs / "console").iterdir())  # no other is kept
    assert sum(path.stat().st_size for path in shown) <= PICTURES_BYTES_MAX
