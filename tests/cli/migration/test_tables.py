"""Tables that are moved in: what becomes of rows, further runs, gaps, changed schemas, and what a comparison finds."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore import blocking
from tests.cli.processes import Server, output, refused, run, start
from tests.cluster.node_process import NodeProcess
from tests.waiting import wait_until

Serve = Callable[..., Server]
COLUMNS = ("position", "aggregate_id", "version", "type", "id", "time", "data", "metadata", "tags")


class Table:
    """A generic table of events in SQLite."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "old.db"
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        self.connection.execute(
            "CREATE TABLE events (position INTEGER PRIMARY KEY, aggregate_id TEXT, version INTEGER, type TEXT, id TEXT, "
            "time TEXT, data TEXT, metadata TEXT, tags TEXT)"
        )

    def add(self, aggregate_id: str, version: int, data: object = None, position: int | None = None, **more: Any) -> None:
        time = "2026-01-02T03:04:05.678901+00:00"
        values = (
            position,
            aggregate_id,
            version,
            more.get("type", "Happened"),
            more.get("id", f"{aggregate_id}-{version}"),
            time,
        )
        rest = (data if isinstance(data, str) else json.dumps(data), more.get("metadata"), more.get("tags"))
        self.connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, *rest))

    def arguments(self, server: Server | NodeProcess, *more: object) -> list[object]:
        target = server.store if isinstance(server, Server) else server.address
        columns = [word for name in COLUMNS for word in ("--column", f"{name}={name}")]
        return ["migrate", f"table:sqlite:{self.path}", target, "--data", "json", *columns, *more]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def events(server: Server) -> list[es.Event]:
    with blocking.connect(server.store) as store:
        return [event for event in store.read_all() if not event.aggregate_id.startswith("migration-")]


def test_rows_keep_all_they_have_and_a_further_run_takes_what_is_new(serve: Serve, table: Table) -> None:
    server = serve()
    table.add("a", 1, '{"n":1.10}', metadata='{"by": "me"}', tags='["t:1"]')
    table.add("b", 1, None)
    table.add("a", 2, 7)
    assert output(*table.arguments(server)) == "3 events copied (0 were there), up to position 3\n"
    first, second, third = events(server)
    assert (first.aggregate_id, first.version, first.type, first.command_id) == ("a", 1, "Happened", "a-1")
    assert (first.data, first.metadata, first.tags, first.is_json) == (b'{"n":1.10}', b'{"by": "me"}', ("t:1",), True)
    assert first.time.isoformat() == "2026-01-02T03:04:05.678901+00:00"
    assert (second.aggregate_id, third.aggregate_id, third.version) == ("b", "a", 2)
    table.add("b", 2, {"later": True})
    told = json.loads(output(*table.arguments(server, "--json", "--paused")))
    assert told == {"new": 1, "repeated": 0, "position": 4, "head": 4}
    assert json.loads(output(*table.arguments(server, "--verify", "--json")))["difference"] is None


def test_marks_keep_what_is_moved_in_from_having_consequences(serve: Serve, table: Table) -> None:
    server = serve()
    table.add("a", 1)
    output(*table.arguments(server, "--no-reactions", "--no-publish"))
    assert events(server)[0].metadata == b'{"no_reactions":true,"no_publish":true}'
    output(*table.arguments(server, "--no-reactions", "--no-publish", "--verify"))


@pytest.mark.parametrize("gaps", ["refuse", "close", "keep"])
def test_versions_that_are_missing_are_refused_closed_or_kept(serve: Serve, table: Table, gaps: str) -> None:
    server = serve()
    for version in (1, 2, 5):
        table.add("a", version, metadata='{"by": "me"}')
    if gaps == "refuse":
        assert "it follows version 2, so 2 versions are missing; --version-gaps close" in refused(*table.arguments(server))
        assert [event.version for event in events(server)] == [1, 2]
        table.connection.execute("DELETE FROM events WHERE version = 5")  # and what is mended goes on
        table.connection.executescript("UPDATE events SET position = position")
        table.add("a", 3, position=3)
        assert "was refuse in the last run and is keep" in refused(*table.arguments(server, "--version-gaps", "keep"))
    output(*table.arguments(server, "--version-gaps", gaps))
    output(*table.arguments(server, "--version-gaps", gaps, "--verify"))
    assert [event.version for event in events(server)] == [1, 2, 3]
    metadata = b'{"by": "me","source_version":5}' if gaps == "keep" else b'{"by": "me"}' if gaps == "close" else None
    assert events(server)[-1].metadata == metadata


@pytest.mark.parametrize("gaps", ["refuse", "close", "keep"])
def test_positions_that_are_missing_are_refused_closed_or_kept(serve: Serve, table: Table, gaps: str) -> None:
    server = serve()
    table.add("a", 1)
    table.add("a", 2, position=4)
    if gaps == "refuse":
        assert "position 4 follows 1, so 2 positions may be missing" in refused(*table.arguments(server))
        assert [event.version for event in events(server)] == [1]
        assert "position 4 follows 1" in refused(*table.arguments(server))
        output(*table.arguments(server, "--position-gaps", "close"))  # as that says
        output(*table.arguments(server, "--position-gaps", "close", "--verify"))
        return
    output(*table.arguments(server, "--position-gaps", gaps))
    assert [event.metadata for event in events(server)] == (
        [None, None] if gaps == "close" else [b'{"source_position":1}', b'{"source_position":4}']
    )
    assert "--position-gaps was" in refused(*table.arguments(server))


def test_a_schema_that_changed_between_runs_is_named_and_nothing_is_copied(serve: Serve, table: Table) -> None:
    server = serve()
    table.add("a", 1)
    output(*table.arguments(server))
    table.connection.executescript(
        "ALTER TABLE events RENAME COLUMN data TO old; ALTER TABLE events ADD COLUMN data JSONB; UPDATE events SET data = old"
    )
    table.connection.execute("INSERT INTO events (aggregate_id, version, type, id, data) VALUES ('a', 2, 'T', 'x', '1')")
    assert "events.data is jsonb, was text. Nothing was copied" in refused(*table.arguments(server))
    assert len(events(server)) == 1
    output(*table.arguments(server, "--accept-schema"))
    assert len(events(server)) == 2
    output(*table.arguments(server))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE events SET data = '{\"n\":2}' WHERE position = 2", "position 2 of the source, version 2 of .* its data is"),
        ("UPDATE events SET type = 'Other' WHERE position = 3", "position 3 .* its type is 'Other' there, and 'Happened'"),
        ("UPDATE events SET time = '2026-01-02T03:04:05Z' WHERE position = 1", "position 1 .* its time is"),
        ("UPDATE events SET metadata = '{}' WHERE position = 3", "position 3 .* its metadata is"),
        (
            "UPDATE events SET id = 'lost' WHERE position = 2",
            "position 2 .*'lost'.* not have it behind that of position 1",
        ),
        (
            "UPDATE events SET position = -position; UPDATE events SET position = position + 4",
            "position 2 .* not have it behind that of position 1",
        ),
    ],
)
def test_a_comparison_names_the_first_difference(serve: Serve, table: Table, change: str, says: str) -> None:
    server = serve()
    for version in (1, 2, 3):
        table.add("a", version, version)
    with blocking.connect(server.store) as store:
        store.append("other", [es.NewEvent("T")], 0)
    output(*table.arguments(server))
    assert output(*table.arguments(server, "--verify")).splitlines()[2].strip() == "1 event of others"
    table.connection.executescript(change)
    compared = run(*table.arguments(server, "--verify"))
    assert compared.returncode == 1
    assert re.search(f"the first difference: {says}", compared.stderr), compared.stderr


def test_a_row_that_is_no_event_ends_the_run_and_is_named(serve: Serve, table: Table) -> None:
    server = serve()
    table.add("a", 1)
    table.add("a", 2, "no JSON")
    assert "the row at position 2 is no event: Expecting value" in refused(*table.arguments(server))
    table.connection.execute("UPDATE events SET data = '1', id = '' WHERE position = 2")
    assert "the row at position 2 is no event: id is empty" in refused(*table.arguments(server))
    table.connection.execute("UPDATE events SET id = 'x', version = 0 WHERE position = 2")
    assert "version 0 is below 1; see --first-version" in refused(*table.arguments(server))


def test_positions_that_two_events_share_are_refused(serve: Serve, table: Table) -> None:
    server = serve()
    for version in (1, 2, 3):
        table.add("a", version)
    table.connection.executescript("ALTER TABLE events ADD COLUMN day INTEGER; UPDATE events SET day = (position + 1) / 2")
    arguments = [word if word != "position=position" else "position=day" for word in table.arguments(server)]
    assert "two events have position 1, which does not order them" in refused(*arguments)


def test_what_the_target_has_of_others_is_not_mixed_with_the_source(serve: Serve, table: Table) -> None:
    server = serve()
    table.add("a", 1)
    with blocking.connect(server.store) as store:
        store.append("a", [es.NewEvent("T")], 0, "somebody's")
    assert "the target has version 1 of it already, which did not come from there" in refused(*table.arguments(server))


def test_what_is_missing_or_unknown_on_the_command_line_is_named(serve: Serve, table: Table) -> None:
    server, source = serve(), f"table:sqlite:{table.path}"
    assert "it is not said which column is position" in refused("migrate", source, server.store, code=2)
    assert "a column is one of position" in refused("migrate", source, server.store, "--column", "x=y", code=2)
    assert "no name of a table" in refused(*table.arguments(server, "--table", "events; DROP TABLE events"), code=2)
    assert "there is no table other" in refused(*table.arguments(server, "--table", "other"))
    assert "one of the kinds table, message-db" in refused("migrate", "x:y", server.store, code=2)
    assert "which may be JSON or not; give --data" in refused(
        "migrate", source, server.store, *[str(each) for each in table.arguments(server)[5:]]
    )
    assert "allowed are refuse, close, keep" in refused(*table.arguments(server, "--version-gaps", "guess"), code=2)
    assert "unable to open" in refused("migrate", "eventsourcing:sqlite:/nowhere/x.db", server.store)
    assert "nothing was copied under this --name" in refused(*table.arguments(server, "--verify"))
    assert events(server) == []


def test_a_source_that_ends_before_where_the_last_run_came_is_another_one(serve: Serve, table: Table) -> None:
    server = serve()
    table.add("a", 1)
    table.add("a", 2)
    output(*table.arguments(server))
    table.connection.execute("DELETE FROM events WHERE position = 2")
    assert "ends at 1, and an earlier run came to 2" in refused(*table.arguments(server))


@pytest.mark.heavy
def test_each_shard_of_a_cluster_is_compared_by_itself(table: Table, tmp_path: Path) -> None:
    for number in range(40):
        table.add(f"a-{number % 8}", number // 8 + 1, number)
    with NodeProcess(tmp_path / "data", 2) as node:
        output(*table.arguments(node, "--name", "m"))
        told = json.loads(output(*table.arguments(node, "--name", "m", "--verify", "--json")))
        assert (told["source"], told["target"], told["difference"]) == (40, 40, None)
        table.connection.execute("UPDATE events SET data = 'null' WHERE position = 20")
        assert "position 20 of the source" in run(*table.arguments(node, "--name", "m", "--verify")).stderr


@pytest.mark.heavy
def test_a_run_that_is_killed_anywhere_is_completed_by_the_next(serve: Serve, table: Table, tmp_path: Path) -> None:
    server = serve()
    table.connection.execute("BEGIN")
    for number in range(60_000):
        table.add(f"a-{number % 500}", number // 500 + 1, number)
    table.connection.execute("COMMIT")
    for some in (1, 20_000, 40_000):
        kill_when(table.arguments(server), lambda some=some: server.stats()["events"] >= some)  # type: ignore[misc]
    output(*table.arguments(server))
    assert len(events(server)) == 60_000
    told = json.loads(output(*table.arguments(server, "--verify", "--json")))
    assert (told["source"], told["target"], told["difference"]) == (60_000, 60_000, None)
    assert told["source_checksum"] == told["target_checksum"]


def kill_when(command: list[object], condition: Callable[[], bool]) -> None:
    process = start(*command)
    try:
        wait_until(lambda: condition() or process.poll() is not None, "some are there")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "ALTER TABLE events ADD COLUMN place INTEGER; UPDATE events SET place = position WHERE position < 3",
            "rows have no place",
        ),
        ("ALTER TABLE events ADD COLUMN place INTEGER; UPDATE events SET place = position - 2", "one below 0, and so no place"),
        ("ALTER TABLE events ADD COLUMN place TEXT; UPDATE events SET place = position", "has 10 before 9"),
    ],
)
def test_rows_that_would_be_passed_over_are_refused(serve: Serve, table: Table, change: str, says: str) -> None:
    server = serve()
    for version in (1, 2, 3):
        table.add("a", version)
    table.connection.executescript(change)
    arguments = [word if word != "position=position" else "position=place" for word in table.arguments(server)]
    assert says in refused(*arguments)
    assert events(server) == []


def test_ids_that_are_bytes_are_refused(serve: Serve, table: Table) -> None:
    server = serve()
    table.add("a", 1, id=b"\x01\x02")
    assert "the row at position 1 is no event: id is bytes, and not text" in refused(*table.arguments(server))


def test_what_makes_other_events_of_rows_must_stay_the_same(serve: Serve, table: Table) -> None:
    server = serve()
    table.add("a", 1)
    output(*table.arguments(server, "--version-gaps", "close"))
    table.add("a", 2)
    more = "--version-gaps", "close", "--prefix", "old-"
    assert "--prefix is 'old-', was ''. Nothing was copied" in refused(*table.arguments(server, *more))
    assert [event.aggregate_id for event in events(server)] == ["a"]


@pytest.mark.parametrize("gaps", ["refuse", "close"])
@pytest.mark.parametrize("wrong", ["large", "reused"])
def test_nothing_of_an_aggregate_is_stored_behind_an_event_that_is_refused(
    serve: Serve, table: Table, gaps: str, wrong: str
) -> None:
    server = serve()
    table.add("a", 1)
    table.add("a", 2, ["x" * 5_000_000] if wrong == "large" else 7, id="a-2" if wrong == "large" else "a-1")
    table.add("a", 3)
    table.add("b", 1)  # which would come before what is missing, for good
    says = "the limit is" if wrong == "large" else "position 2 of"
    assert says in refused(*table.arguments(server, "--version-gaps", gaps))
    assert [event.command_id for event in events(server)] == ["a-1"]
    table.connection.execute("UPDATE events SET data = '2', id = 'a-2' WHERE position = 2")
    output(*table.arguments(server, "--version-gaps", gaps))
    output(*table.arguments(server, "--version-gaps", gaps, "--verify"))


def test_two_events_of_one_id_are_not_taken_for_one(serve: Serve, table: Table) -> None:
    server = serve()
    table.add("a", 1, 7)
    table.add("a", 2, 7, id="a-1")
    assert "version 2 of aggregate 'a', id 'a-1': version 1 has this id already" in refused(*table.arguments(server))
