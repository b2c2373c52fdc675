"""A real server of UmaDB is moved in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import eventstore as es
from eventstore import blocking
from tests.cli.processes import Server, output, refused
from tests.ports import free_port
from tests.waiting import wait_until

umadb: Any = pytest.importorskip("umadb", reason="umadb is not installed")
Serve = Callable[..., Server]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    program = shutil.which("umadb", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("the server of UmaDB is not installed")
    port = free_port()
    with open(tmp_path / "umadb.log", "wb") as log:
        server = subprocess.Popen(
            [program, "--listen", f"127.0.0.1:{port}", "--db-path", str(tmp_path / "uma.db")], stdout=log, stderr=log
        )
    try:
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            assert server.poll() is None, (tmp_path / "umadb.log").read_text()
            try:
                umadb.Client(url).head()
            except Exception:
                return False
            return True

        wait_until(answers, "UmaDB answers")
        yield url
    finally:
        server.terminate()
        server.wait(60)


def events(server: Server) -> list[es.Event]:
    with blocking.connect(server.store) as store:
        return [event for event in store.read_all() if not event.aggregate_id.startswith("migration-")]


def test_events_keep_tags_ids_and_metadata_and_a_further_run_takes_what_is_new(serve: Serve, address: str) -> None:
    server, client, id_ = serve(), umadb.Client(address), uuid4()
    client.append([umadb.Event("Joined", b'{"n":1}', ["course:1", "student:2"], id_, {"by": "me"})])
    client.append([umadb.Event("Left", b"\xff", ["course:1"])])
    output("migrate", f"umadb:{address}", server.store)
    first, second = events(server)
    assert (first.aggregate_id, first.type, first.data, first.tags) == (
        "{umadb}-1",
        "Joined",
        b'{"n":1}',
        ("course:1", "student:2"),
    )
    assert (first.command_id, first.metadata_json()) == (str(id_), {"by": "me"})
    assert (second.aggregate_id, second.version, second.data, second.metadata) == ("{umadb}-2", 1, b"\xff", None)
    client.append([umadb.Event("Later", b"") for _ in range(5_000)])
    assert output("migrate", f"umadb:{address}", server.store) == "5,000 events copied (0 were there), up to position 5,002\n"
    output("migrate", f"umadb:{address}", server.store, "--verify")
    other = ["migrate", f"umadb:{address}", server.store, "--aggregate-tag", "course"]
    assert "the schema of umadb changed since the last run: aggregate is tag course:" in refused(*other)
    assert "the event at position 3 is none here: it has 0 tags" in refused(*other, "--name", "by-course")


def test_a_tag_names_the_aggregate(serve: Serve, address: str) -> None:
    server, client = serve(), umadb.Client(address)
    for number in (1, 2, 1):
        client.append([umadb.Event("Joined", b"", [f"course:{number}"])])
    output("migrate", f"umadb:{address}", server.store, "--aggregate-tag", "course")
    assert [(event.aggregate_id, event.version) for event in events(server)] == [
        ("course:1", 1),
        ("course:2", 1),
        ("course:1", 2),
    ]
    output("migrate", f"umadb:{address}", server.store, "--aggregate-tag", "course", "--verify")


def test_a_server_that_is_not_there_is_named(serve: Serve) -> None:
    assert "umadb" in refused("migrate", f"umadb:http://127.0.0.1:{free_port()}", serve().store)
