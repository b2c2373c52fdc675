"""The object-centric event log has every event with its objects and attributes, in both forms, as the standard says."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore import blocking
from eventstore.cli.transfer.object_log import JsonObjectLog, SqliteObjectLog
from tests.cli.processes import Server, refused, run

Serve = Callable[..., Server]
REAL = Path(__file__).parents[5] / "shared" / "data" / "domestic_declarations.jsonl.gz"


def stored(aggregate_id: str, version: int, event: es.NewEvent, time: int) -> es.Event:
    format_, type_, data, metadata = event
    return tuple.__new__(es.Event, (aggregate_id, version, type_, data, metadata, "c", time, version, format_))


def some_events() -> list[es.Event]:
    """Orders that are placed and paid, and what is hard to write: types and attributes that SQL would take for the same."""
    given = [
        ("order-1", es.NewEvent("Placed", {"total": 3, "Total": 2.5, "note": 'é\n"x"'}, tags=["customer:c1", "vip"])),
        ("order-1", es.NewEvent("Paid", {"total": 2.5, "yes": True, "parts": [1, {"a": None}], "none": None})),
        ("{ordér}-2", es.NewEvent("placed!", {"total": "many", "ocel_id": 2**70, 'a"b': 1})),
        ("42", es.NewEvent("placed?", b"\x00raw")),
        ("order-1", es.NewEvent("Paid", {"total": 7}, tags=["customer:c1"])),
        ("order-3", es.NewEvent("map_type", [1, 2])),
    ]
    return [stored(name, place, event, place * 1_000_000) for place, (name, event) in enumerate(given, 1)]


def json_log(folder: Path, events: list[es.Event]) -> dict[str, Any]:
    with (folder / "log.json").open("w", encoding="utf-8") as file, JsonObjectLog(file) as log:
        for event in events:
            log.add(event)
    return dict(json.loads((folder / "log.json").read_text("utf-8")))


def test_json_has_events_objects_and_the_types_of_all_attributes(tmp_path: Path) -> None:
    log = json_log(tmp_path, some_events())
    assert {each["id"]: each["type"] for each in log["objects"]} == {
        "order-1": "order",
        "customer:c1": "customer",
        "vip": "tag",
        "{ordér}-2": "ordér",
        "42": "object",
        "order-3": "order",
    }
    first = log["events"][0]
    assert (first["id"], first["type"], datetime.fromisoformat(first["time"]).timestamp()) == ("order-1/1", "Placed", 1)
    assert first["relationships"] == [
        {"objectId": "order-1", "qualifier": "aggregate"},
        {"objectId": "customer:c1", "qualifier": "tag"},
        {"objectId": "vip", "qualifier": "tag"},
    ]
    assert {each["name"]: each["value"] for each in first["attributes"]} == {"total": "3", "Total": "2.5", "note": 'é\n"x"'}
    types = {each["name"]: {one["name"]: one["type"] for one in each["attributes"]} for each in log["eventTypes"]}
    assert types["Placed"] == {"total": "integer", "Total": "float", "note": "string"}
    assert types["Paid"] == {"total": "float", "yes": "boolean", "parts": "string"}
    assert {each["name"] for each in log["objectTypes"]} == {each["type"] for each in log["objects"]}
    declared = {each["name"] for each in log["eventTypes"]}
    assert all(each["type"] in declared for each in log["events"])


def test_sqlite_has_the_same(tmp_path: Path) -> None:
    with SqliteObjectLog(tmp_path / "log.sqlite") as log:
        for event in some_events():
            log.add(event)
    expected = json_log(tmp_path, some_events())
    with sqlite3.connect(tmp_path / "log.sqlite") as found:
        assert found.execute("PRAGMA foreign_key_check").fetchall() == []
        assert found.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert dict(found.execute("SELECT * FROM object")) == {each["id"]: each["type"] for each in expected["objects"]}
        assert dict(found.execute("SELECT * FROM event")) == {each["id"]: each["type"] for each in expected["events"]}
        links = {
            (each["id"], one["objectId"], one["qualifier"]) for each in expected["events"] for one in each["relationships"]
        }
        assert set(found.execute("SELECT * FROM event_object")) == links
        names = dict(found.execute("SELECT * FROM event_map_type"))
        assert len({each.casefold() for each in names.values()}) == len(names) == 5
        assert found.execute(f'SELECT total, "Total_", note FROM "event_{names["Placed"]}"').fetchall() == [(3, 2.5, 'é\n"x"')]
        assert found.execute(f'SELECT "ocel_id_", "a""b" FROM "event_{names["placed!"]}"').fetchall() == [(str(2**70), 1)]
        counts = [found.execute(f'SELECT count(*) FROM "event_{each}"').fetchone()[0] for each in names.values()]
        assert sum(counts) == len(expected["events"])
    found.close()


def test_a_file_gets_its_name_when_it_is_complete_and_none_is_overwritten(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with blocking.connect(server.store) as store:
        store.append("order-1", [es.NewEvent("Placed", {"n": 1})], 0)
        store.append("cart-1", [es.NewEvent("Filled")], 0)
    for name in ("log.json", "log.sqlite"):
        done = run("ocel", tmp_path / name, "--prefix", "order-", store=server.store)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (0, f"1 event of 1 object written to {tmp_path / name}")
        assert "--force" in refused("ocel", tmp_path / name, store=server.store)
        assert run("ocel", tmp_path / name, "--force", store=server.store).returncode == 0
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    assert ".json" in refused("ocel", tmp_path / "log.xml", store=server.store, code=2)
    assert sorted(path.name for path in tmp_path.glob("log*")) == ["log.json", "log.sqlite"]


@pytest.mark.skipif(not REAL.exists(), reason="the real events are not part of the project")
def test_real_events_keep_their_order_and_their_cases(tmp_path: Path) -> None:
    events, versions = list[es.Event](), dict[str, int]()
    with gzip.open(REAL, "rt", encoding="utf-8") as lines:
        for _, line in zip(range(5_000), lines, strict=False):
            each = json.loads(line)
            name = each["aggregate_id"]
            version = versions[name] = versions.get(name, 0) + 1
            time = int(datetime.fromisoformat(each["timestamp"]).timestamp() * 1_000_000)
            events.append(stored(name, version, es.NewEvent(each["event_type"], each["data"]), time))
    log = json_log(tmp_path, events)
    assert len(log["events"]) == 5_000
    assert {each["type"] for each in log["objects"]} == {"declaration"}
    assert len(log["objects"]) == len(versions)
    amounts = {one["type"] for each in log["eventTypes"] for one in each["attributes"] if one["name"] == "Amount"}
    assert amounts == {"float"}
