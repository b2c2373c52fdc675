"""A worker publishes what its domain says to the broker of its store, as a server does; of a cluster, each shard to its own."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import eventstore as es
from eventstore import blocking
from tests.cluster.led_shards import LedShards
from tests.logged_process import EVENTSTORE
from tests.server.outbox import published_shop
from tests.server.outbox.published_shop import Placed, Sent
from tests.server.outbox.test_outbox_killed import published
from tests.server.outbox.test_parked_messages import MENDED, NAME, bodies, parked
from tests.server.outbox.test_parked_messages import SHOP as PARKING
from tests.server.outbox.test_publications import SHOP, append
from tests.server.work.worker_process import WorkerProcess
from tests.server.work.worker_thread import WorkerThread
from tests.server_thread import ServerThread
from tests.waiting import wait_until


def bills(store: blocking.BlockingStore) -> Counter[tuple[str, int]]:
    """Returns how often each bill was published."""
    told = [json.loads(message.body) for message in published(store, "billing")]
    return Counter((each["order"], each["cents"]) for each in told)


def caught_up(worker: str, events: int) -> bool:
    with blocking.connect(worker) as work:
        stats = work.stats()
    return (stats["published_sequence"], stats["publish_backlog"]) == (events, 0)


def test_each_topic_gets_its_messages_once_through_restarts_of_the_worker(tmp_path: Path) -> None:
    checkpoint = tmp_path / "reactions.json"
    with ServerThread(tmp_path / "data") as server, blocking.connect(server.address) as store:
        for life in range(1, 4):
            with WorkerThread(server.address, checkpoint, domain=SHOP) as worker:
                append(store, f"o-{life}", Placed("Ada", life), Sent("Rome"))
                store.append("other", [es.NewEvent("Unknown", {})], es.ANY)
                wait_until(lambda life=life: caught_up(worker.address, 3 * life), "all is published")
        assert bills(store) == Counter({(f"o-{life}", life): 1 for life in range(1, 4)})
        assert [message.body for message in published(store, "shipping")] == [b"Rome"] * 3
        with store.consumer("readers", "orders", from_end=False) as consumer:
            assert published_shop.app.decode_event(next(consumer).event()) in (Placed("Ada", 1), Sent("Rome"))
        assert len(published(store, "orders")) == 6
    assert (tmp_path / "reactions-published-billing.json").exists()


def test_what_cannot_be_published_is_parked_in_the_store_and_operators_ask_the_worker_for_it(tmp_path: Path) -> None:
    checkpoint = tmp_path / "reactions.json"
    with ServerThread(tmp_path / "data") as server, blocking.connect(server.address) as store:
        with WorkerThread(server.address, checkpoint, domain=PARKING) as worker, blocking.connect(worker.address) as operator:
            append(store, "o-1", Sent("Rome"), Sent("nowhere"), Sent("Oslo"))
            append(store, "o-2", Sent("Bonn"))
            wait_until(lambda: len(published(store, "parcels")) == 2, "the rest is published")
            wait_until(lambda: len(parked(operator)) == 2, "what follows it waits for it")
            assert NAME in str(operator.stats()["attention"])
        with WorkerThread(server.address, checkpoint, domain=MENDED) as worker, blocking.connect(worker.address) as operator:
            wait_until(lambda: [each.parked for each in operator.reactions.progress()] == [2], "they are still parked")
            assert operator.reactions.retry(NAME, who="ada", why="mended").done == 2
        assert bodies(store) == {"o-1": ["Rome", "nowhere", "Oslo"], "o-2": ["Bonn"]}


def test_a_second_worker_with_the_checkpoint_of_a_running_one_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "reactions.json"
    with (
        ServerThread(tmp_path / "data") as server,
        WorkerProcess(server.address, tmp_path, domain=SHOP, checkpoint=checkpoint) as first,
    ):
        arguments = ["--domain", SHOP, "--checkpoint", str(checkpoint), "--store", server.address, "--listen", "127.0.0.1:0"]
        refused = subprocess.run([*EVENTSTORE, "work", *arguments], capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert f"{checkpoint}: is the checkpoint of another worker, process {first.pid}; stop it, or" in refused.stderr
        with WorkerProcess(server.address, tmp_path, domain=SHOP):
            pass  # without it there may be any number


def test_a_worker_without_a_checkpoint_publishes_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServerThread(tmp_path / "data") as server, blocking.connect(server.address) as store:
        with WorkerThread(server.address, domain=SHOP):
            append(store, "o-1", Placed("Ada", 1))
        assert store.broker.topics() == []
    assert "start one worker with --checkpoint FILE to publish it" in capsys.readouterr().out


@pytest.mark.parametrize("stopped", [False, True])
def test_of_a_cluster_each_event_is_published_once_through_splits(tmp_path: Path, stopped: bool) -> None:
    checkpoint, orders = tmp_path / "reactions.json", [f"o-{number}" for number in range(12)]
    with LedShards(tmp_path, 1) as cluster, ExitStack() as stack:
        worker = stack.enter_context(WorkerThread(cluster.address, checkpoint, domain=SHOP))

        def billed() -> Counter[tuple[str, int]]:
            with blocking.connect(cluster.address) as store:
                return sum([bills(shard) for shard in store.shards.values() or (store,)], Counter())

        for round in range(1, 4):
            with blocking.connect(cluster.address) as store:
                for order in orders:
                    append(store, order, Placed("Ada", round))
            wait_until(lambda round=round: len(billed()) == round * len(orders), "all is published")
            if round < 3:
                if stopped:
                    worker.stop()
                cluster.split(0, restarts=True)
                if stopped:
                    worker = stack.enter_context(WorkerThread(cluster.address, checkpoint, domain=SHOP))
        assert set(billed().values()) == {1}
        with blocking.connect(worker.address) as operator:
            names = [each.name for each in operator.reactions.progress() if each.name.startswith("topic:billing")]
            assert names == [f"topic:billing@{number}" for number in range(3)]
