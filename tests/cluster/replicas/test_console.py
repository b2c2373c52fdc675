"""The console of a node: the shards of the whole cluster, and leadership handed over from a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.console.conftest import browser as browser
from tests.console.http import Visitor
from tests.console.test_browser import CHECKS, SCREENS, on_screen
from tests.console.test_browser import page as page
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


def test_the_console_of_a_node_shows_the_cluster_and_hands_leadership_over(tmp_path: Path, etcd: Etcd) -> None:
    with ThreeNodes(tmp_path, etcd, "seen") as three:
        leader, follower = three.leader(), three.followers()[0]
        three.wait_until_in_sync("n1", "n2", "n3")
        with three.client() as store:
            store.append("order-1", [es.NewEvent("Placed", {"n": 1})], 0)
        visitor = Visitor(three.nodes[leader].http)
        page = visitor.get("/console/cluster")
        assert page.status == 200
        assert {"n1", "n2", "n3"} <= set(page.words.split())
        assert "Nothing is under way." in page.words
        assert "order-1" in visitor.get("/console/log").words
        assert "order-1" in visitor.get("/console/aggregates").words
        assert visitor.get("/console").status == 200
        assert "is led by" in visitor.get(f"/console/do/lead?shard=0&node={follower}").words
        done = visitor.post("/console/do/lead", {"shard": "0", "node": follower})
        assert done.status == 303, done.words
        assert f"shard 0 is led by {follower}" in visitor.get(done.headers["location"]).words
        wait_until(lambda: three.leader() == follower, "the other leads")
        visitor.get("/console/do/lead?shard=0&node=n9")
        assert "keeps no replica" in visitor.post("/console/do/lead", {"shard": "0", "node": "n9"}).words
        for action, shown in (("pause", "Moves are paused."), ("resume", "Pause moves")):
            visitor.get(f"/console/do/{action}")
            done = visitor.post(f"/console/do/{action}", {})
            assert done.status == 303, done.words
            wait_until(lambda shown=shown: shown in visitor.get("/console/cluster").words, "the node has seen it")  # type: ignore[misc]
        visitor.get("/console/do/cancel?shard=0")
        assert "nothing is wanted" in visitor.post("/console/do/cancel", {"shard": "0"}).words


@pytest.mark.long
def test_the_page_of_a_cluster_is_looked_at_and_worked_with_in_a_browser(tmp_path: Path, etcd: Etcd, page: Any) -> None:
    with ThreeNodes(tmp_path, etcd, "clicked") as three:
        leader, follower = three.leader(), three.followers()[0]
        three.wait_until_in_sync("n1", "n2", "n3")
        page.goto(f"{three.nodes[leader].http}/console/cluster")
        page.wait_for_selector("caption:has-text('Nodes that run')")

        def sure(said: str) -> None:
            page.wait_for_selector("text=Are you sure?")
            assert page.evaluate(CHECKS) == []
            page.click("button.danger")
            page.wait_for_selector(f"text={said}")

        page.select_option("#node", follower)
        page.click("button:has-text('Hand over')")
        sure(f"shard 0 is led by {follower}")
        wait_until(lambda: three.leader() == follower, "the other leads")
        page.click("a:has-text('Pause moves')")
        sure("paused")
        wait_until(lambda: page.reload() and page.locator("a:has-text('Resume moves')").count(), "the node has seen it")
        for screen in SCREENS:
            on_screen(page, *screen)
            assert page.evaluate(CHECKS) == []
