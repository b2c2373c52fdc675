"""Runs what the pages show: programs, files and sessions of the command line.

A block of Python is a complete program, and the block of text after it is what it prints; only the address in it is
replaced, by that of a server that the test starts. A block of Python with the name of a file is that file. A block of
console with a name is a session in a shell: lines that begin with `$` are run one after the other, the others are what
they print. Times and speeds are compared by their form.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from eventstore.server.serve import Server, serve
from eventstore.settings.sources import load_settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
ADDRESS = "tcp://127.0.0.1:7701"
TIMEOUT_S = 180.0  # only for a machine that is busy with other tests

STRICT = [
    sys.executable,
    "-m",
    "mypy",
    "--strict",
    "--config-file=",
    "--no-pretty",
    f"--cache-dir={ROOT}/.mypy_cache/pages",
    ".",
]
"""Checks the types of a folder, as in a project of its own; what it knows of this project it keeps for the next time."""

Session = list[tuple[str, list[str]]]


def text_of(name: str) -> str:
    """Returns a page, by its path in the project."""
    return (ROOT / name).read_text(encoding="utf-8")


def programs(page: str) -> list[tuple[str, str]]:
    """Returns the programs of a page, each with its output."""
    shown: list[tuple[str, str]] = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, flags=re.M | re.S)
    assert len(re.findall(r"^```python$", page, flags=re.M)) == len(shown), "each is followed by its output"
    return shown


def file_of(name: str, page: str) -> str:
    """Returns the content of a file that the page shows."""
    return named_block(f"python {name}", page)


def named_block(head: str, page: str) -> str:
    """Returns the content of the block with this first line."""
    found = re.search(rf"^```{re.escape(head)}\n(.*?)^```", page, flags=re.M | re.S)
    assert found is not None, head
    return found[1]


def session(name: str, page: str) -> Session:
    """Returns the commands of a block, each with its lines of output."""
    commands: Session = []
    for line in named_block(f"console {name}", page).splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return commands


def without_times(text: str) -> list[str]:
    """Splits an output into lines, and replaces times, speeds and identities by words."""
    for pattern, word in (
        (r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)", "TIME"),
        (r"[\d,]+ (events|commands|messages)/s", "SPEED"),
        (r"\b\d+\.\d+ s\b", "SECONDS"),
        (r"\bp1\.[0-9a-f.-]+", "POSITION"),
        (r"\b[0-9a-f]{20}\b", "MESSAGE"),
        (r"\b[0-9a-f]{32}\b", "COMMAND"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID"),
    ):
        text = re.sub(pattern, word, text)
    return [line.rstrip() for line in text.splitlines()]


@asynccontextmanager
async def served(data: Path) -> AsyncIterator[Server]:
    """Runs a server on this folder, in this process."""
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(serve, load_settings(None, data=data, listen="127.0.0.1:0"))
        yield server
        server.stop()


WITHOUT_ASYNCIO_PLUGIN: Final = {"PYTEST_ADDOPTS": "-p no:asyncio"}
"""For pytest in a folder without settings: it is installed for one page, and warns of a setting that is missing."""


async def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end. Its output includes errors."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EVENTSTORE_")}
    with trio.fail_after(TIMEOUT_S):
        return await trio.run_process(
            command,
            check=False,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**clean, **WITHOUT_ASYNCIO_PLUGIN, **environment},
        )


async def output_of(command: list[str], folder: Path, **environment: str) -> str:
    """Runs a command and returns its output, errors included."""
    return (await run(command, folder, **environment)).stdout.decode()


async def run_program(source: str, expected: str, folder: Path, address: str) -> None:
    """Runs a program of a page against this server; it must print what the page says."""
    program = source.replace(ADDRESS, address)
    assert await output_of([sys.executable, "-W", "error", "-c", program], folder) == expected


async def run_session(name: str, folder: Path, path: str, address: str, page: str) -> None:
    """Runs a session of a page line by line; each command must print what the page says."""
    for command, expected in session(name, page):
        printed = await output_of(["sh", "-c", command], folder, PATH=path, EVENTSTORE_STORE=address)
        assert without_times(printed) == without_times("\n".join(expected)), command


def write_launchers(folder: Path) -> str:
    """Writes the commands of an activated environment for the shell; returns the PATH that finds them."""
    (folder / "bin").mkdir()
    for name, arguments in (("eventstore", "-m eventstore "), ("pytest", "-m pytest "), ("python3", "")):
        launcher = folder / "bin" / name
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        launcher.chmod(0o755)
    return f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
