"""Topics and queues: their document, their states, and the rules for names."""

from __future__ import annotations

from contextlib import suppress
from errno import EIO

import pytest

from eventstore.broker.opening import TOPICS
from eventstore.broker.topics import Topics
from eventstore.errors import Corrupt, InvalidArgument, UnknownQueue, UnknownTopic
from eventstore.records.topic_names import check_name
from tests.broker.stepped import DATA, Stepped, numbered, raw
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk


def test_no_name_becomes_part_of_a_path_and_names_that_differ_in_case_are_two_topics() -> None:
    disk = SimulatedDisk(0)
    broker = Stepped(disk)
    for name in ("orders", "ORDERS", "a.b", "con", "x" * 127):
        broker.topic(name, 1)
        broker.send(*numbered(150), raw(name.encode(), queue=0), topic=name)
    broker.index()
    folders = {folder for folder in disk._names.live if folder.startswith("/data/")}
    queues = {f"/data/queues/{number:010d}-00000" for number in range(1, 6)}
    assert folders <= {"/data/messages", "/data/queues", *queues}
    for name in ("orders", "ORDERS", "a.b", "con", "x" * 127):
        assert broker.bodies(topic=name)[-1] == name.encode()


BAD_NAMES = ["../x", "a/b", "a\0b", ".", "..", ".hidden", "", "x" * 128, "é", "e\u0301", "a b", "retry:a", 5]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_not_allowed_is_refused_with_the_rule(name: object) -> None:
    with pytest.raises(InvalidArgument, match="allowed are") as error:
        check_name("topic", name)
    assert error.value.field == "topic"


@pytest.mark.parametrize("mode", CRASH_MODES)
def test_an_interrupted_change_is_stored_completely_or_not_at_all(mode: CrashMode) -> None:
    for nth in range(1, 30):
        disk = SimulatedDisk(nth)
        broker = Stepped(disk)
        broker.topic()
        before = broker.opened.topics.by_name
        disk.crash_at(nth)
        with suppress(SimulatedCrash):
            broker.topic("events", 3)
            broker.opened.topics.set_state("orders", 1, "draining")
        topics = Stepped(disk.crash(mode)).opened.topics.by_name
        assert topics["orders"].queues in ({0: "open", 1: "open"}, {0: "open", 1: "draining"})
        assert topics.keys() - before.keys() <= {"events"}
        if not disk.crashed:
            assert topics["orders"].open == (0,)
            return
    raise AssertionError("a change takes fewer operations")


def test_a_queue_is_removed_step_by_step_and_its_number_is_never_reused() -> None:
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    topics = broker.opened.topics
    with pytest.raises(InvalidArgument, match="hide it first"):
        topics.remove_queue("orders", 1)
    topics.set_state("orders", 1, "draining")
    assert topics.get("orders").readable == (0, 1)
    with pytest.raises(InvalidArgument, match="last open one"):
        topics.set_state("orders", 0, "draining")
    topics.set_state("orders", 1, "hidden")
    assert topics.get("orders").readable == (0,)
    topics.remove_queue("orders", 1)
    assert topics.add_queues("orders", 2).open == (0, 2, 3)
    with pytest.raises(UnknownQueue):
        topics.get("orders").queue(1)
    with pytest.raises(InvalidArgument):
        topics.add_queues("orders", 254)


def test_a_topic_that_is_deleted_and_created_again_is_empty_and_the_index_can_still_be_built() -> None:
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    broker.topic("events", 1)
    for start in range(0, 100, 5):
        broker.send(*numbered(5, start=start))
        broker.send(*numbered(5, start=start), topic="events")
    old = broker.opened.topics.delete("orders")
    broker.engine.queues.pop((old.id, 0))
    broker.engine.queues.pop((old.id, 1))
    with pytest.raises(UnknownTopic):
        broker.send(raw())
    broker.topic()
    assert broker.opened.topics.get("orders").id > old.id
    broker.send(raw(b"new", queue=0))
    broker.index()
    broker = broker.reopen()
    assert broker.bodies() == [b"new"]
    broker.close()
    broker.disk.remove(DATA / "index.json")
    again = Stepped(broker.disk)
    assert again.bodies() == [b"new"]
    assert len(again.bodies(topic="events")) == 100


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"next_id": 1, "topics": {"a": {"id": 5, "next_queue": 1, "queues": {"0": "open"}}}}',
     b'{"next_id": 9, "topics": {"a": {"id": 5, "next_queue": 1, "queues": {"0": "odd"}}}}',
     b'{"next_id": 9, "topics": {"a": {"id": 5, "next_queue": 1, "queues": {"4": "open"}}}}'],
)  # fmt: skip
def test_a_damaged_document_is_refused_and_names_the_previous_copy(content: bytes) -> None:
    disk = SimulatedDisk(0)
    Stepped(disk).close()
    disk.replace(DATA / TOPICS, content)
    with pytest.raises(Corrupt, match=r"topics\.json\.previous"):
        Topics(disk, DATA / TOPICS).load()


@pytest.mark.parametrize("mode", CRASH_MODES)
@pytest.mark.parametrize(("operation", "nth"), [("rename", 1), ("rename", 2), ("sync_folder", 1), ("sync", 2)])
def test_a_deletion_that_failed_loses_no_message_that_was_sent_afterwards(operation: str, nth: int, mode: CrashMode) -> None:
    disk = SimulatedDisk(0)
    broker = Stepped(disk)
    broker.topic("orders", 1)
    disk.fail(operation, nth, EIO, path_contains="data")
    with pytest.raises(OSError):
        broker.opened.topics.delete("orders")
    broker.send(raw(b"kept", queue=0))
    assert Stepped(disk.crash(mode)).bodies() == [b"kept"]
