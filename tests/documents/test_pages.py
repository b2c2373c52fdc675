"""All pages: links lead somewhere, figures agree, generated pages are up to date."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.pages import ADDRESS, PAGES, ROOT, file_of, run_session, served, text_of, write_launchers


def prose(page: Path) -> str:
    """Returns the page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page: its headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    plain = [re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower() for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert broken == []


def test_the_readme_is_short_and_links_to_every_page() -> None:
    readme = text_of("README.md")
    assert 160 <= len(readme.splitlines()) <= 200
    unlinked = [page.name for page in (ROOT / "docs").glob("*.md") if f"](docs/{page.name}" not in readme]
    assert unlinked == []


def test_make_has_the_targets_that_the_pages_name_and_one_that_makes_what_hacking_runs() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", text_of("Makefile"), flags=re.M))
    named = {name for page in PAGES for name in re.findall(r"(?:`|^\$ )make ([a-z-]+)", page.read_text("utf-8"), flags=re.M)}
    assert {"test", "venv"} <= named
    assert named - targets == set()
    plan = subprocess.run(["make", "--dry-run", "--always-make", "venv"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--editable '.[dev]'" in plan.stdout


def test_the_figures_of_the_readme_are_those_of_the_benchmark() -> None:
    """The tables that a release replaces are in one place."""
    page = text_of("docs/BENCHMARKS.md")
    assert page.count("<!-- benchmark -->") == page.count("<!-- /benchmark -->") == 1
    table = page[page.index("<!-- benchmark -->") : page.index("<!-- /benchmark -->")]
    shown = re.findall(r"[\d,]+(?= (?:ev)?/s)", text_of("README.md"))
    assert len(shown) >= 10
    assert [figure for figure in shown if not re.search(rf"\b{figure}\b", table)] == []


def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


async def test_the_session_of_the_broker_prints_what_its_page_says(tmp_path: Path) -> None:
    page = text_of("docs/BROKER.md")
    async with served(tmp_path / "served") as server:
        (tmp_path / "bill.py").write_text(file_of("bill.py", page).replace(ADDRESS, server.address))
        await run_session("broker", tmp_path, write_launchers(tmp_path), server.address, page)


def test_the_tests_that_hacking_shows_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", text_of("docs/HACKING.md"), flags=re.M | re.S)
    assert blocks
    for number, source in enumerate(blocks):
        names: dict[str, object] = {}
        exec(source, names)  # our own page
        for name, shown in names.items():
            if name.startswith("test_") and inspect.isfunction(shown):
                folder = tmp_path / str(number)
                folder.mkdir()
                shown(folder)
