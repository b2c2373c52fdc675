"""Commands about several aggregates: one handler, one commit, in the server and in workers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from tests.cluster.led_shards import LedShards
from tests.server.commands.accounts import Misuse, Move, MoveSlowly, MoveWithin, Open
from tests.server.commands.domain_hosts import KINDS, DomainHost
from tests.server.conftest import Begin

DOMAIN = "tests.server.commands.accounts:app"
ONE, TWO, THREE = "one{t}", "two{t}", "three{t}"


def changes(running: DomainHost, name: str) -> list[int]:
    return [event.json()["cents"] for event in running.events(name)]


@pytest.mark.parametrize("command", [Move, MoveSlowly])
def test_all_its_aggregates_are_changed_by_one_commit(host: Begin, command: Any) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store:
        store.send(Open(ONE, 100))
        done = store.send(command(ONE, TWO, 30), "k", metadata={"by": "me"})
        assert (done.aggregate_id, done.version, done.duplicate) == (ONE, 2, False)
        again = store.send(command(ONE, TWO, 30), "k")
        assert again == done._replace(duplicate=True)
        assert store.send(Open(TWO, 1)).version == 2
    assert (changes(running, ONE), changes(running, TWO)) == ([100, -30], [30, 1])
    first, second = running.events(ONE)[1], running.events(TWO)[0]
    assert (first.command_id, second.command_id) == ("k", "k")
    assert second.sequence == first.sequence + 1
    assert first.metadata_json() == second.metadata_json() == {"by": "me"}
    with es.blocking.connect(running.store_address) as store:
        log = list(store.read_all())
    assert [event.commit_continues for event in log if event.command_id == "k"] == [True, False]


def test_a_repetition_has_the_first_outcome_whatever_it_would_decide_now(host: Begin) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store:
        store.send(Open(ONE, 30))
        done = store.send(Move(ONE, TWO, 30), "k")
        for _ in range(2):
            assert store.send(Move(ONE, TWO, 30), "k")[:4] == done._replace(duplicate=True)[:4]
            with pytest.raises(es.CommandIdReused):
                store.send(Move(ONE, TWO, 29), "k")
            with pytest.raises(es.CommandIdReused):
                store.send(Move(ONE, THREE, 30), "k")
            running.restart()
    assert (changes(running, ONE), changes(running, TWO), changes(running, THREE)) == ([30, -30], [30], [])


def test_what_is_rejected_or_changes_nothing_stores_nothing(host: Begin) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store:
        store.send(Open(ONE, 5))
        with pytest.raises(es.Rejected, match="has 5"):
            store.send(Move(ONE, TWO, 6))
        assert isinstance(store.send(Move(ONE, TWO, 0)), es.Unchanged)
        with pytest.raises(es.HandlerFailed, match="a bug"):
            store.send(Misuse(ONE, TWO, "fail"))
        with pytest.raises(es.InvalidArgument) as caught:
            store.send(Misuse(ONE, TWO, "second"))
        assert "applied an event to 'two{t}', and none to 'one{t}', the first aggregate" in caught.value.message
        assert store.send(Move(ONE, TWO, 5)).version == 2
    assert (changes(running, ONE), changes(running, TWO)) == ([5, -5], [5])


def test_ids_that_cannot_be_are_refused_by_field(host: Begin) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store:
        for target, words in ((ONE, "names aggregate 'one{t}' in several of the fields source, target"), ("", "field target"),
                              ("$x", "field target"), ("x" * 256, "field target")):  # fmt: skip
            with pytest.raises(es.InvalidArgument) as caught:
                store.send(Move(ONE, target, 1))
            assert words in caught.value.message


def test_an_aggregate_that_is_only_looked_at_must_be_as_it_was(host: Begin) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store, es.blocking.connect(running.store_address) as other:
        store.send_many([(Open(ONE, 100), "o-1"), (Open(THREE, 999), "o-3")])
        store.send(MoveWithin(ONE, TWO, 1, THREE))
        other.append(THREE, [es.NewEvent("Changed", {"cents": 1})], es.ANY)  # the mailboxes do not know of it, in a worker
        with pytest.raises(es.Rejected, match="too much"):
            store.send(MoveWithin(ONE, TWO, 1, THREE))
    assert changes(running, TWO) == [1]


def test_the_sum_is_constant_whatever_conflicts(host: Begin) -> None:
    running, chance = host(domain=DOMAIN), random.Random(7)
    names = [f"account-{number}{{t}}" for number in range(5)]
    with running.connect() as store, es.blocking.connect(running.store_address) as other:
        assert all(isinstance(each, es.Committed) for each in store.send_many([(Open(name, 50), f"o{name}") for name in names]))
        sent = 0
        for number in range(20):
            commands = []
            for _ in range(25):
                source, target = chance.sample(names, 2)
                kind = chance.choice([Move, Move, MoveSlowly])
                commands.append((kind(source, target, chance.randint(0, 40)), f"m-{sent}"))
                sent += 1
            one, two = chance.sample(names, 2)
            writes = [
                es.Write(name, [es.NewEvent("Changed", {"cents": cents})], es.ANY) for name, cents in ((one, 1), (two, -1))
            ]
            other.commit(writes, command_id=f"theirs-{number}")
            outcomes = store.send_many([*commands, *chance.sample(commands, 5)])
            assert all(isinstance(each, es.Committed | es.Unchanged | es.Rejected) for each in outcomes)
            assert not store.send_many([(Open(chance.choice(names), 0), f"open-{number}")])[0].duplicate  # type: ignore[union-attr]
    events = [event for name in names for event in running.events(name)]
    assert sum(event.json()["cents"] for event in events) == 250
    for name in names:
        balance = 0
        for event in running.events(name):
            balance += event.json()["cents"]
            assert balance >= 0 or event.command_id.startswith("theirs") or balance >= -20
    moved: dict[str, int] = {}
    for event in events:
        if event.command_id.startswith("m-"):
            moved[event.command_id] = moved.get(event.command_id, 0) + 1
    assert set(moved.values()) == {2}, "both sides or none, and once"
    assert len(moved) > 100


@pytest.mark.parametrize("kind", KINDS[2:])
def test_aggregates_of_several_shards_are_refused_in_words(kind: str, tmp_path: Path) -> None:
    with DomainHost(kind, tmp_path, DOMAIN) as running, running.connect() as store:
        assert isinstance(running.store, LedShards)
        owner = running.store.owner
        apart = next(name for name in map("far-{}".format, range(100)) if owner(name) != owner(ONE))
        store.send(Open(ONE, 10))
        with pytest.raises(es.CrossShard, match=r"need the same text in braces"):
            store.send(Move(ONE, apart, 1))
        assert running.events(apart) == []
        assert store.send(Move(ONE, TWO, 1)).version == 2
