"""The programs and commands of the pages at the address of a node of three shards: unchanged, and with the same results.

All of them run on one node, in turn. What counts within a shard, the sequence of an event, is not compared. Not here, because
they do not connect to a server: the embedded programs of CLIENT and BROKER, the blocks of DOMAIN, and the queries of SPARK,
which read folders (`tests/spark/test_node_folder.py` reads that of a node).
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from eventstore import blocking
from tests.cli import processes
from tests.cluster.node_process import NodeProcess
from tests.documents.pages import ADDRESS, file_of, programs, session, text_of, without_times

README, CLIENT, BROKER = text_of("README.md"), text_of("docs/CLIENT.md"), text_of("docs/BROKER.md")
SHARDS = 3


@dataclass(frozen=True)
class Reader:
    """Someone who types what the pages show, in one folder, with the node's address in the place of the page's."""

    folder: Path
    node: NodeProcess
    capture: pytest.CaptureFixture[str]

    def run(self, source: str) -> str:
        """Runs a program and returns what it printed."""
        self.capture.readouterr()
        exec(source.replace(ADDRESS, self.node.address), {"__name__": "page"})  # our own pages
        return self.capture.readouterr().out

    def type(self, command: str) -> str:
        """Runs a line of a session and returns what it printed."""
        program, *arguments = shlex.split(command)
        if program == "python3":
            return self.run(arguments[1] if arguments[0] == "-c" else (self.folder / arguments[0]).read_text())
        assert program == "eventstore"
        done = processes.run(*arguments, store=self.node.address)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("node")
    (folder / "bank.py").write_text(file_of("bank.py", CLIENT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with NodeProcess(folder / "data", SHARDS, domain="bank:app", publish="events") as node:
            yield node
            assert node.terminate() == 0


@pytest.fixture
def reader(node: NodeProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    bank = ModuleType("bank")
    monkeypatch.setitem(sys.modules, "bank", bank)
    exec(file_of("bank.py", CLIENT), bank.__dict__)  # as above
    (tmp_path / "bank.py").write_text(file_of("bank.py", CLIENT))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Reader(tmp_path, node, capsys)


def without_sequences(text: str) -> list[str]:
    return [re.sub(r"\bsequence \d+|#\d+@\d( #\d+@\d)+", "sequence N", line) for line in without_times(text)]


def without_shards(lines: list[str]) -> list[str]:
    """Returns each line once, without the shard that it names."""
    return [*dict.fromkeys(re.sub(rf" on (shard \d|each of {SHARDS} shards)$|@\d(?=/)", "", line) for line in lines)]


def check_session(reader: Reader, name: str, page: str) -> None:
    for command, expected in session(name, page):
        assert without_shards(without_sequences(reader.type(command))) == without_sequences("\n".join(expected)), command


def test_the_bank_of_client_and_the_consumer_of_its_events_that_broker_shows(reader: Reader) -> None:
    """The consumer takes the first event that comes: so it reads the topic while there is only one."""
    source, expected = programs(CLIENT)[3]
    assert "from bank import" in source
    first = 'store.send(Deposit("acc-1", 100), command_id="c-1")'
    assert first in source
    reader.run(
        f'import eventstore as es\nfrom bank import Deposit\nwith es.blocking.connect("{ADDRESS}") as store:\n  {first}\n'
    )
    assert reader.run(file_of("accounts.py", BROKER)) == "acc-1 1 Moved(cents=100)\n"
    assert reader.run(source) == expected
    check_session(reader, "bank", CLIENT)


@pytest.mark.parametrize("place", range(4), ids=["network", "replay many", "blocking", "messages"])
def test_a_program_prints_what_its_page_says(reader: Reader, place: int) -> None:
    served = [each for each in (*programs(README), *programs(CLIENT)) if "connect(" in each[0] and "bank" not in each[0]]
    assert len(served) == 4
    source, expected = served[place]
    assert reader.run(source) == expected


def test_the_session_of_the_broker_prints_what_its_page_says_once_for_each_shard(reader: Reader) -> None:
    with blocking.connect(reader.node.address) as store:  # after the program of CLIENT, which has a topic of this name
        store.broker.create_topic("orders", if_missing=True)
        store.broker.delete_topic("orders", ignore_unconsumed=True)
        if "billing" in [each.name for each in store.broker.groups()]:
            store.broker.delete_group("billing")
    (reader.folder / "bill.py").write_text(file_of("bill.py", BROKER))
    check_session(reader, "broker", BROKER)
