"""What is parked is retried by the code of today: also an event of an earlier version, once there is an upcast for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.encoding import upcasting
from eventstore.domain.publication import Publication
from eventstore.domain.reactions.checkpoint import FileCheckpoint
from eventstore.domain.reactions.reactor import Reactor
from eventstore.following.parking import Parking
from eventstore.server.outbox.outbox_messages import Late, PublishedEvents
from eventstore.server.outbox.parked_messages import ParkedMessages
from eventstore.store.embedded import EmbeddedStore


@d.event("Filed", version=2)
@dataclass(frozen=True)
class Filed:
    drawer: str


class Drawers(d.Projection[str]):
    name = "drawers"
    columns: ClassVar = {"drawer": str}
    on_failure = "park"

    @d.folds(Filed)
    def _(self, state: str | None, event: Filed) -> str:
        return event.drawer

    def row(self, key: str, state: str) -> dict[str, object]:
        return {"drawer": state}


@pytest.fixture(autouse=True)
def _no_upcasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upcasting, "_steps", {})


def mend() -> None:
    d.upcast("Filed", version=1)(lambda old: {"drawer": old["place"]})


async def file_as_before(store: EmbeddedStore) -> None:
    """Appends two events of version 1, which have no upcast yet."""
    for place in ("top", "bottom"):
        await store.append("letter", [es.NewEvent("Filed", {"place": place})], es.ANY)


async def test_a_reaction_gets_a_parked_event_upcast(tmp_path: Path) -> None:
    app, seen = d.Domain(), list[Filed]()

    @app.reacts(Filed)
    async def note(event: Filed, send: d.Send) -> None:
        seen.append(event)

    async def send(command: object, command_id: str, *, metadata: object) -> None:
        raise AssertionError("it sends nothing")

    async with es.open_store(tmp_path / "store") as store:
        await file_as_before(store)
        reactor = Reactor(store, app, send, FileCheckpoint(tmp_path / "reactions.json"))
        await reactor.run(until_caught_up=True, raises=True)
        run = reactor.runs["note"]
        assert [(each.version, each.why.partition(":")[0]) for each in run.parked] == [
            (1, "UnknownEvent"),
            (2, "waits for version 1"),
        ]
        assert (await run.retry(None, "ada", "not yet"), len(run.parked)) == (0, 2)
        mend()
        assert (await run.retry(None, "ada", "mended"), len(run.parked)) == (2, 0)
    assert seen == [Filed("top"), Filed("bottom")]


async def test_a_publication_makes_the_message_of_a_parked_event_upcast(tmp_path: Path) -> None:
    publication = Publication("drawers")
    publication.add(d.event_type(Filed), lambda event, stored: event.drawer.encode())
    async with es.open_store(tmp_path / "store") as store:
        await file_as_before(store)
        parked = ParkedMessages(store, "drawers")
        messages = PublishedEvents(str(store.opened.uuid), publication, parked)
        made = await messages.of([event async for event in store.read_all()])
        assert (made.messages, [each.version for each in parked.events]) == ([], [1, 2])
        mend()
        late = [await messages.late(each) for each in parked.events]
    assert [each.message[0] for each in late if isinstance(each, Late) and each.message] == [b"top", b"bottom"]


async def test_a_projection_folds_what_a_parked_key_skipped_upcast(tmp_path: Path) -> None:
    async def project(store: EmbeddedStore, *, retry: bool) -> int:
        target, progress = d.SQLiteTarget(tmp_path / "rows.db"), list[d.Progress]()
        await d.project(store, Drawers(), target, until_caught_up=True, retry_parked=retry, on_progress=progress.append)
        return progress[-1].parked_keys

    async with es.open_store(tmp_path / "store") as store:
        await file_as_before(store)
        assert [await project(store, retry=retry) for retry in (False, True)] == [1, 1]
        mend()
        assert await project(store, retry=True) == 0
    target = d.SQLiteTarget(tmp_path / "rows.db")
    target.open(Drawers())
    assert target.read(["letter"]) == {"letter": '"bottom"'}
    target.close()


async def test_what_failed_last_is_forgotten_with_the_last_parked_event_however_that_is_taken_off(tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await file_as_before(store)
        parked = Parking(store).of("note")
        events = [event async for event in store.read("letter")]
        await parked.park(events[0], "it fails", 1)
        assert await parked.park_behind(events[1])
        parked.error = "it fails"
        for left, event in ((1, events[0]), (0, events[1])):
            found = parked.first("letter")
            assert found is not None
            assert found.version == event.version
            await parked.unpark(found, "done", "eventstore", "its message was in the topic")
            assert (len(parked), parked.error) == (left, "it fails" if left else None)
