"""The alarms of a node and of its shards."""

from __future__ import annotations

import json
from pathlib import Path

from tests.alarms.receivers import http_receiver
from tests.cli.processes import run
from tests.cluster.node_process import NodeProcess, kill_process
from tests.waiting import wait_until


def test_a_shard_that_is_not_served_is_said_and_that_it_is_again(tmp_path: Path) -> None:
    rules = "shard_unserved: shard_unserved > 0; mine: disk_free_bytes / disk_bytes < 2"
    with http_receiver() as posts:
        settings = {"alarm_rules": rules, "alarm_interval_s": 0.05, "alarm_quiet_s": 0, "alarm_webhook": posts.url}
        with NodeProcess(tmp_path / "data", 2, **settings) as node:
            pid = node.rows()[1].pid

            def said() -> list[tuple[str, str, str]]:
                changes = [change for _, body in list(posts.taken) for change in json.loads(body)["changes"]]
                return [(each["alarm"], each["labels"].get("shard"), each["state"]) for each in changes]

            wait_until(lambda: said().count(("mine", None, "raised")) == 3, "the node and both shards say theirs")
            kill_process(pid)
            wait_until(lambda: ("shard_unserved", "1", "raised") in said(), "it is said")
            wait_until(lambda: ("shard_unserved", "1", "over") in said(), "that it is over is said")
            assert 'eventstore_node_alarm{name="mine"} 1' in node.metrics()
            assert 'eventstore_alarm{shard="0",name="mine"} 1.0' in node.metrics()
            assert node.health()["degraded"] is True
            wait_until(lambda: all(row.error is None for row in node.rows()), "both serve")

            def listed() -> list[tuple[bool, str]]:
                found = json.loads(run("alarms", "list", "--json", "--store", node.address).stdout)
                return sorted((each["server"] == node.address, each["name"]) for each in found)

            wait_until(lambda: listed() == [(False, "mine"), (False, "mine"), (True, "mine")], "no other alarm is left")
            silenced = run("alarms", "silence", "mine", "--because", "a test", "--store", node.address)
            assert silenced.stdout.count("mine is silenced for 1h") == 3
            assert node.health()["degraded"] is False


def test_a_shard_that_nobody_leads_is_named_where_alarms_are_listed(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node:
        pid, folder = node.rows()[1].pid, node.data / "shard-1"
        assert pid is not None
        folder.rename(node.data.with_name("away"))
        folder.write_text("no folder")
        kill_process(pid)

        def said() -> str:
            done = run("alarms", "list", "--store", node.address)
            assert done.returncode == (1 if done.stderr else 0)
            return done.stderr

        wait_until(lambda: "shard 1 is left out: no process serves it" in said(), "it is named")
        assert node.terminate() in (0, 1)
