"""`eventstore project --exchange` and `eventstore diff`: a new version of a table takes over while the old one is followed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.commands.run.test_project import Projector
from tests.cli.processes import Server, line, output, refused, run, wait_for

Serve = Callable[..., Server]
FIRST = """
from dataclasses import dataclass
from typing import ClassVar

import eventstore.domain as d


@dataclass(frozen=True)
class Deposited:
    cents: int


class Balances(d.Projection[int]):
    name = "balances"
    columns: ClassVar = {"cents": int}

    def initial(self) -> int:
        return 0

    @d.folds(Deposited)
    def _(self, state: int, event: Deposited) -> int:
        return state + event.cents

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"cents": state}
"""
SECOND = FIRST.replace('name = "balances"', 'name = "balances"\n    version = 2').replace(
    "state + event.cents", "state + max(event.cents, 0)"
)


@pytest.fixture
def server(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    (tmp_path / "first.py").write_text(FIRST)
    (tmp_path / "second.py").write_text(SECOND)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = serve()
    deposits = [("a-1", 5), ("a-2", 7), ("a-1", -2), ("a-3", -1)]
    lines = [line(key, f"c-{number}", "Deposited", {"cents": cents}) for number, (key, cents) in enumerate(deposits)]
    output("import", "-", store=server.store, text="\n".join(lines))
    return server


def balances(path: Path, table: str = "balances") -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute(f'SELECT key, cents FROM "{table}"'))


def test_a_new_version_is_built_beside_compared_and_takes_over(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "read.db"
    to = ["--to", f"sqlite:{path}"]
    old = Projector(server, tmp_path, *to, project=("project", "--projection", "first:Balances"))
    wait_for(lambda: "caught up" in old.said, "the first version has caught up")
    said = refused("project", "--projection", "second:Balances", *to, "--until-caught-up", store=server.store, code=2)
    assert "made by version 1 of the projection, but the code declares version 2" in said
    beside = run("project", "--projection", "second:Balances", *to, "--beside", "--until-caught-up", store=server.store)
    assert beside.returncode == 0
    assert "balances: version 1 is served; balances:2 is built beside it" in beside.stderr
    assert balances(path) == {"a-1": 3, "a-2": 7, "a-3": -1}
    assert balances(path, "balances:2") == {"a-1": 5, "a-2": 7, "a-3": 0}

    compared = run("diff", "second:Balances", *to, store=server.store)
    assert compared.returncode == 1
    assert compared.stdout.splitlines() == [
        "balances and balances:2: 2 rows differ of 3",
        "  2 changed: cents",
        "    a-1: cents 3 → 5",
        "      sequence 1, a-1 v1, Deposited b'{\"cents\":5}'",
        "      sequence 3, a-1 v2, Deposited b'{\"cents\":-2}'",
        "    a-3: cents -1 → 0",
        "      sequence 4, a-3 v1, Deposited b'{\"cents\":-1}'",
    ]
    found = json.loads(run("diff", "second:Balances", *to, "--json", store=server.store).stdout)
    assert (found["rows"], found["differ"], found["counts"]) == (3, 2, {"changed: cents": 2})
    assert found["samples"][1]["events"] == [{"sequence": 4, "aggregate_id": "a-3", "version": 1, "type": "Deposited"}]

    new = Projector(server, tmp_path, *to, "--exchange", "--keep", "1h", project=("project", "--projection", "second:Balances"))
    wait_for(lambda: "balances: version 2 has taken over at sequence 4; version 1 is kept as balances:1 for 1h" in new.said,
             "the second version has taken over")  # fmt: skip
    assert "balances: balances and balances:2: 2 rows differ of 3" in new.said
    output("append", "a-3", "--type", "Deposited", "--data", '{"cents":4}', store=server.store)
    wait_for(lambda: balances(path) == {"a-1": 5, "a-2": 7, "a-3": 4}, "the new table is followed")
    wait_for(lambda: old.process.poll() is not None, "the first version has ended")
    assert "another projector is running" in old.said
    new.process.terminate()
    assert new.process.wait(60) == 0

    back = run("project", "--projection", "first:Balances", *to, "--exchange", "--until-caught-up", store=server.store)
    assert back.returncode == 0, back.stderr
    assert balances(path) == {"a-1": 3, "a-2": 7, "a-3": 3}
    same = run("diff", "first:Balances", "--against", "1", *to, store=server.store)
    assert "there is no table 'balances:1'" in same.stderr


def test_a_time_to_keep_that_is_none_is_refused(server: Server, tmp_path: Path) -> None:
    said = refused("project", "--projection", "first:Balances", "--to", f"sqlite:{tmp_path}/x.db", "--exchange", "--keep",
                   "soon", store=server.store, code=2)  # fmt: skip
    assert said == "--keep is 'soon', but must be a time such as 90s, 30m, 12h or 7d"
