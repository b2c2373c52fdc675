"""Consumer groups, dead letters and `top` on the command line, with a real server and real consumers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from eventstore import blocking
from eventstore.cli.commands.broker import group
from tests.cli.processes import Server, output, refused, run, wait_for

Serve = Callable[..., Server]
DELIVERIES = 4 + 2 * 2  # the bad ones are delivered once more
NO_RETRIES = ("--set", "broker_retry_delays_s=0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Starts a server whose consumers failed: topic `jobs` with 6 messages, of which group `workers` could not handle "bad"."""
    running = Server(tmp_path_factory.mktemp("groups") / "data", *NO_RETRIES)
    try:
        _let_consumers_fail(running)
        yield running
    finally:
        running.close()


def _let_consumers_fail(running: Server) -> None:
    output("topic", "create", "jobs", "--queues", 2, store=running.store)
    for number, body in enumerate(("good", "bad", "good", "good", "bad", "good")):
        output("message", "send", "jobs", body, "--key", f"k-{number}", store=running.store)
    with blocking.connect(running.store) as store, store.consumer("workers", ["jobs"], commit_interval=0.05) as consumer:
        for _, message in zip(range(DELIVERIES), consumer, strict=False):
            message.retry("it is bad") if message.body == b"bad" else message.done()
        wait_for(lambda: len(store.broker.dead_letters("workers")) == 2, "they are dead")


def parsed(server: Server, *arguments: object) -> Any:
    return json.loads(output(*arguments, "--json", store=server.store))


def test_groups_are_listed_and_shown(server: Server) -> None:
    wait_for(lambda: parsed(server, "group", "list")[0]["members"] == 0, "the consumer has left")
    (found,) = parsed(server, "group", "list")
    assert found["group"] == "workers"
    assert "workers" in output("group", "list", store=server.store)
    shown = parsed(server, "group", "show", "workers")
    assert {queue["topic"] for queue in shown["queues"]} == {"jobs", "retry:workers"}
    assert shown["backlog"] == sum(queue["backlog"] for queue in shown["queues"])
    (gone,) = shown["departures"]
    assert gone["how"] == "left"
    text = output("group", "show", "workers", store=server.store)
    assert "jobs" in text
    assert re.search(rf"{gone['name']} +left +20\d\d-", text)
    assert "`eventstore group list` shows all" in refused("group", "show", "x", store=server.store)
    near = refused("group", "show", "wokers", store=server.store)
    assert near == "there is no consumer group 'wokers'; did you mean 'workers'?"


def test_a_message_in_hand_is_shown_with_its_member(server: Server) -> None:
    output("topic", "create", "slow", "--queues", 1, store=server.store)
    output("message", "send", "slow", "x", store=server.store)
    with blocking.connect(server.store) as store, store.consumer("sleepy", "slow", member="m-1") as consumer:
        next(iter(consumer))
        wait_for(lambda: parsed(server, "group", "show", "sleepy")["oldest_in_hand"], "the server's next look")
        held = parsed(server, "group", "show", "sleepy")["oldest_in_hand"]
        assert (held["member"], held["topic"], held["queue"], held["offset"]) == ("m-1", "slow", 0, 0)
        assert " s" in output("group", "show", "sleepy", store=server.store).splitlines()[4]
        (listed,) = [each for each in parsed(server, "group", "list") if each["group"] == "sleepy"]
        assert listed["in_hand_ms"] >= held["held_ms"]
        assert "in hand" in output("group", "list", store=server.store)
    output("group", "delete", "sleepy", store=server.store)


def test_a_message_that_is_in_hand_for_long_is_named_with_the_next_step(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output("topic", "create", "stuck", "--queues", 1, store=server.store)
    output("message", "send", "stuck", "x", store=server.store)
    with blocking.connect(server.store) as store, store.consumer("hung", "stuck", member="m-1") as consumer:
        next(iter(consumer))
        wait_for(lambda: parsed(server, "group", "show", "hung")["oldest_in_hand"], "the server's next look")
        group.show("hung", store=server.store)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(group, "HELD_MS_MAX", 0)
        group.show("hung", store=server.store)
        said = capsys.readouterr().err
        assert said.startswith("message 0 of queue 0 of stuck is in hand at m-1 since 20")
        assert "Look at its handler's log, then restart that consumer" in said
        _, _, skip = said.partition("skip the message: eventstore ")
        assert output(*skip.split(), store=server.store) == "hung is at offset 1 of queue 0 of stuck\n"
    output("group", "delete", "hung", store=server.store)


def test_a_group_is_reset_to_the_start_the_end_an_offset_and_a_time(server: Server) -> None:
    def offsets(*to: object) -> list[int]:
        return [each["offset"] for each in parsed(server, "group", "reset", "workers", "jobs", *to)["queues"]]

    ends = [queue["end"] for queue in parsed(server, "topic", "show", "jobs")["queues"]]
    assert sum(ends) == 6
    assert offsets("--to-start") == [0, 0]
    assert offsets("--to-end") == ends
    assert offsets("--to-offset", 1, "--queue", 1) == [min(1, ends[1])]
    assert offsets("--to-time", datetime.now(UTC).isoformat()) == ends
    assert offsets("--to-time", "2000-01-01T00:00:00Z") == [0, 0]
    assert "is at offset 0 of queue 1 of jobs" in output("group", "reset", "workers", "jobs", "--to-start", store=server.store)
    clamped = output("group", "reset", "workers", "jobs", "--to-offset", 999, store=server.store)
    assert clamped.count("the queue does not hold the offset that was asked for") == 2
    output("group", "reset", "workers", "jobs", "--to-end", store=server.store)


def test_a_reset_says_that_the_group_never_read_the_topic(server: Server) -> None:
    output("topic", "create", "others", store=server.store)
    for _ in range(2):
        told = run("group", "reset", "workers", "others", "--to-end", store=server.store).stderr
        assert told.startswith("workers did not read others before: ")
        assert "`eventstore group delete workers --topic others`" in told
        output("group", "delete", "workers", "--topic", "others", store=server.store)
    told = refused("group", "delete", "workers", "--topic", "others", store=server.store, code=2)
    assert told == "group workers does not read others; it reads jobs, retry:workers"
    assert not run("group", "reset", "workers", "jobs", "--to-end", store=server.store).stderr


@pytest.mark.parametrize(
    ("to", "told"),
    [
        ((), "give one of --to-start"),
        (("--to-start", "--to-end"), "give one of --to-start"),
        (("--to-time", "yesterday"), "expected ISO 8601"),
        (("--to-time", "2026-01-31T12:00:00"), "has no time zone"),
    ],
)
def test_a_reset_without_a_target_is_refused_in_one_line(server: Server, to: tuple[str, ...], told: str) -> None:
    assert told in refused("group", "reset", "workers", "jobs", *to, store=server.store, code=2)


def test_dead_letters_are_listed_with_their_reason_and_replayed(server: Server) -> None:
    shown = output("deadletter", "list", "workers", store=server.store)
    assert shown.count("it is bad") == 2
    listed = [json.loads(line) for line in output("deadletter", "list", "workers", "--json", store=server.store).splitlines()]
    assert [(each["body"], each["properties"][":origin-topic"]) for each in listed] == [("bad", "jobs")] * 2
    one = output("deadletter", "list", "workers", "--limit", 1, "--from-offset", 1, store=server.store)
    assert one.count("it is bad") == 1
    assert parsed(server, "deadletter", "replay", "workers", 1) == {"group": "workers", "replayed": 1}
    replay = run("deadletter", "replay", "workers", "--all", store=server.store)
    assert replay.stdout.startswith("1 dead letter being delivered")
    assert replay.stderr.startswith("They stay in the list, marked as replayed; ")
    assert parsed(server, "deadletter", "replay", "workers", "--all") == {"group": "workers", "replayed": 0}
    listed = [json.loads(line) for line in output("deadletter", "list", "workers", "--json", store=server.store).splitlines()]
    assert [each["replayed"] for each in listed] == [True, True]
    assert parsed(server, "deadletter", "replay", "workers", 0) == {"group": "workers", "replayed": 1}
    with blocking.connect(server.store) as store, store.consumer("workers", ["jobs"], commit_interval=0.05) as consumer:
        replayed = []
        for message in consumer:
            replayed.append(message.body)
            message.done()
            if len(replayed) == 3:
                break
    assert replayed == [b"bad"] * 3
    assert "no dead letter 9" in refused("deadletter", "replay", "workers", 9, store=server.store, code=2)
    assert "give the offsets" in refused("deadletter", "replay", "workers", store=server.store, code=2)
    assert "there is no consumer group" in refused("deadletter", "list", "x", store=server.store)


def test_top_prints_one_snapshot(server: Server) -> None:
    shown = output("top", "--once", "--interval", 0.1, "--queues", store=server.store)
    for word in (
        "events/s",
        "connections",
        "Topics",
        "jobs",
        "dead:workers",
        "Queues",
        "Consumer groups",
        "workers",
        "ongoing",
    ):
        assert word in shown, word
    snapshot = parsed(server, "top", "--once", "--interval", 0.1)
    assert {row["topic"]: row["messages"] for row in snapshot["topics"]}["jobs"] == 6
    assert not [row for rows in ("queues", "chunks", "reactions") for row in snapshot[rows] if "shard" in row]
    (group,) = snapshot["groups"]
    assert (group["group"], group["dead"]) == ("workers", 2)
    assert snapshot["events_a_second"] == 0
    assert snapshot["chunks"][0]["state"] == "ongoing"
    assert snapshot["figures"]["connections"] >= 1


def test_unconsumed_messages_are_deleted_only_on_request(serve: Serve) -> None:
    server = serve()
    output("topic", "create", "jobs", "--queues", 2, store=server.store)
    with blocking.connect(server.store) as store, store.consumer("workers", ["jobs"]):
        told = refused("group", "delete", "workers", store=server.store, code=2)
        assert "stop them first (a killed member expires after 15 seconds)" in told
        assert "stop its readers first" in refused("group", "delete", "workers", "--topic", "jobs", store=server.store, code=2)
    output("message", "send", "jobs", "x", "--queue", 1, store=server.store)
    told = refused("topic", "delete", "jobs", store=server.store)
    assert "nothing was deleted" in told
    assert "--ignore-unconsumed" in told
    assert "Run this again when they are consumed" in refused("queue", "remove", "jobs", 1, store=server.store)
    states = [queue["state"] for queue in parsed(server, "topic", "show", "jobs")["queues"]]
    assert states == ["open", "draining"]
    assert output("topic", "delete", "jobs", "--ignore-unconsumed", store=server.store) == "topic jobs is deleted\n"
    assert output("group", "delete", "workers", store=server.store) == "group workers is deleted\n"
    assert parsed(server, "group", "list") == []


def test_a_server_without_a_broker_reports_it_in_one_line_and_can_be_watched(serve: Serve) -> None:
    server = serve("--set", "broker=false")
    refused("topic", "list", store=server.store)
    assert "events/s" in output("top", "--once", "--interval", 0.1, store=server.store)


def test_dead_letters_are_purged(server: Server) -> None:
    assert parsed(server, "deadletter", "purge", "workers") == {"group": "workers", "purged": 2}
    assert output("deadletter", "purge", "workers", store=server.store) == "deleted 0 dead letters of group workers\n"
    assert "has no dead letters" in output("deadletter", "list", "workers", store=server.store)
    assert "there is no consumer group" in refused("deadletter", "purge", "x", store=server.store)


def test_retries_are_shown_set_and_given_back_to_the_server(server: Server) -> None:
    told = output("group", "retries", "patient", "--delays", "0.5,30", "--attempts", 4, store=server.store)
    assert told.strip() == "patient: 4 attempts, delays 0.5 s, 30 s; dead letters go to dead:patient"
    assert parsed(server, "group", "retries", "patient")["delays"] == [0.5, 30.0]
    output("group", "retries", "patient", "--default", store=server.store)
    assert parsed(server, "group", "retries", "patient")["delays"] != [0.5, 30.0]
    assert "--delays" in run("group", "retries", "patient", "--attempts", 4, store=server.store).stderr
    output("group", "delete", "patient", store=server.store)


@pytest.mark.parametrize("delays", ["-1", "1,x", "nan", "1e9"])
def test_delays_that_are_no_seconds_are_refused_in_seconds(server: Server, delays: str) -> None:
    told = refused("group", "retries", "patient", "--delays", delays, store=server.store, code=2)
    assert told == f"--delays is '{delays}'; it takes seconds, 0 to 86,400 each, as 1,30,600"
