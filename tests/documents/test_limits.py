"""What a reader can take in: the pages by hand, the modules and the folders stay short. A word more takes another away."""

from __future__ import annotations

import re
from collections import Counter

from tests.documents.pages import ROOT

WORDS_MAX = 34_100
NOT_COUNTED = {"CHANGELOG.md", "PROTOCOL.md", "FORMAT.md", "MODULES.md", "REFERENCE.md"}  # normative, generated, or a history
LINES_MAX = 300
MODULES_MAX = 15
PICTURES_BYTES_MAX = 300_000  # of the console, together
PACKAGES = ("eventstore", "mailbox", "cluster", "spark_jobs")


def test_the_pages_by_hand_are_short() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in pages if page.name not in NOT_COUNTED}
    longest = sorted(words.items(), key=lambda each: -each[1])[:5]
    assert sum(words.values()) <= WORDS_MAX, f"{sum(words.values())} words; the longest: {longest}"


def test_no_module_is_over_its_limit_of_lines_and_no_folder_over_its_limit_of_modules() -> None:
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in modules}
    assert len(lines) > 100
    assert {path: count for path, count in lines.items() if count > LINES_MAX} == {}
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in modules if path.name != "__init__.py")
    assert {folder: count for folder, count in folders.items() if count > MODULES_MAX} == {}


def test_the_pictures_of_the_console_are_small() -> None:
    docs = ROOT / "docs"
    shown = {docs / path for path in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (docs / "CONSOLE.md").read_text(encoding="utf-8"))}
    assert len(shown) == 4
    assert shown == set((docs / "console").iterdir())  # no other is kept
    assert sum(path.stat().st_size for path in shown) <= PICTURES_BYTES_MAX
