"""Follows a page as a reader does: writes its files, keeps its terminals open, and compares what they print.

The first line of a block says what it is. `python NAME` is a file, `python NAME (add)` goes at its end, `diff NAME` changes
it, `sql FILE` is for SQLite, `console TERMINAL` is typed into the terminal that its prompt names. In the terminal `you` each
command runs to its end and prints what the page says. In any other, a command keeps running until the next is typed there.
Addresses are replaced by those of this run. A command that only reads is repeated until it prints what the page says, because
read models and reactions follow the store.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from eventstore import blocking
from tests.documents.pages import ADDRESS, WITHOUT_ASYNCIO_PLUGIN, without_times, write_launchers
from tests.ports import free_port
from tests.waiting import wait_until

READY = {
    "eventstore serve": "serving",
    "eventstore node": "the node serves",
    "uvicorn": "Application startup complete",
    "eventstore project": "caught up",
}
READS = ("eventstore read", "eventstore tail", "curl -s localhost:8000/orders/")
TIMEOUT_S = 120.0
CURL = """import json, sys
import httpx

options = iter(sys.argv[1:])
headers, body, url, write_out = {}, None, "", ""
for option in options:
    if option == "-H":
        name, _, value = next(options).partition(": ")
        headers[name] = value
    elif option == "--json":
        body = json.loads(next(options))
    elif option == "-w":
        write_out = next(options)
    elif option != "-s":
        url = f"http://{option}"
answer = httpx.request("GET" if body is None else "POST", url, headers=headers, json=body)
print(answer.text, end=write_out.replace("%{http_code}", str(answer.status_code)).replace("\\\\n", "\\n"))
"""


class FollowedPage:
    """A folder in which the blocks of the page are carried out, with real servers on free ports. `shards`: a node of this many
    takes the place of each server; what counts within a shard, the sequence of an event, is not compared then.
    """

    def __init__(self, folder: Path, replaced: dict[str, str] | None = None, *, shards: int = 0) -> None:
        self._folder = folder
        self._on_shards = shards > 0
        self._terminals: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self._store_port, api_port = free_port(), free_port()
        self._store = f"tcp://127.0.0.1:{self._store_port}"
        self._replaced = {ADDRESS: self._store, "localhost:8000": f"127.0.0.1:{api_port}", "--port 8000": f"--port {api_port}"}
        self._replaced |= replaced or {}
        if shards:
            self._replaced["eventstore serve"] = f"eventstore node --shards {shards}"
        path = write_launchers(folder)
        (folder / "bin" / "curl.py").write_text(CURL)
        for name, arguments in (("uvicorn", "-m uvicorn"), ("curl", str(folder / "bin" / "curl.py"))):
            (folder / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
            (folder / "bin" / name).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EVENTSTORE_", "PYTEST_"))}
        self._environment = kept | WITHOUT_ASYNCIO_PLUGIN | {
            "PATH": path, "EVENTSTORE_STORE": self._store, "EVENTSTORE_LISTEN": f"127.0.0.1:{self._store_port}",
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip

    def follow(self, page: str) -> None:
        """Carries out the blocks of the page, or of a part of it, from top to bottom."""
        for head, body in re.findall(r"^```(\w+ .+?)\n(.*?)^```$", page, flags=re.M | re.S):
            kind, name, *how = head.split()
            if kind == "console" and name == "you":
                self._type(body)
            elif kind == "console":
                self._restart(name, body)
            elif kind == "sql":
                with closing(sqlite3.connect(self._folder / name)) as database:
                    database.executescript(body)
            else:
                self.write(kind, name, self._here(body), add=bool(how))

    def write(self, kind: str, name: str, body: str, *, add: bool) -> None:
        """Writes, extends or changes a file."""
        file = self._folder / name
        if kind == "diff":
            lines = body.splitlines(keepends=True)
            before = "".join(line[1:] or "\n" for line in lines if line[0] != "+")
            after = "".join(line[1:] or "\n" for line in lines if line[0] != "-")
            assert file.read_text().count(before) == 1, before
            body = file.read_text().replace(before, after)
        elif add:
            body = f"{file.read_text()}\n\n{body}"
        file.write_text(body)

    def _here(self, text: str) -> str:
        for shown, real in self._replaced.items():
            text = text.replace(shown, real)
        return text

    def _type(self, body: str) -> None:
        for typed in re.split(r"^\$ ", body, flags=re.M)[1:]:
            command, _, expected = typed.partition("\n")
            if (found := re.search(r"\(sequence (\d+)\)|complete up to sequence (\d+)", expected)) is not None:
                self._wait_for_sequence(int(found[1]) - 1 if found[1] else int(found[2]))
            reads = command.startswith(READS)
            deadline = time.monotonic() + (TIMEOUT_S if reads else 0.0)
            while (form := self._form(printed := self._run(command))) != self._form(expected) and time.monotonic() < deadline:
                pass
            assert form == self._form(expected), f"{command} printed:\n{printed}"

    def _form(self, text: str) -> list[str]:
        lines = _form(text)
        if not self._on_shards:
            return lines
        of_one_shard = [re.sub(r"#\d+@\d+( #\d+@\d+)*", "sequence N", re.sub(r"^#N@\d+", "#N", line)) for line in lines]
        return [re.sub(r"\bsequence \d+", "sequence N", line) for line in of_one_shard]

    def _run(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", self._here(command)], cwd=self._folder, env=self._environment, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S,
        )  # fmt: skip
        return done.stdout.decode()

    def _wait_for_sequence(self, sequence: int) -> None:
        """Waits for the events that reactions append."""
        with blocking.connect(self._store) as store:
            wait_until(lambda: _events(store) >= sequence, f"sequence {sequence} is there")

    def _restart(self, terminal: str, body: str) -> None:
        self._stop(terminal)
        command, _, expected = self._here(body.removeprefix(f"{terminal}$ ")).partition("\n")
        log = self._folder / f"{terminal}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {command}"], cwd=self._folder, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self._terminals[terminal] = process, log
        ready = next((words for begin, words in READY.items() if command.startswith(begin)), "")

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            printed = log.read_text()
            return ready in printed and all(line in printed for line in expected.splitlines())

        wait_until(is_ready, f"{command} prints {expected or ready}", TIMEOUT_S)

    def _stop(self, terminal: str) -> None:
        process, _ = self._terminals.pop(terminal, (None, None))
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process, log in self._terminals.values():
            process.kill()
            process.wait(TIMEOUT_S)
            if error is not None:
                error.add_note(f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}")


def _events(store: blocking.BlockingStore) -> int:
    return sum(1 for _ in store.read_all())


def _form(text: str) -> list[str]:
    """Splits an output into lines without times, sequences and the width of columns."""
    lines = [re.sub(r"\bin \d+\.\d+s", "in SECONDS", re.sub(r"^#\d+", "#N", line)) for line in without_times(text)]
    return [re.sub(r"  +", "  ", line) for line in lines if line]
