"""The judge of a round finds each planted mistake, in what clients saw and in the files of replicas."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import eventstore as es
from tests.cluster.nemesis.folders import differences
from tests.cluster.nemesis.judge import failovers, judge_events, judge_messages
from tests.cluster.nemesis.linearizability import Append, Stored
from tests.cluster.nemesis.records import Records, Seen
from tests.cluster.nemesis.timeline import Fall, Timeline

STORED = [Seen(0, 1, "a", 1, "c1"), Seen(0, 2, "a", 2, "c2"), Seen(1, 1, "b", 1, "c3")]


def records() -> Records:
    found = Records([0] * 2048 + [1] * 2048)
    found.history["a"] = [Append(0, 1, "c1", 0, 1, Stored(1)), Append(2, 3, "c2", 1, 1, Stored(2))]
    found.history["b"] = [Append(0, 1, "c3", 0, 1, Stored(1))]
    found.readers["reader"] = [STORED[2], STORED[0], STORED[1]]
    found.sent = {"m1": True, "m2": False, "m3": True}
    found.consumed.update(["m1", "m3", "m3"])
    return found


def lose_acknowledged(found: Records) -> None:
    found.history["b"].append(Append(2, 3, "c4", 1, 1, Stored(2)))


def read_twice(found: Records) -> None:
    found.readers["reader"].append(STORED[1])


def read_in_another_order(found: Records) -> None:
    found.readers["reader"].reverse()


def read_no_more(found: Records) -> None:
    found.readers["reader"].pop()


def read_what_is_not_there(found: Records) -> None:
    found.readers["reader"][2] = STORED[1]._replace(command_id="c9")


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lose_acknowledged, "b: lost: command c4"),
        (read_twice, "as event 2 of shard 0, of which there are 2"),
        (read_in_another_order, "as event 0 of shard 0"),
        (read_no_more, "saw 1 of 2 events of shard 0"),
        (read_what_is_not_there, "command_id='c9') as event 1"),
    ],
)
def test_what_clients_saw_and_is_not_stored_is_found(plant: Callable[[Records], None], said: str) -> None:
    right, wrong, found = Timeline(), Timeline(), records()
    judge_events(found, STORED, right)
    assert right.anomalies == []
    plant(found)
    judge_events(found, STORED, wrong)
    assert len(wrong.anomalies) == 1
    assert said in wrong.anomalies[0]


def test_a_version_that_is_missing_is_found() -> None:
    timeline = Timeline()
    judge_events(records(), [STORED[0], STORED[1]._replace(version=3), STORED[2]], timeline)
    assert "a: the versions are [1, 3]" in timeline.anomalies


@pytest.mark.parametrize(
    ("stored", "consumed", "said"),
    [
        (["m1", "m2"], ["m2"], "1 acknowledged messages are not in the topic: ['m3']"),
        (["m1", "m2", "m3"], [], "1 messages of the topic were not consumed: ['m2']"),
        (["m1", "m3"], ["m4"], "1 messages were delivered that nobody sent: ['m4']"),
    ],
)
def test_a_message_that_is_missing_is_found(stored: list[str], consumed: list[str], said: str) -> None:
    right, wrong, found = Timeline(), Timeline(), records()
    judge_messages(found, ["m1", "m3"], right)
    assert right.anomalies == []
    found.consumed.update(consumed)
    judge_messages(found, stored, wrong)
    assert wrong.anomalies == [said]


def test_the_time_without_a_leader_is_that_to_the_next_acknowledgement_of_its_shard() -> None:
    found = replace(records(), acknowledged=[(1.0, 0), (2.01, 1), (3.0, 0), (4.5, 1)])
    timeline = Timeline(falls=[Fall(2.0, 1, "kill"), Fall(2.0, 0, "kill"), Fall(5.0, 0, "kill")])
    assert failovers(found, timeline) == {"kill": [2.5, 1.0]}


async def test_replicas_whose_records_differ_are_found(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    async with es.open_store(first, es.StoreSettings(file_size_bytes=8 * 1024, preallocate_bytes=4 * 1024)) as store:
        for number in range(30):
            await store.append(f"a-{number}", [es.NewEvent("Happened", b"." * 500)], 0)
    shutil.copytree(first, second)
    assert len(list((first / "events").glob("*.events"))) > 1
    assert differences([first, second]) == []
    async with es.open_store(second) as store:
        await store.append("a-0", [es.NewEvent("Happened", b"")], 1)
    (found,) = differences([first, second])
    assert found.startswith("events 5: 6 records ")
    assert "7 records " in found
    (second / "events" / "0000000001.events").unlink()
    assert len(differences([first, second])) == 2
