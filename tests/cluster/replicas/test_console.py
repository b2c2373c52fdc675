"""The console of a node: the shards of the whole cluster, and leadership handed over from a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

import bank
import eventstore as es
from eventstore.security.audit import AUDIT
from eventstore_cluster.nodes.moving.asking import ask
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.replicated_keys import read_serving
from eventstore_cluster.replication.audited_state import CHANGED, ELECTED, REQUESTED
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.nodes.named_node import keys
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.console.conftest import browser as browser
from tests.console.http import Visitor
from tests.console.test_browser import CHECKS, SCREENS, on_screen
from tests.console.test_browser import page as page
from tests.security.access_file import give
from tests.security.conftest import Certificates
from tests.security.conftest import certificates as certificates
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
NO_ONE = "console (not signed in)"


async def fewer_are_wanted(etcd: Etcd, cluster: str, nodes: list[str], who: str) -> None:
    """Asks that shard 0 is kept by these nodes alone."""
    async with Gateway(EtcdOptions((etcd.url,), by=who)) as gateway:
        registry = EtcdRegistry(gateway, cluster)
        await ask(registry, await registry.read(), 0, nodes)


@pytest.mark.usefixtures("examples")
def test_the_console_of_a_node_shows_the_cluster_and_hands_leadership_over(tmp_path: Path, etcd: Etcd) -> None:
    with ThreeNodes(tmp_path, etcd, "seen", domain="bank:app") as three:
        leader, follower = three.leader(), three.followers()[0]
        three.wait_until_in_sync("n1", "n2", "n3")
        with three.client() as store:
            store.append("order-1", [es.NewEvent("Placed", {"n": 1})], 0)
            store.send_many([bank.Open("acc-1", "Ada"), bank.Deposit("acc-1", 500)])
        visitor = Visitor(three.nodes[leader].http)
        page = visitor.get("/console/cluster")
        assert page.status == 200
        assert {"n1", "n2", "n3"} <= set(page.words.split())
        assert "Nothing is under way." in page.words
        assert "order-1" in visitor.get("/console/log").words
        assert "order-1" in visitor.get("/console/aggregates").words
        assert "balance 500" in visitor.get("/console/aggregates/one?id=acc-1").words
        assert visitor.get("/console").status == 200
        assert "is led by" in visitor.get(f"/console/do/lead?shard=0&node={follower}").words
        done = visitor.post("/console/do/lead", {"shard": "0", "node": follower})
        assert done.status == 303, done.words
        assert f"shard 0 is led by {follower}" in visitor.get(done.headers["location"]).words
        wait_until(lambda: three.leader() == follower, "the other leads")
        visitor.get("/console/do/lead?shard=0&node=n9")
        assert "keeps no replica" in visitor.post("/console/do/lead", {"shard": "0", "node": "n9"}).words
        visitor.get("/console/do/cancel?shard=0")
        assert "nothing to cancel for shard 0" in visitor.post("/console/do/cancel", {"shard": "0"}).words
        assert "no move or split of shard 0 is under way" in visitor.post("/console/do/pause", {"shard": "0"}).words
        does(visitor, "pause", "", f"Moves are paused by {NO_ONE}.")
        trio.run(fewer_are_wanted, etcd, "seen", [leader, follower], "<i>ann")  # anyone who writes to etcd may claim that
        wait_until(lambda: "asked for by <i>ann" in visitor.get("/console/cluster").words, "the node has seen it")
        paused = 'eventstore_moves_paused{shard="0"} 1.0\n'
        wait_until(lambda: paused in three.nodes[follower].metrics(), "its metrics say so")
        wait_until(lambda: three.nodes[follower].attention() == "None", "a pause is no trouble")
        does(visitor, "pause", "0", f"paused by {NO_ONE}: `eventstore cluster resume 0` continues")
        does(visitor, "resume", "", "Pause moves …")
        assert set(three.state().replicas) == {"n1", "n2", "n3"}
        does(visitor, "resume", "0", "Nothing is under way.")
        assert set(three.state().replicas) == {leader, follower}


def does(visitor: Visitor, action: str, shard: str, shown: str) -> None:
    """Does what the page of the cluster offers, and waits until the page shows it."""
    visitor.get(f"/console/do/{action}?shard={shard}")
    done = visitor.post(f"/console/do/{action}", {"shard": shard})
    assert done.status == 303, done.words
    wait_until(lambda: shown in visitor.get("/console/cluster").words, "the node has seen it")


@pytest.mark.long
def test_what_is_done_at_the_console_is_in_the_trail_of_the_shard_with_who_did_it_and_a_pause_outlives_the_leader(
    tmp_path: Path, etcd: Etcd, certificates: Certificates
) -> None:
    access, context = tmp_path / "access", certificates.context()
    token = give(access, "ann", "admin")
    give(access, "nodes", "cluster", "command", certificates=["CN=localhost"])

    def audited(what: str, **details: object) -> list[str]:
        """Returns who has done this to the shard, each time; nothing while no leader serves."""
        serving = read_serving(keys(etcd, "audited").value("serving/0"))
        if serving is None:
            return []
        try:
            with es.blocking.connect(
                f"tls://{serving.address}", reconnect_timeout=0, token=token, ssl_context=context
            ) as store:
                records = [json.loads(event.data) for event in store.read(AUDIT)]
        except es.EventStoreError:  # it has just died
            return []
        return [each["who"] for each in records if each["what"] == what and details.items() <= each["details"].items()]

    given = certificates.settings(access_file=str(access / "access.json"))
    with ThreeNodes(tmp_path, etcd, "audited", **given) as three:
        leader, follower = three.leader(), three.followers()[0]
        visitor = Visitor(three.nodes[leader].http, context)
        assert visitor.sign_in(token).status == 303
        does(visitor, "pause", "", "Moves are paused by ann.")
        visitor.get(f"/console/do/lead?shard=0&node={follower}")
        assert visitor.post("/console/do/lead", {"shard": "0", "node": follower}).status == 303
        wait_until(lambda: audited(ELECTED, node=follower, moves_paused=True) == ["ann"], "it is recorded that it leads")
        trio.run(fewer_are_wanted, etcd, "audited", [leader, follower], "ben")
        wait_until(lambda: audited(CHANGED, replicas_wanted=f"{leader}, {follower}") == ["ben"], "the plan is recorded")
        does(visitor, "pause", "0", "paused by ann: `eventstore cluster resume 0` continues")
        does(visitor, "resume", "", "Pause moves …")
        wait_until(lambda: audited(CHANGED, moves_paused=False) == ["ann"], "it is recorded that they are resumed")
        three.kill(follower)
        wait_until(lambda: audited(ELECTED, paused=True, asked_by="ben") == [""], "another leads, which was not asked for")
        assert audited(CHANGED, paused=True) == ["ann"]
        for paused in (True, False):
            assert audited(REQUESTED, moves_paused=paused) == ["ann"], "once, though three have led since"
        three.start(follower)
        assert set(three.state().replicas) == {"n1", "n2", "n3"}
        does(visitor, "resume", "0", "Nothing is under way.")
        wait_until(lambda: audited(CHANGED, replicas=f"{leader}, {follower}") == ["ben"], "it is recorded that it is done")


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
        trio.run(fewer_are_wanted, etcd, "clicked", [leader, follower], "ann")
        for does, then in (("Pause", "Resume"), ("Resume", "Pause")):
            link = f"a:has-text('{does} what is wanted of shard 0')"
            wait_until(lambda link=link: page.reload() and page.locator(link).count(), "the plan is shown")  # type: ignore[misc]
            assert page.locator("p.card:has-text('asked for by ann')").count()
            page.click(link)
            sure(f"Moves of shard 0 are {does.lower()}d")
            link = f"a:has-text('{then} what is wanted of shard 0')"
            wait_until(lambda link=link: page.reload() and page.locator(link).count(), "the node has seen it")  # type: ignore[misc]
        for screen in SCREENS:
            on_screen(page, *screen)
            assert page.evaluate(CHECKS) == []
