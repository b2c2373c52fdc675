"""The judge of a round finds each planted mistake, in what clients saw and in the files of replicas."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import eventstore as es
from eventstore.records.cluster_map import single_map
from eventstore.records.slots import SLOTS, slot_of
from tests.cluster.nemesis.folders import differences
from tests.cluster.nemesis.judge import failovers, judge_banks, judge_events, judge_messages
from tests.cluster.nemesis.linearizability import Append, Stored
from tests.cluster.nemesis.records import Delivered, Joint, Progress, Records, Seen, Statement
from tests.cluster.nemesis.timeline import Fall, Timeline

STORED = [Seen(0, 1, "a", 1, "c1"), Seen(0, 2, "a", 2, "c2"), Seen(1, 1, "b", 1, "c3")]


def records() -> Records:
    found = Records([int(slot == slot_of("b")) for slot in range(SLOTS)])
    found.history["a"] = [Append(0, 1, "c1", 0, 1, Stored(1)), Append(2, 3, "c2", 1, 1, Stored(2))]
    found.history["b"] = [Append(0, 1, "c3", 0, 1, Stored(1))]
    found.readers["reader"] = [STORED[2], STORED[0], STORED[1]]
    found.sent = {"m1": True, "m2": False, "m3": True}
    found.delivered = delivered(1, 3)
    return found


def delivered(*numbers: int) -> list[Delivered]:
    return [Delivered(0, 0, at, f"m{number}") for at, number in enumerate(numbers)]


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


def test_a_reader_goes_on_over_a_split_without_seeing_anything_again() -> None:
    found, right, wrong = records(), Timeline(), Timeline()
    at_the_parent, record = STORED[2]._replace(shard=0, sequence=3), Seen(0, 4, "$split{5}", 1, "c9")
    stored = [*STORED[:2], at_the_parent._replace(shard=1), record]
    found.readers["reader"] = [*STORED[:2], at_the_parent, record]
    judge_events(found, stored, right)
    assert right.anomalies == []
    found.readers["reader"].append(at_the_parent._replace(shard=1))
    judge_events(found, stored, wrong)
    assert "as event 1 of shard 1, of which there are 1" in wrong.anomalies[0]


def test_a_version_that_is_missing_is_found() -> None:
    timeline = Timeline()
    judge_events(records(), [STORED[0], STORED[1]._replace(version=3), STORED[2]], timeline)
    assert "a: the versions are [1, 3]" in timeline.anomalies


BANK = [
    Seen(0, 1, "a", 1, "open"), Seen(0, 2, "b", 1, "open"), Seen(0, 3, "a", 2, "move"), Seen(0, 4, "b", 2, "move"),
    Seen(0, 5, "claims", 1, "claim 1"), Seen(0, 6, "audits", 1, "audit 1"), Seen(0, 7, "audits", 2, "audit 2"),
]  # fmt: skip
KNOWN = single_map(bytes(16))


def at(sequence: int) -> es.Position:
    return es.Position(bytes(16).hex(), 1, {0: (sequence, "")})


def bank() -> Records:
    """Two accounts, of which one was read before the transfer, between its start and its answer, and after it."""
    found = Records([0] * SLOTS)
    found.joint = {
        "open": Joint(("a", "b"), outcome=True),
        "move": Joint(("a", "b"), outcome=True),
        "late": Joint(("a", "b"), outcome=False),
        "unknown": Joint(("a", "b")),
        "claim 1": Joint(("claims",), "seat", None, True),
        "claim 2": Joint(("claims",), "seat", None, False),
        "audit 1": Joint(("audits",), "audit", at(4), True),
        "audit 2": Joint(("audits",), "audit", at(6)),
        "audit 3": Joint(("audits",), "audit", at(6), False),
    }
    found.statements = [
        Statement(("a", "b"), at(0), 0, 1, 0, (0, 0), ("", "")),
        Statement(("a", "b"), at(2), 1, 2, 2000, (1, 1), ("open", "open")),
        Statement(("a", "b"), at(7), 3, 4, 2000, (2, 2), ("move", "move")),
        Statement(("a", "b"), at(2), 5, 6, 2000, (1, 1), ("open", "open"), is_newest=False),
    ]
    return found


def judged(found: Records, stored: list[Seen]) -> list[str]:
    timeline = Timeline()
    judge_banks(found, stored, KNOWN, timeline)
    return timeline.anomalies


def test_a_bank_in_which_all_is_right_is_found_right() -> None:
    assert judged(bank(), BANK) == []


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ([BANK[3]], "half a commit: move"),
        (BANK[2:4], "lost: move was acknowledged"),
        ([BANK[4]], "claim 2 was refused, and no event with seat is stored after 0"),
    ],
)
def test_what_is_not_stored_of_a_bank_is_found(lost: list[Seen], said: str) -> None:
    assert any(said in each for each in judged(bank(), [each for each in BANK if each not in lost]))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([Seen(0, 8, "a", 3, "move")], "half a commit: move"),
        ([Seen(0, 8, "a", 3, "move"), Seen(0, 9, "b", 3, "move")], "half a commit: move"),
        ([Seen(0, 8, "a", 3, "unknown")], "half a commit: unknown"),
        ([Seen(0, 8, "a", 3, "unknown"), Seen(0, 10, "b", 3, "unknown")], "the events of unknown do not follow each other"),
        ([Seen(0, 8, "a", 3, "late"), Seen(0, 9, "b", 3, "late")], "late was refused, and is stored"),
        (
            [Seen(0, 8, "claims", 2, "claim 2")],
            "two commits that exclude each other by seat: (5, 'claim 1') and (8, 'claim 2')",
        ),
        (
            [Seen(0, 8, "audits", 3, "audit 3")],
            "two commits that exclude each other by audit: (7, 'audit 2') and (8, 'audit 3')",
        ),
    ],
)
def test_what_is_stored_of_a_bank_and_must_not_be_is_found(more: list[Seen], said: str) -> None:
    assert any(said in each for each in judged(bank(), [*BANK, *more]))


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (Statement(("a", "b"), at(3), 3, 4, 1990, (2, 1), ("move", "open")), "the sum is 1990"),
        (
            Statement(("a", "b"), at(7), 3, 4, 2000, (2, 1), ("move", "open")),
            "b had 1 events, the last by 'open'; stored are 2",
        ),
        (Statement(("a", "b"), at(2), 3, 4, 2000, (2, 2), ("move", "move")), "a had 2 events"),
        (Statement(("a", "b"), at(7), 3, 4, 2000, (2, 2), ("move", "else")), "b had 2 events, the last by 'else'"),
        (Statement(("a", "b"), at(2), 5, 6, 2000, (1, 1), ("open", "open")), "a statement goes back"),
    ],
)
def test_a_statement_that_is_not_what_is_stored_is_found(statement: Statement, said: str) -> None:
    found = bank()
    found.statements.append(statement)
    assert any(said in each for each in judged(found, BANK))


@pytest.mark.parametrize(
    ("stored", "consumed", "said"),
    [
        (["m2", "m3"], [2, 3], "1 acknowledged messages are not in the topic: ['m1']"),
        (["m1", "m2", "m3"], [1, 3], "1 messages of the topic were not consumed: ['m2']"),
        (["m1", "m3", "m4"], [1, 3, 4], "1 messages of the topic were sent by nobody: ['m4']"),
        (["m1", "m3"], [1, 2, 3], "1 messages were delivered that the topic does not have: ['m2']"),
    ],
)
def test_a_message_that_is_missing_or_strange_is_found(stored: list[str], consumed: list[int], said: str) -> None:
    right, wrong, found = Timeline(), Timeline(), records()
    judge_messages(found, ["m1", "m3"], right)
    assert right.anomalies == []
    found.delivered = delivered(*consumed)
    judge_messages(found, stored, wrong)
    assert wrong.anomalies == [said]


def test_a_message_that_is_skipped_or_changes_is_found() -> None:
    right, wrong, found = Timeline(), Timeline(), records()
    found.delivered = [Delivered(0, 0, 0, "m1"), Delivered(0, 1, 0, "m3"), Delivered(0, 0, 0, "m1")]
    judge_messages(found, ["m1", "m3"], right)
    assert right.anomalies == []
    found.delivered += [Delivered(0, 0, 2, "m3"), Delivered(0, 1, 0, "m1")]
    judge_messages(found, ["m1", "m3"], wrong)
    skipped, changed = wrong.anomalies
    assert "was delivered before offset 1 of its queue" in skipped
    assert "was delivered where 'm3' had been" in changed


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (Progress(0, 1, 7, {0: (5, 4)}), "beyond the end"),
        (Progress(0, 2, 6, {0: (2, 4)}), "a generation came back"),
        (Progress(0, 1, 7, {0: (1, 4)}), "went back"),
        (Progress(0, 2, 8, {0: (1, 2)}), "went back"),
        (Progress(0, 2, 8, {}), "went back"),
    ],
)
def test_a_group_that_goes_back_is_found(progress: Progress, said: str) -> None:
    right, wrong, found = Timeline(), Timeline(), records()
    other = Progress(1, 3, 1, {0: (0, 0)})
    found.progress = [Progress(0, 1, 7, {0: (2, 3)}), other, Progress(0, 2, 0, {0: (1, 3)}), Progress(0, 2, 8, {0: (1, 3)})]
    judge_messages(found, ["m1", "m3"], right)
    assert right.anomalies == []
    found.progress[2:] = [progress]
    judge_messages(found, ["m1", "m3"], wrong)
    assert said in wrong.anomalies[0]


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
