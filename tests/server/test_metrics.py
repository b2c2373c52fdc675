"""Metrics and health over HTTP, and the log: one structured line per event."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request

import pytest
import trio

import eventstore as es
from eventstore.protocol.requests import Hello, Ping
from tests.server.conftest import Launch, Serve
from tests.server.raw import Ok, RawClient
from tests.waiting import wait_until


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


def metrics(address: str) -> dict[str, float]:
    lines = [line for line in fetch(f"{address}/metrics").splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_metrics_count_appends_and_requests(serve: Serve) -> None:
    server = serve(http="127.0.0.1:0")
    before = metrics(server.http)
    assert before["eventstore_events_total"] == 0
    with es.blocking.connect(server.address) as store:
        store.append("a", [es.NewEvent("T"), es.NewEvent("T")], 0, "c-1")
        store.append("a", [es.NewEvent("T"), es.NewEvent("T")], 0, "c-1")
        with pytest.raises(es.VersionConflict):
            store.append("a", [es.NewEvent("T")], 0, "c-2")
        after = metrics(server.http)
        assert after["eventstore_connections"] == 1
    expected = {
        "events_total": 2, "duplicates_total": 1, "conflicts_total": 1, "refused_total": 0, "event_files": 1,
        "connections_accepted_total": 1, "bad_requests_total": 0, "poisoned": 0, "subscriptions": 0, "waiting_bytes": 0,
    }  # fmt: skip
    assert {name: after[f"eventstore_{name}"] for name in expected} == expected
    assert after["eventstore_batches_total"] >= 1
    assert 0 < after["eventstore_write_seconds_total"] < 30
    assert after["eventstore_requests_total"] >= 4
    kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", fetch(f"{server.http}/metrics")))
    assert kinds["eventstore_events_total"] == "counter"
    assert kinds["eventstore_connections"] == "gauge"


def test_health_reports_healthy_and_the_stats(serve: Serve) -> None:
    server = serve(http="127.0.0.1:0")
    answer = json.loads(fetch(f"{server.http}/health"))
    assert answer["healthy"] is True
    assert answer["events"] == 0
    assert answer["durability"] == "sync"


def test_health_and_metrics_name_the_file_that_stops_the_sorting(serve: Serve) -> None:
    server = serve(http="127.0.0.1:0", sort=False, file_size_bytes=65536)
    with es.blocking.connect(server.address) as store:
        store.append_many([es.Commit("a", [es.NewEvent("T", bytes(2000))], es.ANY) for _ in range(100)])
    assert json.loads(fetch(f"{server.http}/health"))["attention"] is None
    assert metrics(server.http)["eventstore_sort_stopped_at_file"] == 0
    file = server.data / "events" / "0000000001.events"
    content = bytearray(file.read_bytes())
    content[20_000] ^= 1
    file.write_bytes(content)
    server.ask(lambda server: trio.lowlevel.spawn_system_task(server.store.maintenance.run))
    wait_until(lambda: metrics(server.http)["eventstore_sort_stopped_at_file"] == 1, "sorting stops")
    answer = json.loads(fetch(f"{server.http}/health"))
    assert answer["healthy"] is True
    assert answer["attention"].startswith(f"sorting stopped at event file 1: {file}: corrupt at byte offset ")
    assert "eventstore verify" in answer["attention"]
    assert metrics(server.http)["eventstore_sort_failures_total"] == 1


def test_other_pages_are_not_found(serve: Serve) -> None:
    server = serve(http="127.0.0.1:0")
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetch(f"{server.http}/else")
    with caught.value as answer:
        assert answer.code == 404
        assert b"/metrics, /health" in answer.read()


def test_a_scraper_that_sends_no_request_does_not_block_others(serve: Serve) -> None:
    server = serve(http="127.0.0.1:0")
    host, port = server.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))) as half:
        half.sendall(b"GET /met")
        assert json.loads(fetch(f"{server.http}/health"))["healthy"] is True
        with RawClient(server.port) as client:
            assert client.ask(Ping()) == Ok()


def test_the_log_is_one_line_of_json_per_event(launch: Launch) -> None:
    server = launch(http="127.0.0.1:0", idle_timeout_s=0.2, hello_timeout_s=0.2)
    with RawClient(server.port, greet=False) as silent, RawClient(server.port) as idle:
        assert silent.is_gone()
        assert idle.is_gone()
    wait_until(lambda: len([line for line in server.lines() if "closing a connection" in line["event"]]) == 2, "two lines")
    assert server.terminate() == 0
    lines = server.lines()
    assert len(lines) == len(server.log().splitlines())
    for line in lines:
        assert {"event", "level", "timestamp"} <= line.keys()
    assert [line["event"] for line in lines if line["event"] in ("serving", "stopping", "stopped")] == [
        "serving",
        "stopping",
        "stopped",
    ]
    serving = server.said("serving")[0]
    assert serving["data"] == str(server.data)
    assert serving["address"] == server.address
    assert serving["events"] == serving["event_files"] == serving["torn_bytes"] == 0
    closing = sorted(line["event"] for line in lines if "closing a connection" in line["event"])
    assert closing == [
        "closing a connection (no hello): no hello for 0.2 s",
        "closing a connection (raw): no request for 0.2 s",
    ]


def test_a_client_cannot_inject_lines_into_the_log(launch: Launch) -> None:
    server = launch(idle_timeout_s=0.2, log_format="console", wait=False)
    wait_until(lambda: "address=tcp" in server.log(), "the server starts")
    port = int(re.findall(r"address=tcp://127.0.0.1:(\d+)", server.log())[0])
    with RawClient(port, greet=False) as client:
        client.ask(Hello(1, 'x\n2026-01-01 [error] everything is lost\x1b[2J"'))
        assert client.is_gone()
    wait_until(lambda: "closing a connection" in server.log(), "the line")
    assert server.terminate() == 0
    assert [line for line in server.log().splitlines() if "everything is lost" in line] == [
        line for line in server.log().splitlines() if "closing a connection" in line
    ]
    assert "\x1b" not in server.log()
