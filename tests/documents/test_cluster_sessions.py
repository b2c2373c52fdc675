"""The sessions about clusters in docs/CLUSTER.md and docs/SECURITY.md, typed as they stand there, beside a real etcd."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from eventstore import NewEvent, blocking
from eventstore.errors import Unauthenticated
from eventstore.security.tls import client_context
from tests.cluster.etcd.real_etcd import Etcd, running
from tests.documents.pages import TIMEOUT_S, named_block, text_of, write_launchers
from tests.server_thread import ServerThread
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.long]
EVENTS = 40


class Typed:
    """A folder in which commands are typed. Nodes listen on free ports; what the page calls their addresses is replaced."""

    def __init__(self, folder: Path, etcd: Etcd) -> None:
        self._folder, self._etcd = folder, etcd
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EVENTSTORE_")}
        self._environment = kept | {"PATH": write_launchers(folder)}
        self._before = ""
        self._addresses: dict[str, str] = {}
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def session(self, text: str) -> str:
        """Types line after line; each command must succeed. Returns what the last one printed."""
        printed = ""
        for line in text.splitlines():
            command = re.sub(r"http://[\d.]+:2379", self._etcd.url, line.partition("  #")[0])
            if command.startswith(("export ", "umask ")):
                self._before += f"{command}; "
            elif command.endswith(" &"):
                self._start(command.removesuffix(" &"))
            else:
                if (removed := re.match(r"eventstore cluster remove (\w+)", command)) is not None:
                    self.stop(removed[1])
                printed = self.run(command)
        return printed

    def run(self, command: str) -> str:
        for shown, real in self._addresses.items():
            command = command.replace(shown, real)
        done = subprocess.run(
            ["sh", "-c", self._before + command], cwd=self._folder, env=self._environment, check=False, text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def address(self, shown: str) -> str:
        return self._addresses[shown]

    def _start(self, command: str) -> None:
        named = re.search(r"--name (\w+) .*--listen (\S+)", command)
        assert named is not None, command
        name, shown = named.groups()
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            self.nodes[name] = subprocess.Popen(
                ["sh", "-c", f"{self._before}exec {command.replace(shown, '127.0.0.1:0')}"], cwd=self._folder,
                env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

        def serves() -> re.Match[str] | None:
            assert self.nodes[name].poll() is None, log.read_text()
            return re.search(r"the node serves.* address=\w+://(\S+)\s", log.read_text())

        wait_until(serves, f"{name} serves")
        found = serves()
        assert found is not None
        self._addresses[shown] = found[1]

    def stop(self, name: str) -> None:
        node = self.nodes.pop(name)
        node.send_signal(signal.SIGTERM)
        assert node.wait(TIMEOUT_S) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for node in self.nodes.values():
            node.send_signal(signal.SIGTERM)  # its shards end with it
        for name, node in self.nodes.items():
            try:
                node.wait(TIMEOUT_S)
            finally:
                node.kill()
            if error is not None:
                error.add_note(f"{name}: {(self._folder / f'{name}.log').read_text(errors='replace')[-2000:]}")


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Typed]:
    (tmp_path / "typed").mkdir()
    (tmp_path / "etcd").mkdir()
    with running(tmp_path / "etcd") as (etcd,), Typed(tmp_path / "typed", etcd) as made:
        yield made


def test_a_single_store_grows_as_the_page_says_and_keeps_its_events(typed: Typed, tmp_path: Path) -> None:
    ids = [f"order-{number}" for number in range(EVENTS)]
    with ServerThread(tmp_path / "typed" / "data") as server, blocking.connect(server.address) as store:
        for each in ids:
            store.append(each, [NewEvent("Placed", b"{}")], 0)
    typed.session(named_block("sh growing", text_of("docs/CLUSTER.md")))
    with blocking.connect(f"tcp://{typed.address('10.0.0.4:7701')}") as store:
        assert len(store.cluster_map().shards) == 4
        assert sorted(event.aggregate_id for event in store.read_all()) == sorted(ids)
    assert sorted(typed.nodes) == ["n1", "n3", "n4"]


def test_three_nodes_with_tls_serve_as_the_page_says_and_each_goes_by_its_copy_of_the_access_list(
    typed: Typed, tmp_path: Path
) -> None:
    folder = tmp_path / "typed"
    shown = typed.session(named_block("sh tls", text_of("docs/SECURITY.md")))
    assert len(re.findall(r"\b(?:0–2047|2048–4095)\b", shown)) == 2
    token = typed.run("eventstore access add late --grant stats --data n1").strip()
    context, second = client_context(str(folder / "certificates" / "ca.pem")), f"tls://{typed.address('127.0.0.1:7731')}"

    def known_to_second() -> bool:
        try:
            with blocking.connect(second, token=token, ssl_context=context, connect_timeout=TIMEOUT_S):
                return True
        except Unauthenticated:
            return False

    assert not known_to_second()
    shutil.copy(folder / "n1" / "access.json", folder / "n2")
    wait_until(known_to_second, "the copy counts")
