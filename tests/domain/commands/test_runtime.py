"""A domain in command mailboxes: changes, errors, and the class of an aggregate."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore import flat
from eventstore.domain.encoding.event_type import event_type
from eventstore.domain.runtime import CommitRow, Decided, DomainRuntime, ResidentAggregate, decide
from eventstore.domain.testing import stored
from eventstore.errors import ShuttingDown
from eventstore.model import Event
from eventstore_mailbox import Unrestorable
from tests.server.commands.tallies import Add, Added, Break, Raise, RenameBell, Renamed, Ring, Rung, Wait, app, gates


@dataclass(frozen=True)
class Foreign:
    """No class of the domains here applies it."""


@dataclass(frozen=True)
class Note:
    diary: str


@dataclass(frozen=True)
class Noted:
    pass


class Diary(d.Aggregate):
    ignores_unknown = True

    @d.applies(Noted)
    def _(self, event: Noted) -> None:
        pass


def note(command: Note, diary: Diary) -> None:
    diary.apply(Noted())


lenient = d.Domain()
lenient.handles(Note)(note)


def running(*pages: list[Event] | Exception, domain: d.Domain = app) -> DomainRuntime:
    """Returns a runtime on a store that has these pages of one aggregate; an error in the list is raised."""

    async def read(aggregate_id: str, from_version: int) -> AsyncGenerator[list[Event], None]:
        for page in pages:
            await trio.lowlevel.checkpoint()
            if isinstance(page, Exception):
                raise page
            yield page

    return DomainRuntime(domain, read)


def decided(command: object, command_id: str = "c-1") -> Decided:
    raw = d.encode_command(command)
    return decide(app, raw.type, raw.payload, raw.aggregate_id, command_id)


def handle(domain: DomainRuntime, command: object, resident: ResidentAggregate) -> CommitRow | None:
    return cast("CommitRow | None", domain.handle(decided(command), resident))


async def test_a_change_is_a_commit_on_the_version_it_was_decided_on() -> None:
    domain = running(stored(Added(1, 0), Added(2, 1), aggregate_id="a"))
    resident = await domain.restore("a")
    change = handle(domain, Add("a", 5), resident)
    fingerprint = decided(Add("a", 5)).fingerprint
    assert change == ("a", 2, "c-1", None, (flat.encode(event_type(Added).encode(Added(5, 3))), 1, fingerprint))
    assert handle(domain, Add("a", 5), resident)[1] == 3  # type: ignore[index] # it is a change
    assert handle(domain, Raise("a", 0), resident) is None


async def test_a_new_aggregate_has_the_class_of_its_first_command() -> None:
    domain = running()
    resident = await domain.restore("a")
    assert handle(domain, Ring("a"), resident)[:3] == ("a", 0, "c-1")  # type: ignore[index] # it is a change
    with pytest.raises(es.InvalidArgument, match=r"'a' is a .*Bell, but .*add handles commands of a .*Tally"):
        handle(domain, Add("a"), resident)
    assert domain.unmodified(resident)


@pytest.mark.parametrize("first", [Added(1, 0), Renamed("x")], ids=["of one class", "of two classes"])
async def test_an_existing_aggregate_has_the_class_of_its_events(first: object) -> None:
    domain = running(stored(first, Added(1, 1), aggregate_id="a"))
    resident = await domain.restore("a")
    with pytest.raises((es.InvalidArgument, es.UnknownEvent)):
        handle(domain, Ring("a"), resident)
    assert domain.unmodified(resident)
    assert handle(domain, Add("a"), resident)[1] == 2  # type: ignore[index] # it is a change


async def test_events_that_two_classes_apply_are_replayed_on_the_class_of_the_command() -> None:
    domain = running(stored(Renamed("x"), Renamed("y"), aggregate_id="b"), [*stored(Rung(0), aggregate_id="b", version=3)])
    resident = await domain.restore("b")
    assert handle(domain, RenameBell("b", "z"), resident)[1] == 3  # type: ignore[index] # it is a change


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("bug", es.HandlerFailed, "tallies.break_off raised ValueError: a bug"),
        ("text that is none", es.Rejected, "^wrapped$"),
        ("code that is none", es.HandlerFailed, "OddlyCoded: odd; its code is 'odd', not a number"),
        ("a word of the server's own", es.HandlerFailed, "ShuttingDown: not for a handler to say"),
        ("exit", SystemExit, "3"),
    ],
)
async def test_a_handlers_error_is_made_sendable_and_the_aggregate_is_as_before(
    how: str, error: type[BaseException], said: str
) -> None:
    domain = running()
    resident = await domain.restore("a")
    with pytest.raises(error, match=said) as caught:
        handle(domain, Break("a", how), resident)
    assert not isinstance(caught.value, ShuttingDown)
    assert domain.unmodified(resident) is (how != "exit")


async def test_an_error_of_the_domain_has_a_bounded_number_of_fields() -> None:
    domain = running()
    with pytest.raises(es.Rejected) as caught:
        handle(domain, Break("a", "too many fields"), await domain.restore("a"))
    assert caught.value.fields["reason"] == "rejected"
    assert 8 < len(caught.value.fields) < 128


async def test_an_async_handler_that_is_cancelled_leaves_an_aggregate_that_is_restored() -> None:
    domain = running()
    resident = await domain.restore("a")
    gates.clear()
    coroutine = cast("Coroutine[Any, Any, CommitRow | None]", domain.handle(decided(Wait("a")), resident))
    with trio.move_on_after(0):
        await coroutine
    assert not domain.unmodified(resident)
    resident = await domain.restore("a")
    gates["a"].set()
    change = await cast("Coroutine[Any, Any, CommitRow | None]", domain.handle(decided(Wait("a")), resident))
    assert change is not None
    assert change[:3] == ("a", 0, "c-1")
    assert domain.unmodified(resident)
    gates.clear()


# -- restoring ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "error"),
    [
        ([es.Corrupt("file", 7, "rot")], es.Corrupt),
        ([es.ReadFailed("input/output error")], es.ReadFailed),
        ([stored(Added(1, 0), aggregate_id="a", version=2)], es.InvalidArgument),
        ([[Event(("a", 1, "Added", b"{}", None, "c", 0, 1, 0))]], es.PayloadInvalid),
        ([stored(Added(1, 0), aggregate_id="a"), stored(Rung(0), aggregate_id="a", version=2)], es.UnknownEvent),
    ],
    ids=["corrupt", "unreadable", "a gap", "a payload that does not fit", "an event of another class"],
)
async def test_an_aggregate_that_cannot_be_restored_fails_the_command(pages: list[Any], error: type[Exception]) -> None:
    with pytest.raises(Unrestorable) as caught:
        await running(*pages).restore("a")
    assert type(caught.value.error) is error


class History:
    """An aggregate of many large events, in pages of ten; `read` counts the events read."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds
        self.read = 0

    async def pages(self, aggregate_id: str, from_version: int) -> AsyncGenerator[list[Event], None]:
        for first in range(0, len(self._kinds), 10):
            await trio.lowlevel.checkpoint()
            page = [
                Event((aggregate_id, version, kind, b'"' + b"x" * 10_000 + b'"', None, "c", 0, version, 0))
                for version, kind in enumerate(self._kinds[first : first + 10], first + 1)
            ]
            self.read += len(page)
            yield page


def bytes_kept(resident: ResidentAggregate) -> int:
    return sum(len(event.data) for event in resident.events)


async def test_of_a_history_that_no_class_knows_one_page_is_read_and_nothing_kept() -> None:
    history = History(*["Foreign"] * 100)
    domain = DomainRuntime(app, history.pages)
    resident = await domain.restore("a")
    assert (history.read, len(resident.events), bytes_kept(resident)) == (10, 1, 0)
    for command, name in [(Add("a"), "Tally"), (Ring("a"), "Bell")]:
        with pytest.raises(es.UnknownEvent, match=f"'a', version 1: .*{name} has no method for events of type 'Foreign'"):
            handle(domain, command, resident)
        assert domain.unmodified(resident)


async def test_a_history_that_two_classes_share_is_read_as_far_as_one_of_them_knows_it() -> None:
    shared = stored(Renamed("x"), Renamed("y"), aggregate_id="b")
    pages = [
        shared,
        [*stored(Foreign(), Renamed("z"), aggregate_id="b", version=3)],
        [*stored(Rung(0), aggregate_id="b", version=5)],
    ]
    read: list[Event] = []

    async def counted(aggregate_id: str, from_version: int) -> AsyncGenerator[list[Event], None]:
        for page in pages:
            await trio.lowlevel.checkpoint()
            read.extend(page)
            yield page

    domain = DomainRuntime(app, counted)
    resident = await domain.restore("b")
    assert len(read) == 4
    assert len(resident.events) == 3
    with pytest.raises(es.UnknownEvent, match=r"'b', version 3: .*Bell has no method for events of type 'Foreign'"):
        handle(domain, RenameBell("b", "z"), resident)


async def test_a_class_that_ignores_unknown_events_is_restored_without_their_data() -> None:
    history = History(*["Foreign"] * 100)
    domain = DomainRuntime(lenient, history.pages)
    resident = await domain.restore("a")
    assert history.read == 100
    assert bytes_kept(resident) == 0
    raw = d.encode_command(Note("a"))
    change = domain.handle(decide(lenient, raw.type, raw.payload, "a", "c-1"), resident)
    assert isinstance(change, tuple)
    assert change[1] == 100


@pytest.mark.parametrize("make", [es.ConnectionLost, es.Overloaded, ShuttingDown])
async def test_an_unreachable_store_does_not_fail_the_command(make: Callable[[str], Exception]) -> None:
    with pytest.raises(es.EventStoreError) as caught:
        await running(stored(Added(1, 0), aggregate_id="a"), make("later")).restore("a")
    assert caught.value.retriable
