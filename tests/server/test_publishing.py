"""A server that publishes its events: what operators see, and what they can do to the topic meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

import eventstore as es
from eventstore import blocking
from eventstore.server.publishing import CHECKPOINT
from tests.cli.processes import refused
from tests.server.test_outbox_killed import TOPIC, caught_up, check, published
from tests.server_process import ServerProcess
from tests.waiting import wait_until


def append(store: blocking.BlockingStore, count: int, name: str) -> None:
    events = [es.NewEvent("Happened", {"by": name})]
    store.append_many([es.Commit(f"a-{number % 5}", events, es.ANY, f"{name}-{number}") for number in range(count)])


def test_every_event_comes_to_the_topic_which_is_made_with_as_many_queues_as_the_server_is_set_to(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", publish=TOPIC, broker_default_queues=3) as server,
        blocking.connect(server.address) as store,
    ):
        append(store, 3_000, "first")
        wait_until(lambda: caught_up(store), "everything is published")
        assert len(store.broker.queues(TOPIC)) == 3
        assert check(store, published(store)) == 0
        figures = store.stats()
        assert (figures["events_published"], figures["publish_backlog"], figures["publish_failures"]) == (3_000, 0, 0)
        wait_until((tmp_path / "data" / CHECKPOINT).exists, "the checkpoint is written")
        assert server.terminate() == 0


def test_a_topic_that_is_deleted_gets_everything_again_even_if_no_event_comes(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", publish=TOPIC) as server, blocking.connect(server.address) as store:
        append(store, 500, "first")
        wait_until(lambda: caught_up(store), "everything is published")
        store.broker.delete_topic(TOPIC)
        wait_until(lambda: store.stats()["events_published"] == 1_000, "it is published again")
        assert check(store, published(store)) == 0
        append(store, 500, "second")
        wait_until(lambda: store.stats()["events_published"] == 1_500, "and what comes behind it")
        assert check(store, published(store)) == 0


def test_a_stop_in_good_order_repeats_nothing(tmp_path: Path) -> None:
    for life in range(3):
        with ServerProcess(tmp_path / "data", publish=TOPIC) as server:
            with blocking.connect(server.address) as store:
                append(store, 700, f"life-{life}")
            assert server.terminate() == 0
    with ServerProcess(tmp_path / "data", publish=TOPIC) as server, blocking.connect(server.address) as store:
        wait_until(lambda: caught_up(store), "everything is published")
        assert check(store, published(store)) == 0


def test_a_store_that_was_there_before_is_published_from_its_first_event_on(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", sort=True, file_size_bytes=65_536, preallocate_bytes=4_096) as server:
        with blocking.connect(server.address) as store:
            append(store, 3_000, "before")
            wait_until(lambda: store.stats()["sorted_files"], "files are sorted")
        assert server.terminate() == 0
    with ServerProcess(tmp_path / "data", publish=TOPIC) as server, blocking.connect(server.address) as store:
        wait_until(lambda: store.stats()["published_sequence"] == 3_000, "everything is published")
        assert check(store, published(store)) == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--publish", "../x"), "publish is '../x'; allowed are"),
        (("--publish", "dead:x"), "publish is 'dead:x'; allowed are"),
        (("--publish", "events", "--set", "broker=false"), "but broker is false"),
    ],
)
def test_what_cannot_be_published_to_is_refused_before_a_folder_is_made(
    tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    data = tmp_path / "data"
    assert told in refused("serve", "--data", data, "--listen", "127.0.0.1:0", *options, code=2)
    assert not data.exists()
