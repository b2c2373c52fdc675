"""Records of what is parked, on a real server: who may send them, what is taken, and what those do that were taken before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore.errors import InvalidArgument, PermissionDenied
from eventstore.protocol.answers import Failure
from eventstore.protocol.frames import encode_frame
from eventstore.protocol.reaction_requests import RecordParking
from eventstore.protocol.request_declaration import code_of
from eventstore.records.parking_record import reserved_id
from tests.cli.processes import output
from tests.records.parking_fields import PARKED, UNPARKED, parked, unparked
from tests.security.access_file import give
from tests.server.commands import echoes
from tests.server.outbox.published_shop import Sent
from tests.server.outbox.test_outbox_killed import published
from tests.server.outbox.test_publications import append
from tests.server.raw import RawClient
from tests.server.work.worker_thread import WorkerThread
from tests.server_thread import ServerThread
from tests.waiting import wait_until

LONG = "acc-" + "a" * 246


def record(aggregate_id: str) -> tuple[str, es.NewEvent]:
    return reserved_id(aggregate_id), es.NewEvent("$Parked", {**PARKED, "aggregate_id": aggregate_id})


def test_recording_needs_park_on_the_aggregate_and_append_and_a_role_of_writers_are_not_enough(tmp_path: Path) -> None:
    data = tmp_path / "data"
    writer = give(data, "shop", "writer", "reactions")
    worker = give(data, "worker", "park:acc-")
    with ServerThread(data) as server:
        with es.blocking.connect(server.address, token=writer) as store, pytest.raises(PermissionDenied, match="'park'"):
            store.append_reserved(*record("acc-1"))
        with es.blocking.connect(server.address, token=worker) as store:
            assert store.append_reserved(*record("acc-1")).version == 1
            assert store.append_reserved(*record(LONG)).version == 1
            for other in ("bill-1", "bill-" + "a" * 246):
                with pytest.raises(PermissionDenied, match="'park'"):
                    store.append_reserved(*record(other))


def test_recording_what_is_published_needs_send_on_its_topic_as_well(tmp_path: Path) -> None:
    data = tmp_path / "data"
    worker = give(data, "worker", "park", "send:bills")
    with ServerThread(data) as server, es.blocking.connect(server.address, token=worker) as store:

        def settle(topic: str) -> int:
            record = es.NewEvent("$Unparked", json.loads(unparked(reaction=f"topic:{topic}")))
            return store.append_reserved("$parked{acc-1}", record).version

        assert settle("bills") == 1
        with pytest.raises(PermissionDenied, match="'send'"):
            settle("orders")


@pytest.mark.parametrize(
    ("aggregate_id", "type_", "data"),
    [
        ("$parked{acc-1}", "Opened", parked()),
        ("$parked{acc-1}", "$Audited", parked()),
        ("$parked{acc-1}", "$Parked", b"no JSON"),
        ("$parked{acc-1}", "$Parked", b"{}"),
        ("$parked{acc-1}", "$Unparked", parked()),
        ("$parked{acc-1}", "$Parked", parked(aggregate_id="acc-2")),
        ("$parked{acc-1}", "$Unparked", unparked(aggregate_id=LONG)),
        ("$parked{acc-1}x", "$Parked", parked()),
        ("$audit", "$Audited", b"{}"),
        ("$split{7}", "$FileBegun", b"{}"),
        ("acc-1", "$Parked", parked()),
    ],
)
def test_what_is_no_record_or_names_another_aggregate_is_refused(
    tmp_path: Path, aggregate_id: str, type_: str, data: bytes
) -> None:
    token = give(tmp_path / "data", "worker", "admin")
    with ServerThread(tmp_path / "data") as server, es.blocking.connect(server.address, token=token) as store:
        with pytest.raises(InvalidArgument):
            store.append_reserved(aggregate_id, es.NewEvent(type_, data))
        assert store.version(aggregate_id) == 0
    with ServerThread(tmp_path / "open") as server, RawClient(server.port) as client:  # as one that does not check itself
        client.send(encode_frame(2, code_of(RecordParking), [aggregate_id, type_, data]))
        answer = client.answer()[1]
        assert isinstance(answer, Failure)
        assert isinstance(answer.error, InvalidArgument)


async def sent_nowhere(command: object, command_id: str, *, metadata: Mapping[str, object]) -> None:
    """Sends nothing."""


def test_reactions_of_a_worker_that_may_park_nothing_do_not_begin_say_so_at_once_and_run_once_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echoes.failing.clear()
    data, domain = tmp_path / "data", "tests.server.commands.echoes:app"
    monkeypatch.setenv("EVENTSTORE_TOKEN", give(data, "worker", "writer"))
    with (
        ServerThread(data) as server,
        WorkerThread(server.address, tmp_path / "reactions.json", domain=domain) as worker,
        es.blocking.connect(worker.address) as store,
    ):
        wait_until(lambda: "'park'" in str(store.stats()["attention"]), "it says what it lacks, before any event failed")
        assert "echo" in str(store.stats()["attention"])
        echoes.failing["a"] = "a bug in a reaction"
        assert store.send(echoes.Call("a", 1)).version == 1, "it handles commands"
        give(data, "worker", "park")
        wait_until(lambda: store.stats()["reactions_parked"] == 1, "it parks")


def test_a_command_whose_worker_may_not_append_is_refused_by_whose_permission_is_missing_and_its_log_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data, domain = tmp_path / "data", "tests.server.commands.echoes:app"
    monkeypatch.setenv("EVENTSTORE_TOKEN", give(data, "worker", "reader", "append:b", "park"))
    said = "the identity of this worker lacks the permission 'append' on aggregate 'a': add it where the store is, by "
    with (
        ServerThread(data) as server,
        WorkerThread(server.address, tmp_path / "reactions.json", domain=domain) as worker,
        es.blocking.connect(worker.address) as store,
    ):
        for number in range(2):
            with pytest.raises(PermissionDenied) as caught:
                store.send(echoes.Call("a", number))
            assert caught.value.message.startswith(said)
            assert caught.value.fields["permission"] == "append"
        assert store.send(echoes.Call("b", 1)).version == 1
    assert len([each for each in caplog.records if said in each.getMessage()]) == 1


def test_a_worker_that_may_park_of_other_aggregates_says_what_it_lacks_when_an_event_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echoes.failing.clear()
    data, domain = tmp_path / "data", "tests.server.commands.echoes:app"
    monkeypatch.setenv("EVENTSTORE_TOKEN", give(data, "worker", "writer", "park:b"))
    with (
        ServerThread(data) as server,
        WorkerThread(server.address, tmp_path / "reactions.json", domain=domain) as worker,
        es.blocking.connect(worker.address) as store,
    ):
        echoes.failing["a"] = "a bug in a reaction"
        store.send(echoes.Call("a", 1))
        wait_until(lambda: "stopped" in str(store.stats()["attention"]), "it waits")
        assert "'park'" in output("reactions", "list", store=worker.address)
        assert store.stats()["reactions_parked"] == 0


async def test_reactions_of_a_program_that_may_park_nothing_are_refused_unless_they_stop_instead(tmp_path: Path) -> None:
    stopping = d.Domain()
    stopping.reacts(echoes.Called, on_failure="stop")(echoes.echo)
    token = give(tmp_path / "data", "program", "writer")
    with ServerThread(tmp_path / "data") as server:
        async with es.connect(server.address, token=token) as store:
            checkpoint = d.FileCheckpoint(tmp_path / "reactions.json")
            with pytest.raises(PermissionDenied, match=r"echo.*'park'.*access add"):
                await d.react(store, echoes.app, sent_nowhere, checkpoint, until_caught_up=True)
            assert await d.react(store, stopping, sent_nowhere, checkpoint, until_caught_up=True) == 0


def plant(data: Path) -> None:
    """Appends records as servers before took them from anyone who might append: unread."""

    async def append_unread() -> None:
        async with es.open_store(data) as store:
            await store.append("o-2", [es.NewEvent("$Parked", {**PARKED, "reaction": "topic:parcels"})], es.ANY)
            for aggregate_id, type_, fields in (
                ("$parked{o-1}", "$Parked", {}),
                ("$parked{x}", "$Parked", {**PARKED, "reaction": "topic:parcels", "aggregate_id": "o-2"}),
                ("$parked{x}", "$Parked", {**PARKED, "reaction": "echo", "aggregate_id": "a"}),
                ("$parked{x}", "$Unparked", {**UNPARKED, "reaction": "echo", "aggregate_id": "a"}),
            ):
                await store.append_reserved(aggregate_id, es.NewEvent(type_, json.dumps(fields).encode()))

    trio.run(append_unread)


def test_a_store_with_records_that_were_taken_unread_reacts_again_and_shows_them(tmp_path: Path) -> None:
    echoes.failing.clear()
    plant(tmp_path / "data")
    with ServerThread(tmp_path / "data", domain="tests.server.commands.echoes:app") as server:
        with es.blocking.connect(server.address) as store:
            store.send(echoes.Call("a", 1))
            wait_until(lambda: store.version("echo-a") == 1, "it is echoed")
            stats = store.stats()
        assert (stats["attention"], stats["reactions_parked"], stats["reactions_records_passed_over"]) == (None, 0, 4)
        assert "reactions_records_passed_over" in output("stats", store=server.address)


def test_a_store_with_records_that_were_taken_unread_publishes_again_and_shows_them(tmp_path: Path) -> None:
    plant(tmp_path / "data")
    with ServerThread(tmp_path / "data", domain="tests.server.outbox.published_shop:parking") as server:
        with es.blocking.connect(server.address) as store:
            append(store, "o-1", Sent("Rome"))
            append(store, "o-2", Sent("Oslo"))
            wait_until(lambda: len(published(store, "parcels")) == 2, "both are published")
            stats = store.stats()
    assert (stats["publish_error"], stats["publish_parked"], stats["publish_records_passed_over"]) == (None, 0, 4)
