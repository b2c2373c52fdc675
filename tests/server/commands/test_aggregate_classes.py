"""Aggregates of several classes in one domain."""

from __future__ import annotations

import pytest

import eventstore as es
from eventstore.model import NewEvent, Unchanged
from tests.server.commands.tallies import Add, Raise, Rename, RenameBell, Renamed, Ring
from tests.server.commands.test_commands import amounts
from tests.server.conftest import Begin


def test_several_classes_of_aggregates_coexist(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        for _ in range(2):
            for number in range(10):
                store.send(Add(f"tally-{number}"))
                store.send(Ring(f"bell-{number}"))
            running.restart()
    assert [event.json() for event in running.events("bell-3")] == [{"before": 0}, {"before": 1}]
    assert amounts(running.events("tally-3")) == [1, 1]


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_id_belongs_to_the_class_it_began_with(host: Begin, in_memory: bool) -> None:
    running = host()
    with running.connect() as store:
        store.send(Add("a"))
        if not in_memory:
            running.restart()
        for _ in range(2):
            with pytest.raises(es.EventStoreError) as caught:
                store.send(Ring("a"))
            assert type(caught.value) in (es.InvalidArgument, es.UnknownEvent)
            assert "Tally" in caught.value.message
            assert store.send(Raise("a", 1)) == Unchanged("a")
        store.send(Add("a"))
    assert amounts(running.events("a")) == [1, 1]


def test_of_two_commands_for_different_classes_at_once_the_first_makes_the_aggregate(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        outcomes = store.send_many([Ring("a"), Add("a"), Ring("a"), Rename("a", "x")])
    assert [type(outcome) for outcome in outcomes] == [es.Committed, es.InvalidArgument, es.Committed, es.InvalidArgument]
    assert [event.type for event in running.events("a")] == ["Rung", "Rung"]


def test_an_event_of_two_classes_does_not_say_which_the_aggregate_is_of(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        store.send(RenameBell("b", "x"))
        running.restart()
        store.send(Ring("b"))
        running.restart()
        assert store.send(Ring("b")) == es.Committed("b", 3, 3)
    assert [event.type for event in running.events("b")] == [Renamed.__name__, "Rung", "Rung"]


def test_an_aggregate_with_unknown_events_is_refused_and_others_are_not(host: Begin) -> None:
    running = host()
    with running.connect() as store, es.blocking.connect(running.store_address) as other:
        other.append("a", [NewEvent("Foreign", {"x": 1})], 0)
        other.append("b", [NewEvent("Added", {"x": 1})], 0)
        for _ in range(2):
            with pytest.raises(es.UnknownEvent, match="'a', version 1"):
                store.send(Add("a"))
            with pytest.raises(es.PayloadInvalid, match="'b', version 1"):
                store.send(Add("b"))
        assert store.send(Add("c")).version == 1  # type: ignore[union-attr] # it is committed
