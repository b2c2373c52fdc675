"""`eventstore reactions` with a real server, whose reaction is rejected for one aggregate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventstore import blocking
from tests.cli.processes import output, refused, run
from tests.server.commands import echoes
from tests.server_thread import ServerThread
from tests.waiting import wait_until


@pytest.fixture
def parked(tmp_path: Path) -> Iterator[str]:
    """Starts a server whose reaction `echo` has parked two events of aggregate `a`; yields its address."""
    echoes.failing.clear()
    echoes.failing["a"] = "a bug in a reaction"
    with ServerThread(tmp_path / "data", domain="tests.server.commands.echoes:app") as server:
        with blocking.connect(server.address) as store:
            store.send_many([echoes.Call("a", 1), echoes.Call("a", 2), echoes.Call("b", 3)])
            wait_until(lambda: store.stats()["reactions_parked"] == 2, "two are parked")
        yield server.address
    echoes.failing.clear()


def test_an_operator_looks_at_reactions_retries_skips_and_replays(parked: str) -> None:
    (listed,) = json.loads(output("reactions", "list", "--json", store=parked))
    assert (listed["name"], listed["state"], listed["parked"]) == ("echo", "running", 2)
    assert "a bug in a reaction" in output("reactions", "list", store=parked)
    shown = json.loads(output("reactions", "show", "echo", "--json", store=parked))
    assert [(each["aggregate_id"], each["version"]) for each in shown] == [("a", 1), ("a", 2)]
    assert "waits for version 1" in output("reactions", "show", "echo", store=parked)
    failed = run("reactions", "retry", "echo", "--aggregate", "a", store=parked)
    assert (failed.returncode, failed.stdout) == (1, "0 events done; 2 events of echo still parked\n")
    for verb in (("skip", "echo", "A", "--because", "by hand"), ("retry", "echo", "--aggregate", "A")):
        other = run("reactions", *verb, store=parked)
        assert (other.returncode, other.stdout) == (1, "0 events done; 2 events of echo still parked\n")
        assert other.stderr == "nothing of 'A' is parked; `eventstore reactions show echo` lists the parked events\n"
    echoes.failing.clear()
    skipped = output("reactions", "skip", "echo", "a", "--because", "sent by hand", store=parked)
    assert skipped == "2 events done; echo has nothing parked\n"
    assert output("reactions", "show", "echo", store=parked) == "echo has nothing parked\n"
    replayed = output("reactions", "replay", "echo", "--from", 1, "--because", "after all", store=parked)
    assert replayed == "echo continues after sequence 0\n"
    assert "there is no reaction 'other'" in refused("reactions", "show", "other", store=parked, code=2)
    with blocking.connect(parked) as store:
        whys = [each.json()["why"] for each in store.read("$parked{a}") if each.type == "$Unparked"]
    assert whys == ["sent by hand"] * 2


def test_an_export_leaves_out_what_the_server_keeps_for_itself(parked: str) -> None:
    def ids(*options: object) -> list[str]:
        return [json.loads(line)["aggregate_id"] for line in output("export", *options, store=parked).splitlines()]

    assert {"a", "b"} <= set(ids())
    assert not [each for each in ids() if each.startswith("$")]
    assert set(ids("--aggregate", "$parked{a}")) == set(ids("--prefix", "$")) == {"$parked{a}"}
