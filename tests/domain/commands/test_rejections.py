"""What a command that fails leaves: the aggregate as it was, made again from memory, not from the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.kept_state import KeptState
from eventstore.domain.runtime import CommitRow, DomainRuntime, ResidentAggregate, decide
from eventstore.domain.testing import stored
from eventstore.model import Event
from eventstore.tags import joined


@dataclass(frozen=True)
class Listed:
    name: str


@dataclass(frozen=True)
class Lost:
    name: str


@dataclass(frozen=True)
class List:
    """Lists the names; before it fails if it is to, it also spoils what it can."""

    basket: str
    names: tuple[str, ...] = ()
    fail: bool = False


@dataclass(frozen=True)
class ListLater:
    basket: str
    names: tuple[str, ...] = ()
    fail: bool = False


class Basket(d.Aggregate):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.counts: dict[str, int] = {}

    @d.applies(Listed)
    def _(self, event: Listed) -> None:
        self.names.append(event.name)
        self.counts[event.name] = self.counts.get(event.name, 0) + 1


class Opaque(Basket):
    def __init__(self) -> None:
        super().__init__()
        self.more: Any = object()


def put(command: Any, basket: Any) -> None:
    for name in command.names:
        basket.apply(Listed(name))
    if command.fail:
        basket.names.append("spoilt")
        basket.counts.clear()
        basket.other = 5
        d.reject("no")


def domain_of(cls: type[d.Aggregate]) -> d.Domain:
    app = d.Domain()

    async def put_later(command: Any, basket: Any) -> None:
        put(command, basket)

    def put_now(command: Any, basket: Any) -> None:
        put(command, basket)

    for command, function in ((List, put_now), (ListLater, put_later)):
        function.__annotations__ = {"command": command, "basket": cls}
        app.handles(command)(function)
    return app


class World:
    """A runtime on one aggregate, whose events are stored as the commands make them; with how many were read again."""

    def __init__(self, cls: type[d.Aggregate]) -> None:
        self.domain = domain_of(cls)
        self.history: list[Event] = []
        self.read = 0
        self.runtime = DomainRuntime(self.domain, self._read)
        self.resident = ResidentAggregate(None, [])

    async def _read(self, aggregate_id: str, from_version: int) -> AsyncGenerator[list[Event], None]:
        page = self.history[from_version - 1 :]
        self.read += len(page)
        if page:
            yield page

    async def run(self, command: object) -> CommitRow | None:
        """Runs a command as the mailboxes do: on an aggregate that is restored if it is not certain how it is."""
        if self.resident.must_restore or self.resident.aggregate is None:
            self.resident = await self.runtime.restore("b")
        raw = d.encode_command(command)
        handled = self.runtime.handle(decide(self.domain, raw.type, raw.payload, "b", "c"), self.resident)
        row = handled if handled is None or isinstance(handled, tuple) else await handled
        if row is not None:
            names = command.names  # type: ignore[attr-defined] # each command here has names
            self.history += stored(*map(Listed, names), aggregate_id="b", version=row[1] + 1)
        return row

    async def reject(self, command: object) -> None:
        with pytest.raises(d.Rejected):
            await self.run(command)

    @property
    def names(self) -> list[str]:
        assert isinstance(self.resident.aggregate, Basket)
        basket = self.resident.aggregate
        assert basket.version == len(basket.names) == sum(basket.counts.values())
        assert not hasattr(basket, "other")
        return basket.names


@pytest.mark.parametrize("command", [List, ListLater])
async def test_from_the_second_rejection_of_a_class_on_nothing_is_read(command: Any) -> None:
    world = World(Basket)
    await world.run(command("b", ("a", "b")))
    await world.reject(command("b", ("c",), fail=True))
    assert world.resident.must_restore
    await world.run(command("b", ("c",)))
    assert world.read == 2
    for number in range(200):
        await world.reject(command("b", ("x", "y"), fail=True))
        assert not world.resident.must_restore
        await world.run(command("b", (f"name {number}", "z" * (number % 50))))
        assert len(world.names) == 3 + 2 * (number + 1)
    assert world.read == 2
    assert world.names == [event.json()["name"] for event in world.history]


async def test_what_is_kept_is_bounded_by_the_state() -> None:
    world = World(Basket)
    await world.run(List("b", ("a",)))
    await world.reject(List("b", fail=True))
    for number in range(300):
        await world.run(List("b", (f"name {number}",)))
        kept = world.resident.kept
        assert kept is not None
        assert kept._events_bytes <= max(1024, len(kept._state))
    await world.reject(List("b", fail=True))
    assert len(world.names) == 301
    assert world.read == 1


async def test_another_aggregate_of_the_class_is_kept_before_its_first_rejection() -> None:
    world = World(Basket)
    await world.run(List("b", ("a",)))
    await world.reject(List("b", fail=True))
    world.history, world.resident = stored(*[Listed("a")] * 50, aggregate_id="b"), ResidentAggregate(None, [])
    await world.run(List("b"))
    read = world.read
    await world.reject(List("b", fail=True))
    assert (len(world.names), world.read) == (50, read)


async def test_a_state_that_cannot_be_written_is_restored_from_the_store_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(Opaque)
    await world.run(List("b", ("a",)))
    for number in range(1, 4):
        await world.reject(List("b", ("b",), fail=True))
        await world.run(List("b"))
        assert (world.names, world.read) == (["a"], number)
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith(f"each rejection restores an aggregate of class {__name__}.Opaque from the store: attribute 'more'")


async def test_a_state_that_becomes_one_that_cannot_be_written_is_given_up() -> None:
    world = World(Basket)
    await world.run(List("b", ("a",)))
    await world.reject(List("b", fail=True))
    await world.run(List("b"))
    assert isinstance(world.resident.aggregate, Basket)
    world.resident.aggregate.more = object()  # type: ignore[attr-defined] # what an author may well do
    for number in range(50):
        await world.run(List("b", (f"a rather long name {number}",)))
    assert world.resident.kept is None
    await world.reject(List("b", fail=True))
    assert world.resident.must_restore


async def test_what_others_have_written_is_not_missed() -> None:
    world = World(Basket)
    await world.run(List("b", ("a",)))
    await world.reject(List("b", fail=True))
    await world.run(List("b", ("b",)))
    assert world.resident.kept is not None
    world.history += stored(Listed("of another"), aggregate_id="b", version=3)
    world.resident = await world.runtime.refresh("b", world.resident)
    await world.reject(List("b", fail=True))
    await world.run(List("b"))
    assert world.names == ["a", "b", "of another"]


async def test_events_that_do_not_apply_again_leave_it_to_the_store() -> None:
    class Moody(Basket):
        fails = False

        @d.applies(Lost)
        def _(self, event: Lost) -> None:
            if Moody.fails:
                raise ValueError("a bug")

    world = World(Moody)
    await world.run(List("b", ("a",)))
    await world.reject(List("b", fail=True))
    await world.run(List("b"))
    kept, aggregate = world.resident.kept, world.resident.aggregate
    assert isinstance(kept, KeptState)
    assert isinstance(aggregate, Moody)
    aggregate.apply(Lost("x"))
    kept.add(b"".join(aggregate._aggregate_events), 1, aggregate)
    Moody.fails = True
    with pytest.raises(es.HandlerFailed):
        kept.made_again(Moody, "b")
    aggregate._aggregate_events.clear()
    await world.reject(List("b", fail=True))
    assert world.resident.must_restore


@d.event("Tagged of rejections", version=2, tags=["name"])
@dataclass(frozen=True)
class Tagged:
    name: str


@d.upcast("Tagged of rejections", version=1)
def tagged(fields: dict[str, object]) -> dict[str, object]:
    return fields


class Shelf(d.Aggregate):
    def __init__(self) -> None:
        self.names: list[str] = []

    @d.applies(Tagged)
    def _(self, event: Tagged) -> None:
        self.names.append(event.name)


@pytest.mark.parametrize("metadata", [None, {"user": "ada"}])
def test_events_with_tags_versions_and_metadata_are_applied_again(metadata: Any) -> None:
    shelf = d.restore(Shelf, "s", [])
    kept = KeptState(shelf)
    for name in ("a", "b"):
        shelf.apply(Tagged(name), metadata=metadata)
    kept.add(joined(shelf._aggregate_events), 2, shelf)
    again = kept.made_again(Shelf, "s")
    assert isinstance(again, Shelf)
    assert (again.names, again.version) == (["a", "b"], 2)
