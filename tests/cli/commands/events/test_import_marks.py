"""`eventstore import` into a system that runs: events of years ago do nothing today, and fit the domain or stay out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore import blocking
from eventstore.errors import InvalidArgument
from eventstore.import_marks import MARKS, NO_PUBLISH, NO_REACTIONS, is_marked, marked
from tests.cli.processes import Server, line, output, run
from tests.server.outbox.test_outbox_killed import published
from tests.server_thread import ServerThread
from tests.waiting import wait_until

DOMAIN = "tests.cli.commands.events.test_import_marks:app"
app = d.Domain()


@dataclass(frozen=True)
class Add:
    counter: str
    n: int


@dataclass(frozen=True)
class Note:
    note: str


@dataclass(frozen=True)
class Added:
    n: int


@dataclass(frozen=True)
class Noted:
    pass


class Counter(d.Aggregate):
    total = 0

    @d.applies(Added)
    def _(self, event: Added) -> None:
        self.total += event.n

    @d.applies(Noted)
    def _(self, event: Noted) -> None: ...


@app.handles(Add)
def add(command: Add, counter: Counter) -> None:
    counter.apply(Added(counter.total + command.n))


@app.handles(Note)
def note(command: Note, counter: Counter) -> None:
    counter.apply(Noted())


@app.reacts(Added)
async def reaction(event: Added, send: d.Send) -> None:
    await send(Note(f"note-{send.cause.aggregate_id}"))


@app.publishes("numbers", Added)
def number(event: Added, stored: es.Event) -> object:
    return event.n


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data", domain=DOMAIN, publish="all") as server:
        yield server


def _write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_marked_events_run_no_reaction_and_are_not_published_and_all_others_see_them(
    running: ServerThread, tmp_path: Path
) -> None:
    old = _write(tmp_path / "old.jsonl", line("a", "old-1", "Added", {"n": 1}), line("a", "old-2", "Added", {"n": 2}))
    output("import", old, "--no-reactions", "--no-publish", store=running.address)
    with blocking.connect(running.address) as store:
        store.send(Add("a", 10), command_id="new")
        wait_until(lambda: next(iter(store.read("note-a")), None), "the reaction to the new event")
        wait_until(lambda: published(store, "numbers"), "the new event is published")
        wait_until(lambda: len(published(store, "all")) == 2, "all new events are published")
        assert [event.json() for event in store.read("a")] == [{"n": 1}, {"n": 2}, {"n": 13}]  # the aggregate has seen them
        assert [event.causation_id for event in store.read("note-a")] == ["a/3"]
        assert [message.body for message in published(store, "numbers")] == [b"13"]
        assert [message.properties["sequence"] for message in published(store, "all")] == ["3", "4"]
    exported = output("export", "--aggregate", "a", store=running.address)
    assert all(json.loads(each)["metadata"] == dict.fromkeys(MARKS, True) for each in exported.splitlines()[:2])


def test_either_mark_is_given_alone_and_an_import_without_them_acts_as_before(running: ServerThread, tmp_path: Path) -> None:
    for number, options in enumerate(([], ["--no-reactions"], ["--no-publish"])):
        path = _write(tmp_path / f"{number}.jsonl", line(f"c{number}", "old", "Added", {"n": number}))
        output("import", path, *options, store=running.address)
    with blocking.connect(running.address) as store:
        wait_until(lambda: len(published(store, "numbers")) == 2, "two are published")
        wait_until(lambda: next(iter(store.read("note-c2")), None), "the last one is reacted to")
        assert [message.body for message in published(store, "numbers")] == [b"0", b"1"]
        assert [bool([*store.read(f"note-c{number}")]) for number in range(3)] == [True, False, True]


def test_nothing_is_stored_unless_every_event_fits_the_domain(shared: Server, tmp_path: Path) -> None:
    good = [line("fits-a", "c-1", "Added", {"n": 1}), line("fits-b", "c-1", "Added", {"n": 2}, metadata={"schema": 1})]
    odd = [
        line("fits-c", "c-1", "Added", {"wrong": 1}),
        line("fits-d", "c-1", "Aded", {"n": 1}),
        line("fits-e", "c-1", "Added", {"n": "1"}),
        line("fits-f", "c-1", "Added", {"n": 1}, metadata={"schema": 7}),
    ]
    path = _write(tmp_path / "a.jsonl", good[0], *odd, good[1])
    refused = run("import", path, "--domain", DOMAIN, "--json", store=shared.store)
    assert refused.returncode == 1
    assert "4 events were refused, 2 held back because of them, and nothing was imported" in refused.stderr
    found = json.loads(refused.stdout)
    assert (found["new"], [each["line"] for each in found["refusals"]]) == (0, [2, 3, 4, 5])
    whys = [each["why"] for each in found["refusals"]]
    assert "'Added'" in whys[0]
    assert "field wrong" in whys[0]
    assert whys[1] == f"{DOMAIN} has no event type 'Aded'; it has: Added, Noted"
    assert "field n" in whys[2]
    assert "version 7" in whys[3]
    with blocking.connect(shared.store) as store:
        assert not [*store.read_all(aggregate_prefix="fits-")]
    imported = json.loads(
        output("import", _write(tmp_path / "b.jsonl", *good), "--domain", DOMAIN, "--json", store=shared.store)
    )
    assert imported["new"] == 2


def test_a_line_whose_metadata_cannot_be_marked_is_refused(shared: Server, tmp_path: Path) -> None:
    lines = [line("odd-a", "c-1", metadata=[1]), line("odd-b", "c-1", metadata={"no_publish": 0}), line("odd-c", "c-1")]
    result = run("import", _write(tmp_path / "a.jsonl", *lines), "--no-publish", "--json", store=shared.store)
    assert result.returncode == 1
    found = json.loads(result.stdout)
    assert (found["new"], [each["line"] for each in found["refusals"]]) == (1, [1, 2])
    assert "is not a JSON object" in found["refusals"][0]["why"]
    assert "another value than true" in found["refusals"][1]["why"]


def test_a_mark_keeps_the_metadata_as_they_are_spelled() -> None:
    event = tuple.__new__(es.NewEvent, (3, "A", b"1", b' { "x": 1.0, "no_publish": true } '))
    assert marked(event, [NO_PUBLISH]) is event
    assert marked(event, MARKS).metadata == b'{ "x": 1.0, "no_publish": true ,"no_reactions":true}'
    assert marked(es.NewEvent("A"), [NO_REACTIONS]).metadata == b'{"no_reactions":true}'
    assert marked(es.NewEvent("A", b"", {}), [NO_REACTIONS]).metadata == b'{"no_reactions":true}'
    with pytest.raises(InvalidArgument, match="not a JSON object"):
        marked(es.NewEvent("A", b"", b"bytes"), [NO_REACTIONS])


@pytest.mark.parametrize(
    ("metadata", "is_json", "is_so"),
    [
        (b'{"no_publish":true}', True, True),
        (rb'{"no\u005fpublish": true}', True, True),
        (b'{"no_publish":1}', True, False),
        (b'{"no_publish":true}', False, False),
        (b'["no_publish"]', True, False),
        (b'no_publish"', True, False),
        (b'{"no_reactions":true}', True, False),
        (None, False, False),
    ],
)
def test_an_event_is_marked_by_the_value_true_only(metadata: bytes | None, is_json: bool, is_so: bool) -> None:
    event = tuple.__new__(es.Event, ("a", 1, "A", b"1", metadata, "c", 0, 1, 3 if is_json else 0))
    assert is_marked(event, NO_PUBLISH) is is_so
