"""Commits of several aggregates in files of lines: one commit in the store that they come from and in the one they go to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore import blocking
from eventstore.cli.transfer import line_source
from eventstore.cli.transfer.event_lines import JointMark, LineRefused, format_event, parse_line
from eventstore.cli.transfer.joint_events import marked_events
from eventstore.cli.transfer.line_source import CommandLines, JointLines, LineSource
from eventstore.model import LEFT_SHIFT, Event
from tests.cli.processes import Server, line, output, run

Serve = Callable[..., Server]
A, B = es.NewEvent("A", {"n": 1}), es.NewEvent("B", b"\x00", {"by": "me"})


def joint(commit: int, events: int, *lines: tuple[str, str]) -> list[str]:
    """Returns lines, of aggregate and type each, with the mark of a joint commit."""
    return [line(name, f"c-{commit}", kind, joint_commit=commit, joint_events=events) for name, kind in lines]


def source(path: Path, lines: list[str]) -> LineSource:
    (file := path / "lines.jsonl").write_text("".join(f"{each}\n" for each in lines))
    found = LineSource([str(file)])
    found.survey()
    return found


def described(found: LineSource) -> list[tuple[list[tuple[str, int]], str | None]]:
    described = list[tuple[list[tuple[str, int]], str | None]]()
    for group in found.groups():
        parts = group.parts if isinstance(group, JointLines) else [group] if isinstance(group, CommandLines) else []
        described.append(([(part.aggregate_id, len(part.events)) for part in parts], group.why))
    return described


def filled(server: Server) -> None:
    with blocking.connect(server.store) as store:
        store.append("a", [A], 0, "c-1")
        store.commit([es.Write("a", [A, B], 1), es.Write("b", [B], 0), es.Write("c", [A], es.ANY)], command_id="c-2")
        store.append("b", [B], 1, "c-3")
        store.commit([es.Write("c", [A], 1), es.Write("b", [A, A], 2)], command_id="c-4", timestamp=7)


def events_of(server: Server) -> list[es.Event]:
    with blocking.connect(server.store) as store:
        return list(store.read_all())


def summary(server: Server, *files: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output("import", *files, "--json", store=server.store))
    return found


def test_an_imported_export_has_the_same_joint_commits(serve: Serve, tmp_path: Path) -> None:
    one, other = serve(), serve(data=tmp_path / "other")
    filled(one)
    path = tmp_path / "all.jsonl"
    output("export", "-o", path, store=one.store)
    found = summary(other, path)
    assert (found["new"], found["repeated"], found["commits"]) == (9, 0, 4)
    assert events_of(other) == events_of(one)
    assert [event.commit_continues for event in events_of(other)] == [False, *[True] * 3, False, False, True, True, False]
    found = summary(other, path, path)
    assert (found["new"], found["repeated"], found["misplaced"], found["commits"]) == (0, 18, 0, 8)
    with blocking.connect(other.store) as store:
        again = store.commit([es.Write("a", [A, B], 1), es.Write("b", [B], 0), es.Write("c", [A], es.ANY)], command_id="c-2")
        assert [(done.version, done.duplicate) for done in again] == [(3, True), (1, True), (1, True)]


def test_what_a_filter_leaves_out_is_no_part_of_the_commit_any_more(serve: Serve, tmp_path: Path) -> None:
    one, other = serve(), serve(data=tmp_path / "other")
    filled(one)
    lines = output("export", "--aggregate", "b", store=one.store)
    assert "joint" not in lines
    lines = output("export", "--type", "B", store=one.store)
    assert [(each["aggregate_id"], each.get("joint_events")) for each in map(json.loads, lines.splitlines())] == [
        ("a", 2),
        ("b", 2),
        ("b", None),
    ]
    output("import", "-", store=other.store, text=lines)
    assert [(event.aggregate_id, event.commit_continues) for event in events_of(other)] == [
        ("a", True),
        ("b", False),
        ("b", False),
    ]


def test_a_commit_that_lacks_a_line_is_refused_with_what_follows_of_its_aggregates(serve: Serve, tmp_path: Path) -> None:
    one, other = serve(), serve(data=tmp_path / "other")
    filled(one)
    lines = output("export", store=one.store).splitlines(keepends=True)
    (path := tmp_path / "broken.jsonl").write_text("".join(lines[:2] + lines[3:]))
    result = run("import", path, store=other.store)
    assert result.returncode == 1
    assert "line 4: 3 lines of the 4 of commit 5, which is of several aggregates, follow each other here" in result.stdout
    assert "(lines 2 to 4 are one commit)" in result.stdout
    assert "3 events were refused, 4 held back" in result.stderr
    assert [event.aggregate_id for event in events_of(other)] == ["a"]
    path.write_text("".join(lines))
    assert summary(other, path)["new"] == 8
    assert events_of(other) == events_of(one)


def test_a_commit_that_the_store_refuses_holds_back_all_its_aggregates(serve: Serve, tmp_path: Path) -> None:
    one, other = serve(), serve(data=tmp_path / "other")
    filled(one)
    path = tmp_path / "all.jsonl"
    output("export", "-o", path, store=one.store)
    with blocking.connect(other.store) as store:
        store.append("c", [B], 0, "c-2")  # what the store knows it by is another commit
    result = run("import", path, store=other.store)
    assert "all.jsonl, line 2: command 'c-2' " in result.stdout
    assert "4 events were refused, 4 held back" in result.stderr
    assert [event.aggregate_id for event in events_of(other)] == ["c", "a"]


def test_aggregates_that_were_imported_one_by_one_have_the_commit_already(serve: Serve, tmp_path: Path) -> None:
    one, other = serve(), serve(data=tmp_path / "other")
    filled(one)
    lines = [json.loads(each) for each in output("export", store=one.store).splitlines()]
    apart = [{name: value for name, value in each.items() if not name.startswith("joint_")} for each in lines]
    output("import", "-", store=other.store, text="".join(json.dumps(each) + "\n" for each in apart))
    (path := tmp_path / "all.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    found = summary(other, path)
    assert (found["new"], found["repeated"]) == (0, 9)


def test_lines_of_a_joint_commit_are_neighbours(tmp_path: Path) -> None:
    whole = joint(5, 3, ("a", "A"), ("a", "B"), ("b", "C"))
    assert described(source(tmp_path, [line("a", "c-1"), *whole, line("b", "c-6")])) == [
        ([("a", 1)], None),
        ([("a", 2), ("b", 1)], None),
        ([("b", 1)], None),
    ]
    for lines, here in (
        ([whole[0], line("x", "c-1"), *whole[1:]], "1 line of the 3"),
        ([*whole[:2], "rubbish"], "2 lines of the 3"),
        (whole[:2], "2 lines of the 3"),
        ([*whole[:2], *joint(6, 2, ("c", "A"), ("d", "A"))], "2 lines of the 3"),
    ):
        parts, why = next(found for found in described(source(tmp_path, lines)) if "of several" in (found[1] or ""))
        assert here in (why or ""), lines
        assert parts[0][0] == "a"


def test_the_same_commit_twice_is_two_groups(tmp_path: Path) -> None:
    whole = [line(name, "c-5", version=7, joint_commit=5, joint_events=2) for name in "ab"]
    assert described(source(tmp_path, [*whole, *whole])) == [([("a", 1), ("b", 1)], None)] * 2


def test_an_aggregate_whose_lines_are_apart_within_the_commit_is_refused(tmp_path: Path) -> None:
    (_, why), *_ = described(source(tmp_path, joint(5, 3, ("a", "A"), ("b", "C"), ("a", "B"))))
    assert "not next to each other" in (why or "")


def test_a_commit_has_one_time(tmp_path: Path) -> None:
    first, second = joint(5, 2, ("a", "A"), ("b", "C"))
    ((_, why),) = described(source(tmp_path, [first, second.replace("T12:", "T13:")]))
    assert why == "the timestamp differs from that of another aggregate, of the same commit"


def test_a_commit_that_is_too_large_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_source, "COMMIT_EVENTS_MAX", 3)
    lines = joint(5, 5, *((f"a-{number}", "A") for number in range(5)))
    ((parts, why),) = described(source(tmp_path, lines))
    assert "too much for one commit" in (why or "")
    assert [events for _, events in parts] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"joint_commit": 5}, "joint_events is missing; it is a number from 2"),
        ({"joint_events": 5}, "joint_commit is missing; it is a number from 0"),
        ({"joint_commit": 5, "joint_events": 1}, "joint_events is 1; it is a number from 2"),
        ({"joint_commit": "5", "joint_events": 2}, "joint_commit is '5'; it is a number from 0"),
        ({"joint_commit": True, "joint_events": 2}, "joint_commit is True; it is a number from 0"),
    ],
)
def test_a_mark_that_cannot_be_is_refused(more: dict[str, object], words: str) -> None:
    with pytest.raises(LineRefused) as found:
        parse_line(line("a", "c-1", **more))
    assert found.value.what == words
    assert found.value.ids == ("a", "c-1")


def event(name: str, sequence: int, left: int = 0) -> Event:
    return tuple.__new__(Event, (name, 1, "T", b"1", None, "c", 0, sequence, 1 | left << LEFT_SHIFT))


def test_a_mark_is_read_as_it_is_written() -> None:
    text = format_event(event("a", 1), 3, JointMark(9, 2))
    assert parse_line(text).joint == JointMark(9, 2)
    assert parse_line(json.dumps(json.loads(text), indent=None, separators=(" , ", " : "))).joint == JointMark(9, 2)
    assert parse_line(json.dumps(dict(reversed(json.loads(text).items())))).joint == JointMark(9, 2)


def test_commits_of_several_shards_do_not_mix() -> None:
    log = [
        (0, event("a", 1, 1)),
        (1, event("x", 1, 2)),
        (0, event("b", 2)),
        (2, event("p", 1)),
        (1, event("y", 2, 1)),
        (1, event("z", 3)),
    ]
    shards = iter([shard for shard, _ in log])
    found = [(each.aggregate_id, of, mark) for each, of, mark in marked_events([each for _, each in log], lambda: next(shards))]
    assert found == [
        ("a", 0, JointMark(2, 2)),
        ("b", 0, JointMark(2, 2)),
        ("p", 2, None),
        ("x", 1, JointMark(3, 3)),
        ("y", 1, JointMark(3, 3)),
        ("z", 1, JointMark(3, 3)),
    ]


def test_what_a_filter_passed_of_a_commit_keeps_together() -> None:
    for log, expected in (
        ([event("a", 1, 3), event("b", 3), event("c", 9)], [2, 2, None]),  # its last event was left out, and b settled
        ([event("a", 1, 3), event("c", 9)], [None, None]),
        ([event("a", 1, 3), event("b", 2, 2), event("c", 9, 1), event("d", 10)], [2, 2, 2, 2]),
        ([event("a", 1, 3), event("b", 2, 2)], [2, 2]),
    ):
        found = [None if mark is None else mark.events for _, _, mark in marked_events(log, lambda: None)]
        assert found == expected
