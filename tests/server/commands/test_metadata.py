"""The metadata of a command: each of its events has it; what began and what caused an event is known from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore.command_metadata import METADATA_BYTES_MAX
from tests.server.commands import echoes
from tests.server.commands.domain_hosts import KINDS, DomainHost
from tests.server.commands.tallies import Add, AddOften
from tests.server.conftest import Begin
from tests.waiting import wait_until


@pytest.fixture(params=KINDS)
def echoing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DomainHost]:
    checkpoint = tmp_path / "reactions.json" if request.param != "serve" else None
    with ExitStack() as stack:
        yield stack.enter_context(
            DomainHost(request.param, tmp_path, "tests.server.commands.echoes:app", checkpoint=checkpoint)
        )


def ids(event: es.Event) -> tuple[str, str]:
    return event.correlation_id, event.causation_id


def test_each_event_of_a_command_has_its_metadata_and_the_others_have_none(host: Begin) -> None:
    running = host()
    given = {"user": "Ada", "correlation_id": "order-7"}
    with running.connect() as store:
        store.send(AddOften("a", 2), "k-1", metadata=given)
        store.send(Add("a"), "k-2")
        outcomes = store.send_many([(Add("a"), "k-3", {"user": "Bob", "causation_id": "mail-1"}), (Add("a"), "k-4"), Add("a")])
        assert all(isinstance(each, es.Committed) for each in outcomes)
        assert store.send(Add("a"), "k-3", metadata={"user": "another"}).duplicate, "metadata are not what a command is"
    events = running.events("a")
    assert [event.metadata_json() for event in events[:5]] == [
        given,
        given,
        None,
        {"user": "Bob", "causation_id": "mail-1"},
        None,
    ]
    assert [ids(event) for event in events[:5]] == [
        ("order-7", "k-1"), ("order-7", "k-1"), ("k-2", "k-2"), ("k-3", "mail-1"), ("k-4", "k-4"),
    ]  # fmt: skip
    assert events[5].metadata is None


def test_what_follows_from_a_command_keeps_its_correlation_and_names_its_cause(echoing: DomainHost) -> None:
    with echoing.connect() as store:
        store.send(echoes.Call("a", 1), "k-1")
        store.send(echoes.Call("a", 2), "k-2", metadata={"correlation_id": "order-7", "user": "Ada"})
        wait_until(lambda: len(echoing.events("echo-a")) == 2, "both calls are echoed")
    echoed = echoing.events("echo-a")
    assert [ids(event) for event in echoed] == [("k-1", "a/1"), ("order-7", "a/2")]
    assert echoed[1].metadata_json() == {"correlation_id": "order-7", "causation_id": "a/2", "number": 2}


@pytest.mark.parametrize("text", ["x" * 256, 7, ""])
def test_metadata_of_a_plain_append_that_no_command_could_have_stop_no_reaction(echoing: DomainHost, text: object) -> None:
    with es.blocking.connect(echoing.store_address) as store:
        store.append("a", [es.NewEvent("Called", {"number": 1}, {"correlation_id": text})], es.ANY, "k-1")
        wait_until(lambda: len(echoing.events("echo-a")) == 1, "the call is echoed")
    assert ids(echoing.events("echo-a")[0]) == ("k-1", "a/1")


def test_metadata_that_cannot_be_stored_are_refused_before_they_are_sent(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        refused: list[Any] = [
            {"no_reactions": True},
            {"schema": 2}, {"correlation_id": 5}, {"causation_id": ""}, {"x": object()}, {"x": "y" * METADATA_BYTES_MAX}, [],
        ]  # fmt: skip
        for metadata in refused:
            with pytest.raises(es.InvalidArgument):
                store.send(Add("a"), metadata=metadata)
    assert not running.events("a")
