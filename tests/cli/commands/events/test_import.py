from __future__ import annotations

import gzip
import json
import re
import signal
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from eventstore import NewEvent, Query, blocking
from tests.cli.processes import Server, fork, line, output, refused, run, start, wait_for

Serve = Callable[..., Server]
REAL_DATA = Path(__file__).parents[4].parent / "shared" / "data"


def _write(path: Path, lines: list[str]) -> Path:
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def _import(server: Server, *arguments: object) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(output("import", *arguments, "--json", store=server.store))
    return summary


def _counts(summary: dict[str, Any]) -> tuple[int, int, int]:
    return summary["new"], summary["repeated"], summary["refused"]


def _lines(count: int) -> list[str]:
    return [
        line(f"aggregate-{number % 50}", f"c-{number}", data={"number": number, "pad": "x" * 200}) for number in range(count)
    ]


def test_packed_and_plain_files_are_imported_once(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    files = [_write(tmp_path / "a.jsonl", _lines(700)[:400]), _write(tmp_path / "b.jsonl.gz", _lines(700)[400:])]
    assert _counts(_import(server, *files)) == (700, 0, 0)
    assert _counts(_import(server, *files)) == (0, 700, 0)
    assert server.stats()["events"] == 700
    events = output("read", "aggregate-7", "--raw", store=server.store).splitlines()
    assert [json.loads(data)["number"] for data in events] == list(range(7, 700, 50))


def test_history_gets_tags_by_export_and_import(serve: Serve, tmp_path: Path) -> None:
    old, new = serve(data=tmp_path / "old"), serve(data=tmp_path / "new")
    with blocking.connect(old.store) as store:
        for number in range(6):
            store.append(f"a-{number % 2}", [NewEvent("E", {"course": f"c{number % 3}"})], number // 2, f"k-{number}")
        before = list(store.read_all())
    exported = tmp_path / "all.jsonl"
    output("export", "-o", exported, store=old.store)
    found = [json.loads(each) for each in exported.read_text().splitlines()]
    with_tags = [{**each, "tags": [f"course:{each['data']['course']}"]} for each in found]
    tagged = _write(tmp_path / "tagged.jsonl", [json.dumps(each, separators=(",", ":")) for each in with_tags])
    assert _counts(_import(new, tagged)) == (6, 0, 0)
    with blocking.connect(new.store) as store:
        events, _ = store.query(Query(tags=["course:c1"]))
        assert [event.aggregate_id for event in events] == ["a-1", "a-0"]
        after = list(store.read_all())
    of = attrgetter("aggregate_id", "version", "type", "data", "command_id", "timestamp", "sequence")
    assert list(map(of, after)) == list(map(of, before))


def test_lines_of_one_command_form_one_commit(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    lines = [
        line("a", "c-1", "A"),
        line("a", "c-1", "B"),
        line("a", "c-2", "C"),
        line("b", "c-2", "D"),
        "",
        line("b", "c-2", "E"),
    ]
    summary = _import(server, _write(tmp_path / "a.jsonl", lines))
    assert (*_counts(summary), summary["commits"]) == (5, 0, 0, 3)
    with blocking.connect(server.store) as store:
        assert [(event.type, event.command_id) for event in store.read("a")] == [("A", "c-1"), ("B", "c-1"), ("C", "c-2")]
        done = store.find_command("b", "c-2")
        assert done is not None
        assert done.version == 2


def test_lines_that_are_not_events_are_counted_and_named(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    lines = [line("a", "c-1"), line("b", "c-2")[:-3], line("", "c-3"), line("c", "c-4", timestamp=None), line("d", "c-5")]
    path = _write(tmp_path / "a.jsonl", lines)
    result = run("import", path, "--json", store=server.store)
    assert result.returncode == 1
    summary = json.loads(result.stdout)
    assert (*_counts(summary), summary["held_back"]) == (2, 0, 3, 0)
    assert sorted(item["line"] for item in summary["refusals"]) == [2, 3, 4]
    assert "3 events were refused; correct" in result.stderr
    text = run("import", path, store=server.store)
    assert text.returncode == 1
    assert f"{path}, line 2: not a JSON object" in text.stdout
    assert server.stats()["events"] == 2


def test_every_refusal_is_named_in_a_file(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    commit = [line("a", "c-1"), "", line("a", "c-1", event_type="B"), line("a", "c-1")[:-1], line("a", "c-1")]
    path = _write(tmp_path / "a.jsonl", [*commit, *["rubbish"] * 1_500, line("b", "c-1")])
    first = run("import", path, store=server.store)
    assert "… and 1,491 more; --refusals FILE writes all of them" in first.stdout
    refusals = tmp_path / "refusals.jsonl"
    result = run("import", path, "--refusals", refusals, "--json", store=server.store)
    assert result.returncode == 1
    assert "1,504 events were refused, 1 held back because of them" in result.stderr
    assert f"(line 6 of {path} may belong to any commit, so nothing was imported); correct" in result.stderr
    written = [json.loads(item) for item in refusals.read_text().splitlines()]
    summary = json.loads(result.stdout)
    assert (summary["refused"], summary["refusals"], summary["refusals_not_shown"]) == (1_504, written[:1_000], 501)
    refused_commit = {"file": str(path), "line": 4, "events": 4, "why": "", "first": 1, "last": 5, "aggregate_id": "a"}
    assert next(item for item in written if item["aggregate_id"] == "a") | {"why": ""} == refused_commit
    assert [item["line"] for item in written if item["aggregate_id"] is None] == list(range(6, 1_506))
    kept = refusals.read_bytes()
    said = refused("import", path, "--refusals", refusals, store=server.store)
    assert said == f"{refusals}: exists; name another file for the refusals, or remove it"
    assert refusals.read_bytes() == kept
    shown = run("import", path, "--refusals", tmp_path / "more.jsonl", store=server.store).stdout
    assert f"… and 1,491 more; all are in {tmp_path / 'more.jsonl'}" in shown


def test_lines_of_a_command_that_are_no_neighbours_form_one_commit(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    coin, counted = line("box", "c-1", "CoinInserted", 50), line("till", "c-1", "CoinCounted", 50)
    path = _write(tmp_path / "a.jsonl", [coin, counted, coin, counted, coin, line("box", "c-2", "Closed")])
    summary = _import(server, path)
    assert (*_counts(summary), summary["commits"]) == (6, 0, 0, 3)
    with blocking.connect(server.store) as store:
        assert [event.type for event in store.read("box")] == [*["CoinInserted"] * 3, "Closed"]
        assert [event.type for event in store.read("till")] == ["CoinCounted"] * 2
    assert _counts(_import(server, path)) == (0, 6, 0)


def test_lines_of_a_command_around_another_one_of_its_aggregate_are_refused_and_nothing_of_it_is_stored(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve()
    path = _write(tmp_path / "a.jsonl", [line("a", "c-1", "A"), line("a", "c-2", "B"), line("a", "c-1", "A"), line("b", "c-1")])
    result = run("import", path, "--json", store=server.store)
    summary = json.loads(result.stdout)
    assert (*_counts(summary), summary["held_back"]) == (1, 0, 2, 1)
    assert "a line of another command of the aggregate stands between lines of this one" in summary["refusals"][0]["why"]
    assert output("read", "a", store=server.store) == ""


def test_standard_input_is_grouped_as_a_file_is(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    text = "\n".join([line("a", "c-1", "A"), line("b", "c-1", "B"), line("a", "c-1", "A")])
    summary = json.loads(output("import", "-", "--json", store=server.store, text=text))
    assert (*_counts(summary), summary["commits"]) == (3, 0, 0, 2)


def test_exports_that_overlap_are_imported_once(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    path = _write(tmp_path / "a.jsonl", [line("a", "c-1"), line("b", "c-1"), line("a", "c-2"), line("a", "c-2", "B")])
    _import(server, path)
    exported = [tmp_path / "e1.jsonl", tmp_path / "e2.jsonl"]
    output("export", "-o", exported[0], store=server.store)
    output("export", "-o", exported[1], "--after", "1", store=server.store)
    both = tmp_path / "both.jsonl"
    both.write_bytes(exported[0].read_bytes() + exported[1].read_bytes())
    other = serve(data=tmp_path / "other")
    assert _counts(_import(other, *exported)) == (4, 3, 0)
    assert _counts(_import(other, both)) == (0, 7, 0)
    with blocking.connect(other.store) as store:
        assert [(event.command_id, event.type) for event in store.read("a")] == [
            ("c-1", "Happened"),
            ("c-2", "Happened"),
            ("c-2", "B"),
        ]


def test_a_refused_line_holds_back_its_aggregate_and_a_second_import_puts_all_in_order(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    whole = [line(aggregate, f"c-{number}", f"Step{number}") for number in range(1, 6) for aggregate in ("a", "b", "c")]
    broken = list(whole)
    broken[6] = broken[6][:-5]  # step 3 of "a" is cut off
    broken[7] = line("b", "c-3", "Step3", data="x" * 4_300_000)  # step 3 of "b" is too large for the store
    path = _write(tmp_path / "a.jsonl", broken)
    result = run("import", path, store=server.store)
    assert "2 events were refused, 4 held back because of them; correct" in result.stderr
    assert "  held back            4  (because of refused lines)" in result.stdout
    summary = json.loads(run("import", path, "--json", store=server.store).stdout)
    assert (*_counts(summary), summary["held_back"]) == (0, 9, 2, 4)
    assert _counts(_import(server, _write(path, whole))) == (6, 9, 0)
    with blocking.connect(server.store) as store:
        for aggregate in ("a", "b", "c"):
            assert [event.type for event in store.read(aggregate)] == [f"Step{number}" for number in range(1, 6)]


def test_a_line_whose_aggregate_cannot_be_read_holds_back_everything(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    lines = [line("a", "c-1"), line("a", "c-2"), "{broken", line("b", "c-1"), line("a", "c-2"), line("a", "c-3")]
    result = run("import", _write(tmp_path / "a.jsonl", lines), "--json", store=server.store)
    summary = json.loads(result.stdout)
    assert (*_counts(summary), summary["held_back"]) == (0, 0, 1, 5)
    assert server.stats()["events"] == 0


def test_an_import_into_aggregates_with_other_events_keeps_the_order_behind_a_refusal(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with blocking.connect(server.store) as store:
        for number in range(3):
            store.append("a", [NewEvent("Live")], expected_version=number, command_id=f"live-{number}")
        store.append("a", [NewEvent("Other")], expected_version=3, command_id="c-2")
    lines = [line("a", f"c-{number}", f"Step{number}") for number in range(1, 7)]
    summary = json.loads(run("import", _write(tmp_path / "a.jsonl", lines), "--json", store=server.store).stdout)
    assert (*_counts(summary), summary["held_back"]) == (1, 0, 1, 4)  # command c-2 has other content
    with blocking.connect(server.store) as store:
        assert [event.type for event in store.read("a")] == ["Live", "Live", "Live", "Other", "Step1"]


def test_without_refusals_no_file_of_refusals_is_created(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    path = _write(tmp_path / "a.jsonl", _lines(3))
    output("import", path, "--refusals", tmp_path / "refusals", store=server.store)
    assert not (tmp_path / "refusals").exists()


def test_strict_stops_at_the_first_refusal(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    path = _write(tmp_path / "a.jsonl", [line("a", "c-1"), line("a", "c-2"), "{broken", line("a", "c-3")])
    result = run("import", path, "--strict", store=server.store)
    assert result.returncode == 1
    assert f"{path}, line 3" in result.stderr
    assert server.stats()["events"] == 0  # any commit before it may go on in it


@pytest.mark.parametrize("broken", [line("a", "c-1")[:-1], line("a", "c-1", timestamp="2027-01-01T00:00:00Z")])
def test_a_commit_with_a_bad_line_is_refused_whole(serve: Serve, tmp_path: Path, broken: str) -> None:
    server = serve()
    path = _write(tmp_path / "a.jsonl", [line("a", "c-1"), broken, line("a", "c-1"), line("b", "c-1")])
    result = run("import", path, "--json", store=server.store)
    summary = json.loads(result.stdout)
    assert _counts(summary) == (1, 0, 3)
    assert summary["refusals"][0]["line"] == 2
    assert output("read", "a", store=server.store) == ""


def test_of_a_truncated_file_nothing_is_stored(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    path = _write(tmp_path / "a.jsonl.gz", _lines(2_000))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    said = refused("import", path, store=server.store)
    assert f"{path} is damaged or cut off after line" in said
    assert "nothing was imported" in said
    assert server.stats()["events"] == 0
    path.write_bytes(whole)
    assert _counts(_import(server, path)) == (2_000, 0, 0)


def test_files_that_cannot_be_read_are_named_before_anything_is_sent(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    path = _write(tmp_path / "a.jsonl", _lines(3))
    assert "missing.jsonl: No such file" in refused("import", path, tmp_path / "missing.jsonl", store=server.store)
    assert "Is a directory" in refused("import", tmp_path, store=server.store)
    assert server.stats()["events"] == 0


def test_a_line_that_is_not_utf_8_is_refused(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("a", "c-1").encode() + b"\n" + line("b", "c-1", "\xff").encode("latin-1") + b"\n")
    path.write_bytes(path.read_bytes().replace(b"\\u00ff", b"\xff") + line("a", "c-2").encode())
    result = run("import", path, "--json", store=server.store)
    summary = json.loads(result.stdout)
    assert (*_counts(summary), summary["held_back"]) == (2, 0, 1, 0)
    assert summary["refusals"][0]["aggregate_id"] == "b"


def test_events_that_are_too_large_are_refused_and_the_rest_is_imported(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    path = _write(tmp_path / "a.jsonl", [line("a", "c-1", data="x" * 5_000_000), line("b", "c-2"), line("a", "c-2")])
    result = run("import", path, "--json", store=server.store)
    summary = json.loads(result.stdout)
    assert (*_counts(summary), summary["held_back"]) == (1, 0, 1, 1)
    assert "limit" in summary["refusals"][0]["why"]


def test_an_import_that_was_killed_is_finished_by_another(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    path = _write(tmp_path / "a.jsonl", _lines(30_000))
    importing = start("import", path, "--store", server.store)
    wait_for(lambda: server.stats()["events"] > 1_000, "the import has begun")
    importing.send_signal(signal.SIGKILL)
    importing.wait(30)
    before = server.stats()["events"]
    assert before < 30_000, "killed too late to show anything"
    new, repeated, rejected = _counts(_import(server, path))
    assert (new + repeated, rejected) == (30_000, 0)
    assert repeated >= before
    assert server.stats()["events"] == 30_000
    events = output("read", "aggregate-7", "--raw", store=server.store).splitlines()
    assert [json.loads(data)["number"] for data in events] == list(range(7, 30_000, 50))


def test_ctrl_c_reports_how_much_was_imported(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    # So many that it is under way when it is interrupted, also where asking for figures takes a second.
    path = _write(tmp_path / "a.jsonl", _lines(90_000))
    with open(tmp_path / "errors", "wb") as errors:
        importing = start("import", path, "--store", server.store, stderr=errors)
    wait_for(lambda: server.stats()["events"] > 1_000, "the import has begun")
    importing.send_signal(signal.SIGINT)
    assert importing.wait(30) == 130
    said = re.fullmatch(r"([\d,]+) events imported; run it again to continue\n", (tmp_path / "errors").read_text())
    assert said is not None
    new, repeated, _ = _counts(_import(server, path))
    assert (new + repeated, repeated >= int(said[1].replace(",", "")) > 0) == (90_000, True)


def test_an_import_survives_a_restart_of_the_server(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    listen = server.store.removeprefix("tcp://")
    path = _write(tmp_path / "a.jsonl", _lines(30_000))
    errors = tmp_path / "errors"
    with open(tmp_path / "summary", "wb") as summary, open(errors, "wb") as stderr:
        importing = fork("import", path, "--json", "--store", server.store, stdout=summary, stderr=stderr)
    wait_for(lambda: server.stats()["events"] > 1_000, "the import has begun")
    server.stop(signal.SIGKILL)
    wait_for(lambda: errors.read_text() == "connection lost, trying again for 30 s\n", "the loss is reported")
    again = serve("--listen", listen, data=server.data)
    assert importing.wait(60) == 0
    new, repeated, rejected = _counts(json.loads((tmp_path / "summary").read_text()))
    assert (new + repeated, rejected) == (30_000, 0)
    assert again.stats()["events"] == 30_000
    assert errors.read_text().splitlines()[1:] == ["connected again"]


def test_a_progress_bar_is_drawn_on_request(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    path = _write(tmp_path / "a.jsonl", _lines(10))
    shown = run("import", path, "--progress", store=server.store)
    assert "10 events" in shown.stderr
    assert run("import", path, store=server.store).stderr == ""


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="the real events are not here")
@pytest.mark.long
def test_real_events_replay_exactly_as_in_their_files(serve: Serve) -> None:
    server = serve("--file-size-bytes", str(16 * 1024 * 1024))
    files = sorted(REAL_DATA.glob("*.jsonl.gz"))
    expected: dict[str, list[Any]] = {}
    for path in files:
        with gzip.open(path, "rt") as lines:
            for text in lines:
                event = json.loads(text)
                expected.setdefault(event["aggregate_id"], []).append((event["command_id"], event["event_type"], event["data"]))
    count = sum(map(len, expected.values()))
    assert _counts(_import(server, *files)) == (count, 0, 0)
    assert _counts(_import(server, *files)) == (0, count, 0)
    with blocking.connect(server.store) as store:
        for aggregate_id, history in expected.items():
            replayed = [(event.command_id, event.type, event.json()) for event in store.read(aggregate_id)]
            assert replayed == history, aggregate_id
    assert server.stop() == 0
    assert "no faults" in output("verify", server.data)


@pytest.mark.parametrize(
    "lost", ['{"aggregate_id":"b","command_id":"c-9"rubbish', '{"aggregate_id":"b","command_id":"c-9","event_']
)
def test_a_line_that_cannot_be_read_may_have_swallowed_another_aggregates(serve: Serve, tmp_path: Path, lost: str) -> None:
    """What is left of a line and of the next one may look as one of the first: a gap of versions behind it tells."""
    server = serve()
    filtered = [line("c", "c-1", version=2), line("c", "c-2", version=3)]  # as in an export with a filter
    of_a = [line("a", f"c-{number}", version=number) for number in (1, 2, 3, 4)]
    path = _write(tmp_path / "a.jsonl", [filtered[0], of_a[0], lost, *of_a[2:], filtered[1]])
    result = run("import", path, "--json", store=server.store)
    assert _counts(json.loads(result.stdout)) == (3, 0, 2)
    assert "version 3 follows version 1 of the aggregate; what is between them may be lost in line 3" in result.stdout
    run("import", _write(tmp_path / "b.jsonl", [*filtered, *of_a]), store=server.store)
    with blocking.connect(server.store) as store:
        assert [event.command_id for event in store.read("a")] == ["c-1", "c-2", "c-3", "c-4"]


def test_a_foreign_cloudevent_that_is_there_twice_in_a_row_is_stored_once(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    one = {"specversion": "1.0", "id": "e-1", "source": "/s", "type": "T", "subject": "a", "data": 1}
    path = _write(tmp_path / "a.jsonl", [json.dumps(each) for each in (one, one, {**one, "id": "e-2"})])
    assert _counts(_import(server, path, "--format", "cloudevents")) == (2, 1, 0)
    changed = _write(tmp_path / "b.jsonl", [json.dumps({**one, "subject": "b", "data": data}) for data in (1, 2)])
    result = run("import", changed, "--format", "cloudevents", store=server.store)
    assert "there twice, with different content" in result.stdout + result.stderr
    with blocking.connect(server.store) as store:
        assert [(event.aggregate_id, event.command_id) for event in store.read_all()] == [("a", "/s e-1"), ("a", "/s e-2")]
