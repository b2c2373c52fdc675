"""The commands of the broker, and what they ask of a client, at the address of a node of three shards."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

import eventstore as es
from eventstore import NewMessage, blocking
from eventstore.server.broker import service
from tests.cli.processes import output, refused, run, start
from tests.cluster.led_shards import LedShards
from tests.cluster.node_process import NodeProcess
from tests.console.http import Visitor
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.heavy
SHARDS = 3
KEYS = [f"key-{number}" for number in range(12)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("broker") / "data", SHARDS, broker_retry_delays_s="0") as running:
        yield running
        assert running.terminate() == 0


@pytest.fixture
def store(node: NodeProcess) -> Iterator[blocking.BlockingStore]:
    with blocking.connect(node.address) as connected:
        yield connected


def parsed(node: NodeProcess, *arguments: object) -> Any:
    return json.loads(output(*arguments, "--json", store=node.address))


def of_topic(store: blocking.BlockingStore, topic: str) -> dict[int, list[int]]:
    """Returns the numbers of the topic's queues, by shard."""
    return {number: [each.queue for each in shard.broker.queues(topic)] for number, shard in store.shards.items()}


def test_a_topic_is_created_shown_and_gets_queues_and_loses_them_on_all_shards(
    node: NodeProcess, store: blocking.BlockingStore
) -> None:
    assert output("topic", "create", "a", "--queues", 2, store=node.address) == "topic a has 2 queues on each of 3 shards\n"
    assert parsed(node, "topic", "create", "a", "--queues", 2, "--if-missing") == {
        "topic": "a", "queues": 2, "created": False, "shards": 3,
    }  # fmt: skip
    other = run("topic", "create", "a", "--queues", 3, "--if-missing", store=node.address)
    assert other.stdout == "topic a already exists; it has 2 queues on each of 3 shards\n"
    assert other.stderr.startswith("not 3: ")
    assert {"topic": "a", "queues": 6, "open_queues": 6, "shards": 3} in parsed(node, "topic", "list")
    assert "queues of 3 shards" in output("topic", "list", store=node.address)
    shown = parsed(node, "topic", "show", "a")["queues"]
    assert [(each["shard"], each["queue"]) for each in shown] == [(shard, queue) for shard in range(3) for queue in range(2)]
    assert output("topic", "show", "a", store=node.address).split()[:2] == ["shard", "queue"]

    added = output("queue", "add", "a", "--count", 2, store=node.address)
    assert added == "2 queues added to topic a on each of 3 shards: 2, 3\n"
    assert output("queue", "remove", "a", 0, store=node.address) == "queue 0 of topic a is removed\n"
    assert of_topic(store, "a") == {shard: [1, 2, 3] for shard in range(SHARDS)}
    assert "has no queue 0" in refused("queue", "remove", "a", 0, store=node.address)


def test_what_an_earlier_call_did_on_some_shards_alone_is_completed_by_the_next(store: blocking.BlockingStore) -> None:
    store.broker.create_topic("parts", 2)
    store.shards[0].broker.add_queues("parts", 2)  # as a call that failed after the first shard
    assert store.broker.add_queues("parts", 2) == [2, 3]
    assert of_topic(store, "parts") == {shard: [0, 1, 2, 3] for shard in range(SHARDS)}
    store.shards[0].broker.close_queue("parts", 1)
    store.shards[0].broker.remove_queue("parts", 1)
    store.broker.close_queue("parts", 1)
    store.broker.remove_queue("parts", 1)
    assert of_topic(store, "parts") == {shard: [0, 2, 3] for shard in range(SHARDS)}
    with pytest.raises(es.UnknownQueue):
        store.broker.close_queue("parts", 1)
    with pytest.raises(es.UnknownTopic):
        store.broker.queues("nothing")


def test_a_queue_is_removed_from_no_shard_while_a_group_has_messages_in_it_on_one(store: blocking.BlockingStore) -> None:
    store.broker.create_topic("kept", 2)
    with store.consumer("keepers", "kept"):
        pass
    store.shards[2].topic("kept").send(b"m", queue=1)
    store.broker.close_queue("kept", 1)
    with pytest.raises(es.Unconsumed, match="group 'keepers' has messages to consume in queue 1 of 'kept' on shard 2"):
        store.broker.remove_queue("kept", 1)
    assert of_topic(store, "kept") == {shard: [0, 1] for shard in range(SHARDS)}


def test_a_message_is_found_by_its_id_and_by_its_key_wherever_it_is(node: NodeProcess, store: blocking.BlockingStore) -> None:
    store.broker.create_topic("found", 1)
    sent = store.topic("found").send_many([NewMessage(key.encode(), key) for key in KEYS])
    assert len({each.message_id[:4] for each in sent if isinstance(each, es.SendResult)}) == SHARDS
    for key, each in zip(KEYS, sent, strict=True):
        assert isinstance(each, es.SendResult)
        message = store.broker.message(each.message_id)
        assert message is not None
        assert message.body == key.encode()
        assert store.broker.messages_of_key("found", key) == [message]
    for shard in store.shards.values():  # as shards that owned the slot of the key, one after the other
        shard.topic("found").send(b"moved", key="moved")
    times = [each.timestamp for each in store.broker.messages_of_key("found", "moved")]
    assert len(times) == SHARDS
    assert times == sorted(times, reverse=True)
    assert len(store.broker.messages_of_key("found", "moved", 2)) == 2
    (last,) = [each for each in sent[-1:] if isinstance(each, es.SendResult)]
    assert output("message", "get", last.message_id, store=node.address) == f"{KEYS[-1]}\n"
    assert "there is no message" in refused("message", "get", "0" * 20, store=node.address)


def test_a_sent_message_names_the_shard_of_its_queue(node: NodeProcess, store: blocking.BlockingStore) -> None:
    store.broker.create_topic("sent", 1)
    shards = {key: parsed(node, "message", "send", "sent", "m", "--key", key)["shard"] for key in KEYS}
    for number, shard in store.shards.items():
        found = {key for key in KEYS if shard.broker.messages_of_key("sent", key)}
        assert found == {key for key, named in shards.items() if named == number}
    printed = output("message", "send", "sent", "m", "--key", KEYS[0], store=node.address)
    assert printed.endswith(f" of queue 0 of sent on shard {shards[KEYS[0]]}\n")


def test_tail_prints_the_messages_of_all_shards_each_with_its_shard_and_follows(
    node: NodeProcess, store: blocking.BlockingStore, tmp_path: Path
) -> None:
    store.broker.create_topic("tailed", 2)
    store.topic("tailed").send_many([NewMessage(b"%d" % number, KEYS[number % 12], "even" if number % 2 else "odd")
                                     for number in range(100)])  # fmt: skip
    lines = output("message", "tail", "tailed", "--no-follow", "--from-start", "--json", store=node.address).splitlines()
    by_queue: dict[tuple[int, int], list[int]] = {}
    for each in map(json.loads, lines):
        by_queue.setdefault((each["shard"], each["queue"]), []).append(each["queue_offset"])
    assert len(lines) == 100
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())
    assert {shard for shard, _ in by_queue} == {0, 1, 2}
    last = output("message", "tail", "tailed", "--no-follow", store=node.address).splitlines()
    assert len(last) == sum(min(10, len(offsets)) for offsets in by_queue.values())
    assert all(each.startswith("tailed@") for each in last)
    tagged = output("message", "tail", "tailed", "--no-follow", "--from-start", "--tags", "odd", store=node.address)
    assert len(tagged.splitlines()) == 50
    assert "did you mean 'tailed'?" in refused("message", "tail", "taild", store=node.address)

    log = tmp_path / "tail.log"
    with log.open("wb") as printed:
        process = start("message", "tail", "tailed", "--store", node.address, stdout=printed, stderr=PIPE)
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.readline() == b"caught up; waiting for more (Ctrl-C ends)\n"
        for number, shard in store.shards.items():
            shard.topic("tailed").send(b"new-%d" % number)
        wait_until(lambda: log.read_text().count("new-") == SHARDS, "the new messages are printed")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == 130


def test_a_group_is_shown_and_reset_on_all_shards_or_on_one(node: NodeProcess, store: blocking.BlockingStore) -> None:
    store.broker.create_topic("orders", 1)
    store.topic("orders").send_many([NewMessage(b"m", key) for key in KEYS])
    with store.consumer("billing", "orders", member="m-1") as consumer:
        for _, message in zip(KEYS, consumer, strict=False):
            message.done()
        assert [(each.name, each.queues) for each in store.broker.members("billing")] == [("m-1", 3)]
    ends = {each.shard: each.end for each in store.broker.queues("orders")}
    assert sum(ends.values()) == len(KEYS)
    assert store.broker.group("billing").backlog == 0

    printed = output("group", "reset", "billing", "orders", "--to-start", store=node.address)
    assert printed.splitlines() == [f"billing is at offset 0 of queue 0 of orders on shard {shard}" for shard in range(3)]
    assert store.broker.group("billing").backlog == len(KEYS)
    (listed,) = [each for each in parsed(node, "group", "list") if each["group"] == "billing"]
    assert listed["backlog"] == len(KEYS)
    shown = parsed(node, "group", "show", "billing")
    assert [(each["shard"], each["backlog"]) for each in shown["queues"] if each["topic"] == "orders"] == [*ends.items()]
    assert output("group", "show", "billing", store=node.address).splitlines()[2].split()[:2] == ["shard", "topic"]

    told = refused("group", "reset", "billing", "orders", "--to-offset", 1, store=node.address, code=2)
    assert told == "each of the 3 shards has its own queues and offsets: give --shard N, too"
    output("group", "reset", "billing", "orders", "--to-offset", 1, "--shard", 1, store=node.address)
    assert {each.shard: each.offset for each in store.broker.group("billing").queues if each.topic == "orders"} == {
        0: 0, 1: 1, 2: 0,
    }  # fmt: skip
    reset = parsed(node, "group", "reset", "billing", "orders", "--to-end")["queues"]
    assert {each["shard"]: each["offset"] for each in reset} == ends
    assert refused("group", "reset", "billing", "orders", "--to-end", "--shard", 3, store=node.address, code=2) == (
        "there is no shard 3; there are 0 to 2"
    )


def test_the_message_that_any_member_has_had_in_hand_for_the_longest_is_shown(
    node: NodeProcess, store: blocking.BlockingStore
) -> None:
    store.broker.create_topic("slow", 1)
    store.shards[2].topic("slow").send(b"m")
    with store.consumer("sleepy", "slow", member="m-1") as consumer:
        next(consumer)
        wait_until(lambda: store.broker.in_hand("sleepy"), "the server's next look")
        (held,) = store.broker.in_hand("sleepy")
        assert (held.member, held.shard, held.topic, held.offset) == ("m-1", 2, "slow", 0)
        assert "sleepy" in [each.group for each in store.broker.in_hand()]
        assert parsed(node, "group", "show", "sleepy")["oldest_in_hand"]["shard"] == 2


@pytest.mark.parametrize("shards", [1, 2])
def test_the_command_that_health_gives_for_a_hung_handler_skips_its_message_on_its_shard(
    shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "IN_HAND_S_MAX", 0.0)
    shard = shards - 1
    with LedShards(tmp_path, shards) as cluster, blocking.connect(cluster.address) as store:
        store.broker.create_topic("slow", 1)
        of_shard = store.shards.get(shard, store)
        of_shard.topic("slow").send(b"m")

        def attention() -> str:
            return cluster.ask(shard, lambda server: str(server.reports.stats()["attention"]))

        with store.consumer("sleepy", "slow", member="m-1") as consumer:
            next(consumer)
            wait_until(lambda: attention().startswith("member m-1 of group sleepy"), "the server's next look")
            skip = attention().partition("skip the message: eventstore ")[2]
            printed = output(*skip.split(), store=cluster.address)
        assert printed.startswith("sleepy is at offset 1 of queue 0 of slow")
        assert store.broker.group("sleepy").backlog == 0


def test_dead_letters_of_all_shards_are_listed_replayed_and_purged(node: NodeProcess, store: blocking.BlockingStore) -> None:
    store.broker.create_topic("jobs", 1)
    for number in (0, 2):  # the topic of dead letters is on these alone
        store.shards[number].topic("jobs").send(b"bad-%d" % number, key="k")
    with store.consumer("workers", "jobs", retries=es.Retries(delays=(0.01,), attempts=2)) as consumer:
        for _ in range(4):
            next(consumer).retry("it is bad")
        wait_until(lambda: parsed_lines(node) == ["bad-0", "bad-2"], "they are dead")
    listed = output("deadletter", "list", "workers", store=node.address)
    assert listed.split()[:3] == ["shard", "dead", "letter"]
    assert listed.count("it is bad") == 2
    assert parsed_lines(node, "--shard", 2) == ["bad-2"]
    tailed = output("message", "tail", "dead:workers", "--no-follow", store=node.address)
    assert [line.split("/")[0] for line in sorted(tailed.splitlines())] == ["dead:workers@0", "dead:workers@2"]
    told = refused("deadletter", "replay", "workers", 0, store=node.address, code=2)
    assert told == "each of the 3 shards has its own dead letters: give --shard N, too"
    one = output("deadletter", "replay", "workers", 0, "--shard", 2, store=node.address)
    assert one == "1 dead letter being delivered to group workers again\n"
    assert parsed(node, "deadletter", "replay", "workers", "--all")["replayed"] == 1, "the other one was"
    assert store.broker.group("workers").backlog == 2
    assert parsed(node, "deadletter", "purge", "workers")["purged"] == 2
    assert parsed_lines(node) == []


def test_the_console_shows_offsets_messages_and_dead_letters_by_shard(node: NodeProcess, store: blocking.BlockingStore) -> None:
    store.broker.create_topic("looked", 1)
    store.shards[1].topic("looked").send(b"worse", key="k")
    with store.consumer("lookers", "looked", retries=es.Retries(delays=(), attempts=1)) as consumer:
        next(consumer).retry("it is worse")
        wait_until(lambda: "dead:lookers" in {each.name for each in store.broker.topics()}, "it is dead")
        wait_until(lambda: store.shards[1].broker.dead_letters("lookers"), "it is listed")
    visitor = Visitor(node.http)
    page = visitor.get("/console/broker/group?name=lookers")
    assert page.status == 200
    assert "topic shard queue offset" in page.words
    assert "Replay dead letter 0 on shard 1" in page.words
    assert "Shard" in visitor.get("/console/broker/topic?name=looked").words
    assert "worse" in visitor.get("/console/broker/messages?topic=looked&queue=0&shard=1&by=offset&wanted=0").words
    assert "worse" not in visitor.get("/console/broker/messages?topic=looked&queue=0&shard=0&by=offset&wanted=0").words
    visitor.get("/console/do/replay?group=lookers&offset=0&shard=1")
    done = visitor.post("/console/do/replay", {"group": "lookers", "offset": "0", "shard": "1"})
    assert done.status == 303
    assert store.broker.group("lookers").backlog == 1
    assert (
        "The group lookers continues at 0 of queue 0 of looked on shard 1."
        in visitor.get("/console/do/reset?group=lookers&topic=looked&queue=0&shard=1&to=0").words
    )
    reset = {"group": "lookers", "topic": "looked", "queue": "0", "to": "0"}
    assert visitor.post("/console/do/reset", {**reset, "shard": ""}).status == 400
    assert visitor.post("/console/do/reset", {**reset, "shard": "1"}).status == 303
    assert store.broker.group("lookers").backlog == 2


def test_top_and_the_console_show_what_all_shards_have_together_and_of_which_shard_each_queue_and_chunk_is(
    node: NodeProcess, store: blocking.BlockingStore
) -> None:
    store.broker.create_topic("watched", 2)
    for key in KEYS:
        store.topic("watched").send(b"m", key=key)
    store.append_many([es.Commit(key, [es.NewEvent("Happened", b"1")], 0) for key in KEYS])
    looked = parsed(node, "top", "--once", "--interval", 0.1)
    assert looked["figures"]["events"] == sum(shard.stats()["events"] for shard in store.shards.values())  # type: ignore[misc]
    assert looked["figures"]["events"] >= len(KEYS)
    assert None not in (looked["events_a_second"], looked["requests_a_second"])
    assert {each["topic"]: each["messages"] for each in looked["topics"]}["watched"] == len(KEYS)
    queues = [(each["shard"], each["queue"]) for each in looked["queues"] if each["topic"] == "watched"]
    assert queues == [(shard, queue) for shard in range(SHARDS) for queue in range(2)]
    assert {each["shard"] for each in looked["chunks"]} == {*range(SHARDS)}

    shown = output("top", "--queues", "--once", "--interval", 0.1, store=node.address)
    assert f"events: {looked['figures']['events']} " in shown
    assert [line.split()[0] for line in shown.splitlines() if line.split()[1:2] in (["topic"], ["state"])] == ["shard"] * 2
    page = Visitor(node.http).get("/console/broker")
    assert (page.status, "state shard chunk size" in page.words) == (200, True)


def test_clients_are_listed_at_each_shard_they_are_connected_to(node: NodeProcess, store: blocking.BlockingStore) -> None:
    with blocking.connect(node.address, name="only <one>") as other:
        owner = other.cluster_map().owner_of("order-1")
        other.append("order-1", [es.NewEvent("T")], es.ANY)
        found = [(each.shard, each.last_request) for each in store.clients() if each.name == "only <one>"]
        assert found == [(owner, "Append")]
        listed = [each for each in parsed(node, "clients") if each["name"] == "only <one>"]
        assert [each["shard"] for each in listed] == [owner]
        assert output("clients", store=node.address).split()[0] == "shard"
        page = Visitor(node.http).get("/console/clients")
        assert re.search(rf"{owner} only <one> 127\.0\.0\.1:\d+ [-0-9]+ [:.0-9]+ – Append", page.words)
        assert "A client is connected to each shard that it uses." in page.words


def test_chunks_are_those_of_all_shards_and_a_number_of_one_is_refused(store: blocking.BlockingStore) -> None:
    store.broker.create_topic("chunked", if_missing=True)
    for shard in store.shards.values():
        shard.topic("chunked").send(b"the first message begins a chunk")
    assert {each.shard for each in store.broker.chunks()} == {*range(SHARDS)}
    assert {each.shard for each in store.shards[0].broker.chunks()} == {None}
    with pytest.raises(es.InvalidArgument, match=r"number of a chunk is about one shard.*store\.shards\[N\]\.broker\.chunks"):
        store.broker.chunks(after=1)


def parsed_lines(node: NodeProcess, *options: object) -> list[str]:
    """Returns the bodies of the dead letters of `workers`."""
    lines = output("deadletter", "list", "workers", "--json", *options, store=node.address).splitlines()
    return [json.loads(line)["body"] for line in lines]
