from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import eventstore as es
from eventstore import blocking
from tests.cli.processes import Server, output, refused, run

Serve = Callable[..., Server]


def _fill(server: Server) -> None:
    commits = [
        es.Commit(
            "a", [es.NewEvent("Json", {"n": 1.5, "text": "ü\n\u2028"}), es.NewEvent("Bytes", b"\x00\xff", b"meta")], 0, "c-1"
        ),
        es.Commit('ä "quoted"', [es.NewEvent("Json", None, {"by": "me"})], es.ANY, "c-1", 1),
        es.Commit("a", [es.NewEvent("Empty")], 2, "c-2"),
    ]
    with blocking.connect(server.store) as store:
        assert all(isinstance(outcome, es.Committed) for outcome in store.append_many(commits))


def _events(server: Server) -> list[es.Event]:
    with blocking.connect(server.store) as store:
        return list(store.read_all())


def test_an_imported_export_gives_equal_events(serve: Serve, tmp_path: Path) -> None:
    source, target = serve(), serve(data=tmp_path / "target")
    _fill(source)
    path = tmp_path / "all.jsonl.gz"
    output("export", "-o", path, store=source.store)
    with gzip.open(path, "rt") as lines:
        assert len(lines.readlines()) == 4
    output("import", path, store=target.store)
    assert _events(target) == _events(source)
    output("export", "-o", tmp_path / "again.jsonl.gz", store=target.store)
    assert gzip.decompress((tmp_path / "again.jsonl.gz").read_bytes()) == gzip.decompress(path.read_bytes())


def test_an_export_continues_at_the_position_of_the_last_one(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    _fill(server)
    told = run("export", "--aggregate", "a", "--position", "-o", tmp_path / "1.jsonl", store=server.store).stderr.splitlines()
    output("append", "a", "--type", "T", "--data", "1", store=server.store)
    more = run("export", "--after", told[-1], "--aggregate", "a", "--position", store=server.store)
    assert [json.loads(each)["sequence"] for each in more.stdout.splitlines()] == [5]
    assert more.stderr.splitlines()[-1] != told[-1]


def test_filters_select_the_exported_events(serve: Serve) -> None:
    server = serve()
    _fill(server)

    def exported(*options: object) -> list[int]:
        return [json.loads(item)["sequence"] for item in output("export", *options, store=server.store).splitlines()]

    assert exported() == [1, 2, 3, 4]
    assert exported("--after", 2) == [3, 4]
    assert exported("--type", "Json") == [1, 3]
    assert exported("--type", "Json", "--type", "Empty") == [1, 3, 4]
    assert exported("--aggregate", "a") == [1, 2, 4]
    assert exported("--from-time", "1970-01-01T00:00:00.000001Z", "--to-time", "1970-01-01T00:00:00.000001Z") == [3]
    assert exported("--from-time", "1970-01-01T00:00:00.000002Z") == [1, 2, 4]
    assert exported("--prefix", "ä") == exported("--prefix", "ä", "-o", "-") == [3]


def test_what_follows_a_position_is_shown_and_a_position_of_another_history_is_refused(serve: Serve) -> None:
    server = serve()
    _fill(server)
    with blocking.connect(server.store) as store:
        stream = store.read_all()
        next(stream), next(stream)
        after = str(stream.position)
    for command in (["export"], ["tail", "--no-follow", "--json"]):
        lines = output(*command, "--after", after, store=server.store).splitlines()
        assert [json.loads(line)["event_type"] for line in lines] == ["Json", "Empty"]
        other = after[:-8] + "00000000"
        assert "has another event there" in refused(*command, "--after", other, store=server.store)


def test_a_file_that_cannot_be_written_is_named(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    missing = tmp_path / "missing"
    assert refused("export", "-o", missing / "all.jsonl", store=server.store) == f"{missing}: does not exist; create it first"


def test_an_existing_file_is_overwritten_only_on_request(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    _fill(server)
    path = tmp_path / "all.jsonl"
    path.write_text("precious")
    assert refused("export", "-o", path, store=server.store) == f"{path}: exists; --force overwrites it"
    assert path.read_text() == "precious"
    output("export", "-o", path, "--force", store=server.store)
    assert len(path.read_text().splitlines()) == 4
    assert "name a file" in refused("export", "-o", tmp_path, "--force", store=server.store)


def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    refused("export", "-o", tmp_path / "all.jsonl", store="tcp://127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []


def test_an_imported_export_of_cloudevents_gives_equal_events(serve: Serve, tmp_path: Path) -> None:
    source, target = serve(), serve(data=tmp_path / "target")
    _fill(source)
    with blocking.connect(source.store) as store:
        writes = [es.Write(name, [es.NewEvent("Moved", {}, None, ["t"])], 0) for name in ("{x}1", "{x}2")]
        store.commit(writes, command_id="c-3")
    path = tmp_path / "all.jsonl"
    output("export", "--format", "cloudevents", "-o", path, store=source.store)
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    assert [line["id"] for line in lines] == ["a/1", "a/2", 'ä "quoted"/1', "a/3", "{x}1/1", "{x}2/1"]
    assert [line.get("esjointevents") for line in lines[-2:]] == ["2", "2"]
    output("import", path, "--format", "cloudevents", store=target.store)
    assert _events(target) == _events(source)
    lines[0].pop("type")
    path.write_text("\n".join(map(json.dumps, lines)))
    assert "may belong to any commit, so nothing was imported" in refused(
        "import", path, "--format", "cloudevents", store=target.store
    )
