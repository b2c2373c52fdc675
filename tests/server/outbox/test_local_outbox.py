"""A server that publishes its events, as operators see it, and with a topic that is changed meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import eventstore as es
from eventstore import blocking
from eventstore.server.outbox.publishing import CHECKPOINT
from tests.cli.processes import output, refused
from tests.server.outbox.test_outbox_killed import TOPIC, caught_up, check, published
from tests.server_process import ServerProcess
from tests.waiting import wait_until


def append(store: blocking.BlockingStore, count: int, name: str) -> None:
    events = [es.NewEvent("Happened", {"by": name})]
    store.append_many([es.Commit(f"a-{number % 5}", events, es.ANY, f"{name}-{number}") for number in range(count)])


def test_every_event_is_published_to_a_topic_created_with_the_default_number_of_queues(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", publish=TOPIC, broker_default_queues=3) as server,
        blocking.connect(server.address) as store,
    ):
        append(store, 3_000, "first")
        wait_until(lambda: caught_up(store), "everything is published")
        assert len(store.broker.queues(TOPIC)) == 3
        assert check(store, published(store)) == 0
        stats = store.stats()
        assert (stats["events_published"], stats["publish_backlog"], stats["publish_failures"]) == (3_000, 0, 0)
        wait_until((tmp_path / "data" / CHECKPOINT).exists, "the checkpoint is written")
        assert server.terminate() == 0


def test_what_the_server_keeps_for_itself_is_not_published(tmp_path: Path) -> None:
    fields = {"reaction": "note", "version": 1, "sequence": 1, "type": "Happened", "why": "no", "attempts": 1}
    for life in range(2):
        with ServerProcess(tmp_path / "data", publish=TOPIC) as server, blocking.connect(server.address) as store:
            append(store, 10, f"life-{life}")
            store.append_reserved("$parked{a-1}", es.NewEvent("$Parked", fields))
            wait_until(lambda: caught_up(store), "everything is published")
            assert {message.key for message in published(store)} == {f"a-{number}" for number in range(5)}
            assert len(published(store)) == 10 * (life + 1)
            assert server.terminate() == 0


def test_a_deleted_topic_is_published_again_even_without_new_events(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", publish=TOPIC) as server, blocking.connect(server.address) as store:
        append(store, 500, "first")
        wait_until(lambda: caught_up(store), "everything is published")
        store.broker.delete_topic(TOPIC)
        wait_until(lambda: store.stats()["events_published"] == 1_000, "it is published again")
        assert check(store, published(store)) == 0
        append(store, 500, "second")
        wait_until(lambda: store.stats()["events_published"] == 1_500, "and later events")
        assert check(store, published(store)) == 0


def test_after_an_orderly_stop_nothing_is_published_twice(tmp_path: Path) -> None:
    for life in range(3):
        with ServerProcess(tmp_path / "data", publish=TOPIC) as server:
            with blocking.connect(server.address) as store:
                append(store, 700, f"life-{life}")
            assert server.terminate() == 0
    with ServerProcess(tmp_path / "data", publish=TOPIC) as server, blocking.connect(server.address) as store:
        wait_until(lambda: caught_up(store), "everything is published")
        assert check(store, published(store)) == 0


def test_an_existing_store_is_published_from_its_first_event(tmp_path: Path) -> None:
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
def test_an_invalid_topic_is_refused_before_the_folder_is_created(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    data = tmp_path / "data"
    assert told in refused("serve", "--data", data, "--listen", "127.0.0.1:0", *options, code=2)
    assert not data.exists()


@pytest.mark.long
@pytest.mark.parametrize("decision", ["anew", "past"])
def test_a_store_restored_from_an_older_copy_publishes_nothing_before_an_operator_has_decided(
    tmp_path: Path, decision: str
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with ServerProcess(data, publish=TOPIC) as server:
        with blocking.connect(server.address) as store:
            append(store, 100, "kept")
        assert server.terminate() == 0
    shutil.copytree(data, copy)
    with ServerProcess(data, publish=TOPIC) as server:
        with blocking.connect(server.address) as store:
            append(store, 50, "lost")
            wait_until(lambda: caught_up(store), "everything is published")
        assert server.terminate() == 0
    for name in ("broker", CHECKPOINT):
        shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink(missing_ok=True)
        shutil.move(data / name, copy / name)
    with ServerProcess(copy, publish=TOPIC, alarm_quiet_s=1) as server, blocking.connect(server.address) as store:
        append(store, 100, "others")
        wait_until(lambda: store.stats()["attention"], "it is refused")
        assert f"publishing is refused: the checkpoint of topic '{TOPIC}' stands at" in str(store.stats()["attention"])
        assert (store.stats()["events_published"], store.stats()["publish_backlog"]) == (0, 200)
        stats = store.stats()
        assert (stats["publish_refused"], stats["publish_error"]) == (True, str(stats["attention"]).split(": ", 1)[1])
        wait_until(lambda: store.stats()["publish_lag_microseconds"], "the age of the first event is known")
        assert "published up to sequence 0, 200 to go, the oldest for" in output("top", "--once", store=server.address)
        said = refused("publish", "--from", server.address, "--topic", TOPIC, "--until-caught-up", code=1)
        assert f"topic '{TOPIC}' ends with events that the store does not have, sequences 101 to 150" in said
        if decision == "anew":
            store.broker.delete_topic(TOPIC)
        else:
            output("publish", "--from", server.address, "--topic", TOPIC, "--until-caught-up", "--past-lost")
        wait_until(lambda: caught_up(store), "everything is published again")
        repeated = check(store, [message for message in published(store) if b"lost" not in message.body])
        assert (repeated > 0) == (decision == "past"), "the last event before the lost ones shows where publishing went on"
        wait_until(lambda: store.stats()["attention"] is None, "the alarm is over")
        stats = store.stats()
        assert (stats["publish_refused"], stats["publish_error"]) == (False, None)
        assert stats["publish_lag_microseconds"] == 0
