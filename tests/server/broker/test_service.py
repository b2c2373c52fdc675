"""The broker next to the event store: flow control, failure, stopping, stats. Neither is affected by the other."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.request
from pathlib import Path
from typing import cast

import pytest

import eventstore as es
from eventstore.broker.statistics import QueueStats, Rates, Totals
from eventstore.chunks.documents import read_tree, write_document
from eventstore.chunks.files import OsFiles
from eventstore.errors import InvalidArgument, Poisoned, ShuttingDown
from eventstore.protocol.answers import Failure, Goodbye
from eventstore.protocol.broker_requests import CreateTopic, Pull, SendMessages
from eventstore.protocol.group_requests import (
    CommitOffsets,
    FailMessages,
    Heartbeat,
    Join,
    Leave,
    ListInHand,
    ListMembers,
    SetRetries,
    ShowGroup,
)
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import Ping, Stats
from eventstore.server.broker import service
from eventstore.server.broker.broker_metrics import SERIES_MAX, queue_rows
from eventstore.server.serve import Server
from eventstore.settings.sources import load_settings
from tests.cli.processes import output
from tests.server.broker.broker_raw import bodies, create, join, message, pull, pulled_of, refusal, send, sent_of, values_of
from tests.server.conftest import Launch, Serve
from tests.server.raw import Gone, Ok, RawClient, append_frame, commit, outcomes_of
from tests.server.tracing import injecting, needs_strace
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import wait_until

KIB = 1024
MESSAGES = "broker/messages/0000000001.messages"
SMALL = {"broker_preallocate_bytes": 64 * KIB, "broker_chunk_size_bytes": 64 * 1024 * KIB}


def health_of(server: ServerProcess | ServerThread) -> dict[str, object]:
    with urllib.request.urlopen(f"{server.http}/health", timeout=60) as answer:
        found = json.loads(answer.read())
    assert isinstance(found, dict)
    return found


# -- flow control -----------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@needs_strace
def test_senders_wait_for_a_slow_disk_and_events_and_consumers_do_not(launch: Launch, tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = injecting("fdatasync:delay_exit=300000", path=str(data / MESSAGES))
    server = launch(data=data, before=before, broker_waiting_bytes_max=64 * KIB, **SMALL)
    count = 300
    frames = b"".join(message_frame(number, bytes(50_000)) for number in range(1, count + 1))
    with RawClient(server.port) as sender, RawClient(server.port) as other:
        create(other, "slow")
        sender.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
        thread = threading.Thread(target=sender.send, args=(frames,))
        thread.start()
        wait_until(lambda: figures(other)["broker_senders_held"], "the sender is held back")
        waiting = figures(other)["broker_waiting_bytes"]
        assert isinstance(waiting, int)
        assert waiting < 1024 * KIB
        for number in range(1, 30):
            other.send(append_frame(1_000 + number, commit("a", f"c-{number}")))
            assert outcomes_of(other.answer()[1])[0][0] == 0
            assert isinstance(other.ask(Ping()), Ok)
        assert figures(other)["broker_waiting_bytes"], "events were to be appended while messages waited for the disk"
        server.let_go_of_tracer()
        answers = [sender.answer() for _ in range(count)]
        assert [request_id for request_id, _ in answers] == list(range(1, count + 1))
        assert [sent_of(answer)[0][1] for _, answer in answers] == list(range(count))  # type: ignore[index] # places, not errors
        thread.join()
        wait_until(lambda: not figures(other)["broker_senders_held"], "the sender is released")


def message_frame(request_id: int, body: bytes) -> bytes:
    return encode_request(request_id, SendMessages("slow", [message(body)]))


def figures(client: RawClient) -> dict[object, object]:
    values = values_of(client, Stats())
    return dict(zip(values[0::2], values[1::2], strict=True))


def test_messages_that_wait_for_their_topic_count_against_the_limit(serve: Serve) -> None:
    server = serve(broker_create_topics=True, broker_waiting_bytes_max=64 * KIB)
    may_be_shown = threading.Event()

    def hold_back(running: Server) -> None:
        assert running.broker is not None
        topics = running.broker.broker.topics
        show = topics.before_visible
        topics.before_visible = lambda topic: (may_be_shown.wait(60), show(topic))[1]

    server.ask(hold_back)
    count = 12
    with RawClient(server.port) as sender, RawClient(server.port) as other:
        sender.send(b"".join(message_frame(number, bytes(10_000)) for number in range(1, count + 1)))
        wait_until(lambda: figures(other)["broker_senders_held"], "the sender is held back")
        assert figures(other)["broker_waiting_bytes"] == 60_000, "the first message beyond 80 % is the last one accepted"
        may_be_shown.set()
        answers = [sender.answer() for _ in range(count)]
        assert [sent_of(answer)[0][0] is not None for _, answer in answers] == [True] * count  # type: ignore[index] # places
        wait_until(lambda: not figures(other)["broker_senders_held"], "the sender is released")
        assert figures(other)["broker_waiting_bytes"] == 0


# -- failure ----------------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@needs_strace
def test_a_poisoned_broker_reports_it_and_does_not_affect_events(launch: Launch, tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = injecting("fdatasync:error=EIO:when=3+", path=str(data / MESSAGES))
    server = launch(data=data, before=before, http="127.0.0.1:0", **SMALL)
    acknowledged = []
    with RawClient(server.port) as client:
        create(client, "t")
        generation, _ = join(client, "g", "m", "t")
        while True:
            answer = client.ask(SendMessages("t", [message(b"%d" % len(acknowledged))]))
            if isinstance(answer, Failure):
                assert isinstance(answer.error, Poisoned)
                break
            (outcome,) = sent_of(answer)
            if isinstance(outcome, Poisoned):
                break
            acknowledged.append(outcome)
        assert isinstance(refusal(client, SendMessages("t", [message(b"more")])), Poisoned)
        assert isinstance(refusal(client, FailMessages("g", "m", generation, "", (("t", 0, 0),))), Poisoned)
        assert bodies(pull(client, ("t", 0, 0, None))[0]) == [b"%d" % number for number in range(len(acknowledged))]
        news = values_of(client, Heartbeat("g", "m", generation))  # the retry topic exists, but is empty
        assert values_of(client, CommitOffsets("g", "m", cast(int, news[0]), (("t", 0, 1),))) == (1, False)
        client.send(append_frame(1_000, commit("a", "c")))
        assert outcomes_of(client.answer()[1])[0] == (0, 1, 1)
    health = health_of(server)
    assert (health["healthy"], health["poisoned"], health["broker_poisoned"]) == (True, False, True)
    assert "the broker takes no more messages" in str(health["attention"])
    assert server.terminate() == 0
    with ServerProcess(data, **SMALL) as again, RawClient(again.port) as client:
        assert bodies(pull(client, ("t", 0, 0, None))[0])[: len(acknowledged)] == [b"%d" % n for n in range(len(acknowledged))]
        rows = values_of(client, ShowGroup("g"))[2:]
        assert ("t", 0, 1) in {rows[at : at + 3] for at in range(0, len(rows), 6)}
        assert isinstance(send(client, "t", [message(b"goes on")])[0], tuple)


def test_a_broker_that_cannot_be_opened_keeps_the_server_from_starting_and_names_the_file(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    server.stop()
    (server.data / "broker/topics.json").write_text("{")
    (server.data / "broker/topics.json.previous").unlink(missing_ok=True)
    with pytest.raises(ExceptionGroup) as caught:
        server.start()
    assert caught.group_contains(es.Corrupt, match=r"topics\.json")
    with ServerThread(server.data, broker=False) as without, RawClient(without.port) as client:
        assert isinstance(client.ask(Ping()), Ok)


# -- stopping ---------------------------------------------------------------------------------------------------------------


def test_a_stop_ends_waiting_pulls_and_keeps_topics_messages_and_offsets(serve: Serve) -> None:
    server = serve()
    with RawClient(server.port) as client:
        create(client, "t", 2)
        send(client, "t", [message(b"%d" % number, queue=0) for number in range(3)])
        generation, _ = join(client, "g", "m", "t")
        values_of(client, CommitOffsets("g", "m", generation, (("t", 0, 2),)))
        waiting = client.send_request(Pull(64, 1 << 19, 60_000, wants=(("t", 1, 0, None),)))
        assert isinstance(client.ask(Ping()), Ok)
        server.stop()
        answers = dict(client.answer() for _ in range(2))
        assert isinstance(answers[0], Goodbye)
        answer = answers[waiting]
        assert isinstance(answer, Failure)
        assert isinstance(answer.error, ShuttingDown)
        with pytest.raises(Gone):
            client.answer()
    server.start()
    with RawClient(server.port) as client:
        assert bodies(pull(client, ("t", 0, 0, None))[0]) == [b"0", b"1", b"2"]
        again, assigned = join(client, "g", "m", "t")
        assert again > generation
        assert assigned == [("t", 0, 2, None), ("t", 1, 0, None)]


# -- stats ------------------------------------------------------------------------------------------------------------------


def test_queues_and_groups_are_among_the_metrics(serve: Serve) -> None:
    server = serve(http="127.0.0.1:0")
    with RawClient(server.port) as client:
        create(client, "t", 2)
        join(client, "g", "m", "t")
        send(client, "t", [message(b"x", queue=1)] * 3)
        pull(client, ("t", 1, 0, None))

        def metrics() -> set[str]:
            with urllib.request.urlopen(f"{server.http}/metrics", timeout=60) as answer:
                return set(answer.read().decode().splitlines())

        wanted = {
            'eventstore_queue_messages_written_total{queue="1",topic="t"} 3.0',
            'eventstore_queue_messages_read_total{queue="1",topic="t"} 3.0',
            'eventstore_queue_messages_kept{queue="1",topic="t"} 3.0',
            'eventstore_queue_messages_kept{queue="0",topic="t"} 0.0',
            'eventstore_group_backlog{group="g",topic="t"} 3.0',
            "eventstore_broker_messages_total 3.0",
            "eventstore_broker_members 1.0",
        }
        wait_until(lambda: wanted <= metrics(), "the next tick of the statistics")
    health = health_of(server)
    assert (health["healthy"], health["attention"], health["broker_poisoned"]) == (True, None, False)


def test_a_member_that_leaves_before_its_join_is_answered_is_gone(serve: Serve) -> None:
    server = serve()
    with RawClient(server.port) as client:
        create(client, "t", 1)
        for number in range(10):
            group = f"g{number}"
            client.send(encode_request(101, Join(group, "m", False, (("t", None),))) + encode_request(102, Leave(group, "m")))
            assert [client.answer()[0] for _ in range(2)] == [101, 102]
            assert values_of(client, ListMembers(group)) == ()


def test_a_message_that_a_member_has_in_hand_for_too_long_degrades_the_server(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "IN_HAND_S_MAX", 0.0)
    server = serve(http="127.0.0.1:0")
    with RawClient(server.port) as client:
        create(client, "t", 2)
        generation, _ = join(client, "g", "m", "t")
        send(client, "t", [message(b"x", queue=1)] * 3)
        assert health_of(server)["degraded"] is False
        assert len(pulled_of(client.ask(Pull(group="g", member="m", wants=(("t", 1, 0, None),))))[0]) == 3
        held = "member m of group g has message 0 of queue 1 of t in hand"
        wait_until(lambda: health_of(server)["broker_oldest_in_hand"] == held, "the next look")
        for asked in ListInHand(), ListInHand("g"):
            *of, milliseconds = values_of(client, asked)
            assert of == ["g", "m", "t", 1, 0]
            assert isinstance(milliseconds, int)
        health = health_of(server)
        assert (health["healthy"], health["degraded"]) == (True, True)
        assert str(health["attention"]).startswith(f"{held} for ")
        with urllib.request.urlopen(f"{server.http}/metrics", timeout=60) as answer:
            assert 'eventstore_group_oldest_in_hand_seconds{group="g"}' in answer.read().decode()
        values_of(client, CommitOffsets("g", "m", generation, (("t", 1, 3),)))
        wait_until(lambda: health_of(server)["degraded"] is False, "the next look")
    assert health_of(server)["broker_oldest_in_hand_seconds"] == 0


@pytest.mark.parametrize("died", [False, True], ids=["", "after a death"])
def test_what_a_hung_handler_holds_up_is_said_with_the_next_step_and_that_helps(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, died: bool
) -> None:
    monkeypatch.setattr(service, "IN_HAND_S_MAX", 0.0)
    server = serve(http="127.0.0.1:0")
    with RawClient(server.port) as client:
        create(client, "t", 2)
        values_of(client, SetRetries("g", 2, None, (1_000,)))
        send(client, "t", [message(b"x", queue=queue) for queue in (0, 1)])
        for _ in range(1 + died):  # it joins again under its name: the one before has died
            join(client, "g", "m", "t")
            pulled_of(client.ask(Pull(1, group="g", member="m", wants=(("t", 0, 0, None),))))
        waits = (
            "all queues of this consumer wait for it, on all shards, since consumers have died" if died else "its queue waits"
        )
        wait_until(lambda: waits in str(health_of(server)["attention"]), "the next look")
        said = str(health_of(server)["attention"])
        assert said.startswith("member m of group g has message 0 of queue 0 of t in hand for ")
        assert re.search(r" s, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, and ", said)
        assert "then restart that consumer" in said
        _, _, skip = said.partition("skip the message: eventstore ")
    assert output(*skip.split(), store=f"tcp://127.0.0.1:{server.port}") == "g is at offset 1 of queue 0 of t\n"
    wait_until(lambda: health_of(server)["degraded"] is False, "the next look")


def test_bytes_cut_off_at_the_start_are_among_the_stats(serve: Serve) -> None:
    server = serve()
    with RawClient(server.port) as client:
        create(client, "t")
        send(client, "t", [message(b"whole")])
        assert figures(client)["broker_torn_bytes_at_start"] == 0
    server.stop()
    with (server.data / MESSAGES).open("r+b") as file:
        content = file.read()
        file.seek(content.rindex(b"whole") + len(b"whole") + 6)  # no properties, and the length again
        file.write(b"\xc4" * 40)
    server.start()
    with RawClient(server.port) as client:
        assert figures(client)["broker_torn_bytes_at_start"] == 40
        assert bodies(pull(client, ("t", 0, 0, None))[0]) == [b"whole"]


@pytest.mark.parametrize(("topics", "queues"), [(SERIES_MAX, 1), (SERIES_MAX // 2, 3), (SERIES_MAX * 2, 2)])
def test_the_number_of_series_is_bounded_and_their_sum_is_complete(topics: int, queues: int) -> None:
    every = [
        QueueStats(f"t{topic:05}", queue, "open", 1, 3, 4, 2, Rates(), Totals(3, 30, 300, 3_000))
        for topic in range(topics)
        for queue in range(queues)
    ]
    rows = queue_rows(every)
    assert len(rows) <= SERIES_MAX + 1
    count = topics * queues
    assert [sum(column) for column in zip(*rows.values(), strict=True)] == [
        3 * count,
        30 * count,
        300 * count,
        3_000 * count,
        2 * count,
        4 * count,
        2 * count,
    ]


# -- settings ---------------------------------------------------------------------------------------------------------------


def test_settings_that_the_broker_refuses_are_named_as_the_operator_wrote_them() -> None:
    for name, value in {"broker_chunk_size_bytes": 1, "broker_default_queues": 257, "broker_retry_delays_s": "1,x"}.items():
        with pytest.raises(InvalidArgument) as caught:
            load_settings(None, **{name: value}).broker_settings()
        assert caught.value.fields["field"] == name
        assert caught.value.message.startswith(name)


def test_retention_rules_set_to_zero_are_off() -> None:
    settings = load_settings(
        None, broker_retained_chunks_max=0, broker_retained_age_s=0, broker_retained_bytes_max=4096
    ).broker_settings
    assert (settings.retained_chunks_max, settings.retained_age_s, settings.retained_bytes_max) == (None, None, 4096)


def test_a_topic_that_is_created_repeatedly_is_created_once(serve: Serve) -> None:
    server = serve()
    clients = [RawClient(server.port) for _ in range(8)]
    asked = [client.send_request(CreateTopic("once", 1, if_missing=True)) for client in clients]
    created = []
    for client, request_id in zip(clients, asked, strict=True):
        answered, answer = client.answer()
        assert answered == request_id
        assert isinstance(answer, Ok)
        created += answer.values
        client.close()
    assert sorted(created) == [False] * 7 + [True]


def test_an_offset_beyond_the_log_is_moved_back_at_the_start_and_logged(launch: Launch) -> None:
    server = launch(**SMALL)
    with RawClient(server.port) as client:
        create(client, "t")
        send(client, "t", [message(b"x")])
        generation, _ = join(client, "g", "m", "t")
        values_of(client, CommitOffsets("g", "m", generation, (("t", 0, 1),)))
    assert server.terminate() == 0
    path = server.data / "broker/offsets.json"
    files, tree = OsFiles(), read_tree(OsFiles(), path)
    groups = cast("dict[str, dict[str, dict[str, int]]]", tree["groups"])
    assert groups["g"]["t"]["0"] == 1
    groups["g"]["t"]["0"] = 99
    write_document(files, path, tree)
    server = launch(data=server.data, **SMALL)
    (line,) = server.said("an offset outside its queue was clamped")
    assert (line["group"], line["topic"], line["queue"], line["before"], line["now"]) == ("g", "t", 0, 99, 1)
    with RawClient(server.port) as client:
        assert values_of(client, ShowGroup("g"))[2:5] == ("t", 0, 1)
