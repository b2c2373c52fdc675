"""Kept commands are decided again by other code, each on the events that were stored before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.kept_commands import KeptCommand, decode_kept
from eventstore.domain.what_if import WhatIf, what_if
from eventstore.errors import DomainRefused, InvalidArgument


@dataclass(frozen=True)
class Add:
    counter: str
    number: int


@dataclass(frozen=True)
class Wait:
    counter: str


@dataclass(frozen=True)
class Ask:
    id: str


@d.event("ReplayAdded", version=2)
@dataclass(frozen=True)
class ReplayAdded:
    number: int
    unit: str


@d.upcast("ReplayAdded", version=1)
def _(old: dict[str, object]) -> dict[str, object]:
    return {**old, "unit": "pieces"}


class Counter(d.Aggregate):
    total = 0

    @d.applies(ReplayAdded)
    def _(self, event: ReplayAdded) -> None:
        if event.number == -13:
            raise ValueError("not that one")
        self.total += event.number


class Sum(d.Decision):
    total = 0

    @d.applies(ReplayAdded)
    def _(self, event: ReplayAdded) -> None:
        self.total += event.number


app = d.Domain()


@app.handles(Add)
def add(command: Add, counter: Counter) -> None:
    if counter.total + command.number > 10:
        d.reject("too much", code="much")
    if command.number:
        counter.apply(ReplayAdded(command.number, "pieces"))


@app.handles(Wait)
async def wait(command: Wait, counter: Counter) -> None:
    counter.apply(ReplayAdded(1, "pieces"))


@app.decides(Ask, over=lambda command: es.Query(types=["ReplayAdded"]))
def ask(command: Ask, decision: Sum) -> None:
    if decision.total > 3:
        d.reject("enough was asked", code="enough")
    decision.apply(ReplayAdded(1, "pieces"))


class Kept:
    """A store with the events of commands that older code has handled, and these commands."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.commands: list[KeptCommand] = []

    async def committed(self, number: int, key: str = "c", type: str = "Add", fields: dict[str, object] | None = None) -> None:
        command_id = f"id-{len(self.commands)}"
        done = await self.store.append(key, [es.NewEvent("ReplayAdded", {"number": number})], es.ANY, command_id)
        payload = fields or {"counter": key, "number": number}
        self.commands.append(KeptCommand(type, key, command_id, payload, "committed", None, done.sequence))

    async def refused(self, number: int, outcome: Any, reason: str | None = None, key: str = "c") -> None:
        sequence = (await self.store.stats())["events"]
        payload = {"counter": key, "number": number}
        self.commands.append(KeptCommand("Add", key, f"id-{len(self.commands)}", payload, outcome, reason, sequence))

    async def found(self, **options: Any) -> WhatIf:
        return await what_if(self.store, app, [decode_kept(each.encode()) for each in self.commands], **options)


async def test_each_command_is_decided_on_what_was_stored_before_it(tmp_path: Path) -> None:
    async with es.open_store(tmp_path) as store:
        kept = Kept(store)
        await kept.committed(4)
        await kept.refused(0, "unchanged")
        await kept.refused(7, "rejected", "much")
        await kept.committed(6)  # it is 10 now
        await kept.committed(5)  # which the code of now refuses
        await kept.committed(1)  # and this as well, since the last one was stored
        await kept.refused(-15, "rejected", "few")
        found = await kept.found()
    assert found.same == 4
    assert dict(found.counts) == {("Add", "ReplayAdded → rejected (much)"): 2, ("Add", "rejected (few) → ReplayAdded"): 1}
    assert [each.command.command_id for each in found.samples] == ["id-4", "id-5", "id-6"]
    assert not found.skipped


async def test_old_events_are_compared_as_the_code_of_now_reads_them(tmp_path: Path) -> None:
    async with es.open_store(tmp_path) as store:
        kept = Kept(store)
        await kept.committed(2)
        await kept.committed(3, fields={"counter": "c", "number": 4})
        found = await kept.found()
    assert found.same == 1
    assert dict(found.counts) == {("Add", "other values: ReplayAdded.number"): 1}


async def test_what_cannot_be_restored_or_decoded_is_reported_at_each_command(tmp_path: Path) -> None:
    async with es.open_store(tmp_path) as store:
        kept = Kept(store)
        await kept.committed(-13)
        await kept.committed(1)
        await kept.committed(1, type="Gone")
        await kept.committed(1, fields={"counter": "c", "number": "many"})
        found = await kept.found()
    assert dict(found.counts) == {
        ("Add", "ReplayAdded → failed (ValueError)"): 2,
        ("Gone", "ReplayAdded → failed (UnknownCommand)"): 1,
        ("Add", "ReplayAdded → failed (PayloadInvalid)"): 1,
    }
    (handled, restored) = [each.error for each in found.samples if each.what.endswith("(ValueError)")]
    assert "add raised ValueError: not that one" in str(handled)
    assert "aggregate 'c', version 1: " in str(restored)


async def test_a_decision_is_made_on_the_events_of_its_scope_that_were_there(tmp_path: Path) -> None:
    async with es.open_store(tmp_path) as store:
        kept = Kept(store)
        await kept.committed(9, "elsewhere")
        await kept.committed(3, "c-{s}")
        await kept.committed(1, "ask-{s}-1", "Ask", {"id": "ask-{s}-1"})
        await kept.committed(1, "ask-{s}-2", "Ask", {"id": "ask-{s}-2"})  # the code of now finds that it was enough
        await kept.committed(1, "c-{s}")
        found = await kept.found()
    assert found.same == 4
    assert dict(found.counts) == {("Ask", "ReplayAdded → rejected (enough)"): 1}
    assert found.samples[0].command.aggregate_id == "ask-{s}-2"


async def test_what_may_do_more_than_decide_is_left_out_and_so_are_repetitions(tmp_path: Path) -> None:
    async with es.open_store(tmp_path) as store:
        kept = Kept(store)
        await kept.committed(1)
        kept.commands.append(kept.commands[0]._replace(outcome="rejected", reason="much"))
        await kept.committed(1, "w", "Wait", {"counter": "w"})
        kept.commands.append(KeptCommand("Add", "z", "lost", {"counter": "z", "number": 1}, "committed", None, 9))
        found = await kept.found()
        assert found.same == 1
        assert dict(found.skipped) == {
            "it was a repetition": 1,
            "its handler is async (--run-async)": 1,
            "its events are not in the store": 1,
        }
        assert (await kept.found(run_async=True)).same == 2


async def test_fields_that_were_left_out_are_not_compared(tmp_path: Path) -> None:
    async with es.open_store(tmp_path) as store:
        kept = Kept(store)
        await kept.committed(3, fields={"counter": "c", "number": 4})
        kept.commands[0] = kept.commands[0]._replace(left_out=("note",))
        found = await kept.found()
    assert found.same == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"type":"A"}', b"\xff"])
def test_another_message_is_no_kept_command(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="a message is no kept command"):
        decode_kept(body)


def test_a_personal_field_needs_a_default_and_is_not_the_id() -> None:
    @dataclass(frozen=True)
    class Sent:
        account: str
        cents: int
        owner: str = ""

    for personal, words in (
        (("cents",), "has no default"),
        (("account",), "is its aggregate's id"),
        (("iban",), "is none of its fields"),
        ("owner", "is the text 'owner'"),
    ):
        with pytest.raises(DomainRefused, match=words):
            d.command("Sent", personal=personal)(Sent)
    d.command("Sent", personal=("owner",))(Sent)
