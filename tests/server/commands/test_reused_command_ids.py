"""A command id names one command: another one under the same id is an error, a repetition has the first outcome."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import eventstore as es
from tests.server.commands.tallies import Add, AddBelow, Break, Raise, Rename
from tests.server.commands.test_commands import amounts
from tests.server.conftest import Begin
from tests.waiting import wait_until

OTHERS = [
    Add("a", 6),
    Raise("a", 5),  # once more the events of the first, if it were handled first
    Raise("a", 0),  # nothing
    AddBelow("a", 5, 5),  # a rejection
    Break("a", "bug"),  # an error
    Rename("a", "x"),
]


def reused(outcome: object) -> tuple[object, object] | None:
    if not isinstance(outcome, es.CommandIdReused):
        return None
    return outcome.fields["version"], outcome.fields["sequence"]


@pytest.mark.parametrize("other", OTHERS, ids=lambda command: f"{type(command).__name__}-{command!r:.20}")
def test_another_command_under_the_id_of_a_stored_one_is_an_error(host: Begin, other: object) -> None:
    running = host()
    with running.connect() as store:
        store.send(Add("a", 5), "k")
        for _ in range(2):
            with pytest.raises(es.CommandIdReused, match="'k' of aggregate 'a'") as caught:
                store.send(other, "k")
            assert reused(caught.value) == (1, 1)
            assert store.send(Add("a", 5), "k") == es.Committed("a", 1, 1, duplicate=True)
            running.restart()
        assert store.send(Add("a", 1), "next") == es.Committed("a", 2, 2)
    assert amounts(running.events("a")) == [5, 1]


def test_another_command_under_the_id_of_one_in_flight_is_an_error_and_a_repetition_says_so(host: Begin) -> None:
    running = host()
    commands: Sequence[tuple[object, str]] = [
        (Add("a", 5), "k"), (Add("a", 6), "k"), (Add("a", 5), "k"), (Raise("a", 5), "k"), (Add("a", 7), "other"),
    ]  # fmt: skip
    with running.connect() as store:
        outcomes = store.send_many(commands)
    assert outcomes[0] == es.Committed("a", 1, 1)
    assert reused(outcomes[1]) == reused(outcomes[3]) == (1, 1)
    assert outcomes[2] == es.Committed("a", 1, 1, duplicate=True)
    assert outcomes[4] == es.Committed("a", 2, 2)
    assert amounts(running.events("a")) == [5, 7]


def test_a_rejected_command_does_not_use_up_its_id(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        with pytest.raises(es.Rejected):
            store.send(AddBelow("a", 5, 4), "k")
        outcomes = store.send_many([(Add("a", 5), "k"), (Add("a", 5), "k")])
        assert isinstance(outcomes[0], es.Committed)
        assert isinstance(outcomes[1], es.Committed)
        assert not outcomes[0].duplicate
        assert outcomes[1].duplicate
        with pytest.raises(es.CommandIdReused):
            store.send(AddBelow("a", 5, 4), "k")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b'{"tally":"a","amount":5}', b' {"amount" : 5,\n"tally":"\\u0061"}'),
        (b'{"amount":1, "tally":"a"}', b'{"tally":"a"}'),
        (b'{"tally":"a"}', b'{"tally": "a", "amount": 1}'),
    ],
)
def test_the_same_command_spelled_differently_is_the_same(host: Begin, first: bytes, second: bytes) -> None:
    running = host()
    with running.connect() as store:
        for command_id, one, two in (("k-1", first, second), ("k-2", second, first)):
            done = store.send(es.RawCommand("Add", "a", one), command_id)
            assert isinstance(done, es.Committed)
            assert store.send(es.RawCommand("Add", "a", two), command_id) == done._replace(duplicate=True)
        assert store.send(es.RawCommand("Add", "a", first), "k-2") == done._replace(duplicate=True)


def test_the_id_of_a_plain_append_stays_without_a_command(host: Begin) -> None:
    running = host()
    with running.connect() as store, es.blocking.connect(running.store_address) as appends:
        appends.append("a", [es.NewEvent("Renamed", {"name": "x"})], 0, command_id="k")
        for command in (Rename("a", "x"), Rename("a", "y"), Add("a", 1), Raise("a", 0)):
            assert store.send(command, "k") == es.Committed("a", 1, 1, duplicate=True)
        store.send(Rename("a", "z"), "k-2")
        repeated = appends.append("a", [es.NewEvent("Renamed", {"name": "z"})], es.ANY, command_id="k-2")
        assert repeated == es.Committed("a", 2, 2, duplicate=True)
        with pytest.raises(es.CommandIdReused):
            appends.append("a", [es.NewEvent("Renamed", {"name": "other"})], es.ANY, command_id="k-2")


def test_a_sorted_file_knows_its_commands_from_memory_and_after_a_restart(host: Begin) -> None:
    running = host(file_size_bytes=65_536, preallocate_bytes=4_096)
    with running.connect() as store, es.blocking.connect(running.store_address) as stored:
        store.send(Add("a", 5), "k")
        store.send_many([Add(f"b-{number}-{{a}}") for number in range(2_000)])  # where there are shards, at that of a
        wait_until(lambda: any(each.stats()["sorted_files"] for each in stored.shards.values() or [stored]), "a file is sorted")
        for _ in range(2):
            with pytest.raises(es.CommandIdReused):
                store.send(Add("a", 6), "k")
            with pytest.raises(es.CommandIdReused):
                store.send(Raise("a", 0), "k")
            assert store.send(Add("a", 5), "k") == es.Committed("a", 1, 1, duplicate=True)
            running.restart()


@pytest.mark.parametrize("plain", [False, True], ids=["commands", "appends"])
def test_the_aggregate_of_repeated_commands_is_not_replayed_for_each_of_them(host: Begin, plain: bool) -> None:
    running, commands = host(), [(Add("a", number), f"k-{number}") for number in range(40)]
    with running.connect() as store, es.blocking.connect(running.store_address) as appends:
        for command, command_id in commands:
            if plain:
                appends.append("a", [es.NewEvent("Added", {"amount": command.amount, "before": 0})], es.ANY, command_id)
            else:
                store.send(command, command_id)
        running.restart()
        restored = running.stats()["aggregates_restored"]
        for version, (command, command_id) in enumerate(commands, 1):
            assert store.send(command, command_id) == es.Committed("a", version, version, duplicate=True)
        again = store.send_many([*commands, (Add("a", 1), "new"), *commands])
        assert [outcome.version for outcome in again if isinstance(outcome, es.Committed)] == [*range(1, 42), *range(1, 41)]
        assert running.stats()["aggregates_restored"] - restored <= 2  # for the first one, and for the new one
