"""A worker's alarms: on the reactions that it runs, which no server knows of."""

from __future__ import annotations

import json
from pathlib import Path

from eventstore import blocking
from tests.alarms.receivers import http_receiver
from tests.server.commands import echoes
from tests.server.commands.domain_hosts import DomainHost
from tests.server.work.worker_thread import WorkerThread
from tests.server_thread import ServerThread
from tests.waiting import wait_until


def test_a_worker_says_what_its_reactions_parked_until_it_is_silenced(tmp_path: Path) -> None:
    echoes.failing.update(a="a bug")
    domain, checkpoint = "tests.server.commands.echoes:app", tmp_path / "reactions.json"
    with http_receiver() as posts:
        settings = {"alarm_webhook": posts.url, "alarm_interval_s": 0.05}
        with DomainHost("work", tmp_path, domain, checkpoint=checkpoint, **settings) as worker:
            with worker.connect() as store:
                store.send(echoes.Call("a", 1))
                wait_until(lambda: posts.taken, "it is posted")
                assert [each.subject for each in store.alarms.list() if each.state == "raised"] == ["reaction=echo"]
                store.alarms.silence("reaction_parked", 600, who="ada", why="known")
            worker.restart()
            with worker.connect() as store:
                wait_until(lambda: store.stats()["alarms"] == "reaction_parked", "it is raised again")
                (parked,) = [each for each in store.alarms.list() if each.state == "raised"]
                assert (parked.silenced_by, parked.silenced_because) == ("ada", "known")
    posted = [json.loads(body) for _, body in posts.taken]
    assert [(each["alarm"], each["state"]) for post in posted for each in post["changes"]] == [("reaction_parked", "raised")]
    assert posted[0]["source"].startswith("worker ")
    echoes.failing.clear()


def test_a_worker_says_that_its_store_is_away_until_it_is_back(tmp_path: Path) -> None:
    settings = {"alarm_interval_s": 0.05, "alarm_quiet_s": 0.0, "alarm_rules": "worker_cut_off: shards_away > 0"}
    with DomainHost("work", tmp_path, **settings) as worker, worker.connect() as asked:
        assert asked.stats()["shards_away"] == 0
        worker.store.stop_servers()
        wait_until(lambda: asked.stats()["alarms"] == "worker_cut_off", "it is raised")
        assert asked.stats()["attention"] == "the store is away: commands wait"
        worker.store.start_servers()
        wait_until(lambda: asked.stats()["alarms"] is None, "it is over")
        assert asked.stats()["attention"] is None


def test_a_worker_that_has_left_is_an_alarm_of_its_store_until_it_is_back(tmp_path: Path) -> None:
    settings = {"alarm_interval_s": 0.05, "alarm_quiet_s": 0.0, "alarm_rules": "worker_left: projections_left > 0"}
    domain, checkpoint = "tests.server.commands.echoes:app", tmp_path / "reactions.json"
    with ServerThread(tmp_path / "data", **settings) as server, blocking.connect(server.address) as store:
        with WorkerThread(server.address, checkpoint, domain=domain) as worker:
            with blocking.connect(worker.address) as sends:
                sends.send(echoes.Call("a", 1))
            wait_until(lambda: [each.name for each in store.projections()] == [f"worker {domain}"], "it is listed")
            assert store.stats()["alarms"] is None
        wait_until(lambda: store.stats()["alarms"] == "worker_left", "it is raised")
        (row,) = store.projections()
        assert row.has_left
        with WorkerThread(server.address, checkpoint, domain=domain):
            wait_until(lambda: store.stats()["alarms"] is None, "it is over")
            wait_until(lambda: not any(each.has_left for each in store.projections()), "it is back")
