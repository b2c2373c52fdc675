"""What the pages show is what happens: every program, every command, every link.

In README.md a block of Python is a complete program, and the block of text behind it is what it prints. It runs in a folder of
its own; only the address in it is replaced, by that of a server that was started for it. A block of Python with the name of a
file is that file. A block of console with a name is a
session in a shell: lines that begin with `$` are run one after the other, the others are what they print. Times and speeds are
compared by their form. So it is in docs/BROKER.md. In docs/HACKING.md a block of Python is a module of tests.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from eventstore.server.serve import Server, serve
from eventstore.server.settings import ServerSettings
from tests.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "tcp://127.0.0.1:7701"
TIMEOUT_S = 60.0

Session = list[tuple[str, list[str]]]


def programs() -> list[tuple[str, str]]:
    """The programs of README.md, each with what it prints."""
    return re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", README, flags=re.M | re.S)


def file_of(name: str, page: str = README) -> str:
    """The content of a file that the page shows."""
    found = re.search(rf"^```python {re.escape(name)}\n(.*?)^```", page, flags=re.M | re.S)
    assert found is not None
    return found[1]


def session(name: str, page: str = README) -> Session:
    """The commands of a block, each with the lines it prints."""
    found = re.search(rf"^```console {name}\n(.*?)^```", page, flags=re.M | re.S)
    assert found is not None
    commands: Session = []
    for line in found[1].splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return commands


def without_times(text: str) -> list[str]:
    """The lines of an output, with words in the place of times, speeds and identities."""
    for pattern, word in (
        (r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)", "TIME"),
        (r"[\d,]+ (events|commands|messages)/s", "SPEED"),
        (r"\b\d+\.\d+ s\b", "SECONDS"),
        (r"\b[0-9a-f]{20}\b", "MESSAGE"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID"),
    ):
        text = re.sub(pattern, word, text)
    return [line.rstrip() for line in text.splitlines()]


@asynccontextmanager
async def served(data: Path) -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(serve, ServerSettings(data=data, listen="127.0.0.1:0"))
        yield server
        server.stop()


async def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command at its end; what it printed, errors included."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EVENTSTORE_")}
    with trio.fail_after(TIMEOUT_S):
        return await trio.run_process(
            command, check=False, capture_stdout=True, stderr=subprocess.STDOUT, cwd=folder, env={**clean, **environment}
        )


async def output_of(command: list[str], folder: Path, **environment: str) -> str:
    """What the command prints, errors included."""
    return (await run(command, folder, **environment)).stdout.decode()


async def run_program(source: str, expected: str, folder: Path, address: str) -> None:
    program = source.replace(ADDRESS, address)
    assert await output_of([sys.executable, "-W", "error", "-c", program], folder) == expected


async def run_session(name: str, folder: Path, path: str, address: str, page: str = README) -> None:
    for command, expected in session(name, page):
        printed = await output_of(["sh", "-c", command], folder, PATH=path, EVENTSTORE_STORE=address)
        assert without_times(printed) == without_times("\n".join(expected)), command


def write_launchers(folder: Path) -> str:
    """The commands `eventstore` and `python3` for the shell; the value of PATH that finds them."""
    (folder / "bin").mkdir()
    for name, arguments in (("eventstore", "-m eventstore.cli.main "), ("python3", "")):
        launcher = folder / "bin" / name
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        launcher.chmod(0o755)
    return f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"


# -- README.md ------------------------------------------------------------------------------------------------------------


def test_there_is_a_program_for_each_way_to_use_the_store() -> None:
    sources = [source for source, _ in programs()]
    assert ["es.connect(" in source for source in sources] == [True, False, False, True, True]
    assert ["es.open_store(" in source for source in sources] == [False, True, False, False, False]
    assert ["es.blocking.connect(" in source for source in sources] == [False, False, True, False, False]
    assert ["from bank import" in source for source in sources] == [False, False, False, True, False]
    assert ["store.consumer(" in source for source in sources] == [False, False, False, False, True]
    assert len(re.findall(r"^```python$", README, flags=re.M)) == len(sources), "each has its output behind it"


@pytest.mark.parametrize(
    ("source", "expected"), [*programs()[:3], programs()[4]], ids=["network", "embedded", "blocking", "messages"]
)
async def test_a_program_of_the_readme_prints_what_the_readme_says(source: str, expected: str, tmp_path: Path) -> None:
    async with served(tmp_path / "served") as server:
        await run_program(source, expected, tmp_path, server.address)


async def test_the_network_program_runs_on_asyncio_as_well(tmp_path: Path) -> None:
    source, expected = programs()[0]
    async with served(tmp_path / "served") as server:
        program = source.replace(ADDRESS, server.address).replace("trio.run(main)", "asyncio.run(main())")
        program = program.replace("import trio", "import asyncio")
        assert "trio" not in program
        assert await output_of([sys.executable, "-W", "error", "-c", program], tmp_path) == expected


async def test_the_tests_of_the_bank_pass(tmp_path: Path) -> None:
    for name in ("bank.py", "test_bank.py"):
        (tmp_path / name).write_text(file_of(name))
    printed = await output_of([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."], tmp_path)
    assert "2 passed" in printed, printed


@pytest.mark.heavy
async def test_the_page_can_be_followed_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, with the servers that it tells to start: the programs, the bank and the tour of the command line."""
    (tmp_path / "bank.py").write_text(file_of("bank.py"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    folders = re.findall(r"eventstore serve --data \./(\w+)", README)
    assert folders == ["data", "accounts", "data", "tour"]
    path, examples = write_launchers(tmp_path), programs()
    with ServerProcess(tmp_path / folders[0]) as server:
        for source, expected in examples[:3]:
            await run_program(source, expected, tmp_path, server.address)
    with ServerProcess(tmp_path / folders[1], domain="bank:app") as server:
        await run_program(*examples[3], tmp_path, server.address)
        await run_session("bank", tmp_path, path, server.address)
    with ServerProcess(tmp_path / folders[2]) as server:
        await run_program(*examples[4], tmp_path, server.address)
    with ServerProcess(tmp_path / folders[3], preallocate_bytes=64 * 1024 * 1024) as server:
        await run_session("tour", tmp_path, path, server.address)
        server.process.terminate()
        server.process.wait(TIMEOUT_S)
    await run_session("offline", tmp_path, path, "")


@pytest.mark.heavy
async def test_the_demo_runs_through_prints_what_the_readme_says_and_leaves_nothing_behind(tmp_path: Path) -> None:
    expected = re.search(r"^```text demo\n(.*?)^```", README, flags=re.M | re.S)
    assert expected is not None
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = await run([sys.executable, "-m", "eventstore.cli.demo"], tmp_path, TMPDIR=str(scratch))
    printed = result.stdout.decode()
    assert result.returncode == 0, printed
    assert without_times(printed) == without_times(expected[1])
    assert printed.count("✓") == 24
    assert list(scratch.iterdir()) == []


def test_there_is_one_place_for_the_tables_of_the_benchmark() -> None:
    assert README.count("<!-- benchmark -->") == README.count("<!-- /benchmark -->") == 1
    assert README.index("<!-- benchmark -->") < README.index("<!-- /benchmark -->")


# -- the other pages ------------------------------------------------------------------------------------------------------


async def test_the_session_of_the_broker_prints_what_its_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "BROKER.md").read_text(encoding="utf-8")
    async with served(tmp_path / "served") as server:
        (tmp_path / "bill.py").write_text(file_of("bill.py", page).replace(ADDRESS, server.address))
        await run_session("broker", tmp_path, write_launchers(tmp_path), server.address, page)


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """What can be linked to inside a page: its headings, as GitHub names them."""
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


def test_the_architecture_lists_every_module_and_no_other() -> None:
    region = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    region = region.split("<!-- modules -->")[1].split("<!-- /modules -->")[0]
    listed = set()
    for package, rows in re.findall(r"^### ([\w.]+)\n(.*?)(?=^###|\Z)", region, flags=re.M | re.S):
        for first_cell in re.findall(r"^\| (`[^|]*) \|", rows, flags=re.M):
            listed |= {f"{package}.{name}" for name in re.findall(r"`(\w+)`", first_cell)}
    files = [path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("eventstore/**/*.py")]
    assert listed == {".".join(path.parts) for path in files if path.name != "__init__"}


def test_the_tests_that_hacking_shows_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "HACKING.md").read_text(encoding="utf-8"), flags=re.M | re.S)
    assert blocks
    for number, source in enumerate(blocks):
        names: dict[str, object] = {}
        exec(source, names)  # our own page
        for name, shown in names.items():
            if name.startswith("test_") and inspect.isfunction(shown):
                folder = tmp_path / str(number)
                folder.mkdir()
                shown(folder)
