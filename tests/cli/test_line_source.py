from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.cli.transfer import import_run, known_aggregates, line_source
from eventstore.cli.transfer.import_run import Summary, run_import
from eventstore.cli.transfer.line_source import CommandLines, LineSource
from eventstore.cli.transfer.refusals import Refusal
from tests.cli.processes import Server, line

TOO_LARGE = "x" * 4_300_000


def _source(path: Path, *files: list[str]) -> LineSource:
    paths = [path / f"{number}.jsonl" for number in range(len(files))]
    for each, lines in zip(paths, files, strict=True):
        each.write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = LineSource([str(each) for each in paths])
    source.survey()
    return source


def _commits(source: LineSource) -> list[tuple[str, str, list[str]]]:
    groups = list(source.groups())
    assert all(isinstance(group, CommandLines) and group.why is None for group in groups)
    return [(each.aggregate_id, each.command_id, [event.type for event in each.events]) for each in groups]  # type: ignore[union-attr]


def _whys(source: LineSource) -> list[str | None]:
    return [group.why for group in source.groups()]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_stands_between_them_lines_of_a_command_form_one_commit(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    histories = {
        aggregate: [(f"c-{number}", choose.choices("AB", k=choose.randint(1, 4))) for number in range(choose.randint(1, 5))]
        for aggregate in "pqrs"
    }
    lines = {
        aggregate: [line(aggregate, command, event) for command, events in commits for event in events]
        for aggregate, commits in histories.items()
    }
    order = choose.sample(turns := [aggregate for aggregate in lines for _ in lines[aggregate]], len(turns))
    waiting = {aggregate: iter(each) for aggregate, each in lines.items()}
    commits = _commits(_source(tmp_path, [next(waiting[aggregate]) for aggregate in order]))
    for aggregate, history in histories.items():
        assert [(command, events) for of, command, events in commits if of == aggregate] == history


def test_lines_of_a_command_in_several_files_are_refused_in_each(tmp_path: Path) -> None:
    source = _source(tmp_path, [line("a", "c-1"), line("a", "c-2")], [line("a", "c-2"), line("a", "c-3")])
    whys = _whys(source)
    assert [why is None for why in whys] == [True, False, False, True]
    assert "lines in several files" in (whys[1] or "")


def test_lines_that_json_dumps_has_written_are_the_same_commit_by_their_version(tmp_path: Path) -> None:
    lines = [json.dumps(json.loads(line("a", f"c-{version}", version=version))) for version in (1, 2, 3)]
    assert _whys(_source(tmp_path, lines[:2], lines[1:])) == [None] * 4


def test_lines_that_are_the_same_event_by_their_version_are_taken_once(tmp_path: Path) -> None:
    first, second = line("a", "c-1", "A", version=7), line("a", "c-1", "A", version=8)
    assert _commits(_source(tmp_path, [first, line("b", "c-1", "B"), first, second])) == [
        ("b", "c-1", ["B"]),
        ("a", "c-1", ["A", "A"]),
    ]


def test_lines_of_a_command_whose_versions_go_back_are_refused(tmp_path: Path) -> None:
    source = _source(tmp_path, [line("a", "c-1", "B", version=8), line("b", "c-1"), line("a", "c-1", "A", version=7)])
    assert sorted(filter(None, _whys(source))) == ["version 7 stands after version 8 of the same command"]


def test_a_version_that_is_there_twice_with_different_content_is_refused(tmp_path: Path) -> None:
    source = _source(tmp_path, [line("a", "c-1", "A", version=8), line("b", "c-1"), line("a", "c-1", "B", version=8)])
    assert [group.is_repeated for group in source.groups() if isinstance(group, CommandLines)] == [False, False, True]
    lines = [line("a", "c-1", "A", version=7), line("a", "c-1", "A", version=8), line("b", "c-1"), line("a", "c-1", version=8)]
    assert list(filter(None, _whys(_source(tmp_path, lines)))) == ["version 8 is there twice, with different content"]


def test_a_commit_that_is_repeated_where_two_exports_were_joined_is_the_same_commit(tmp_path: Path) -> None:
    commit = [line("a", "c-1", "A", version=7), line("a", "c-1", "B", version=8)]
    assert _commits(_source(tmp_path, [*commit, *commit])) == [("a", "c-1", ["A", "B"])] * 2


def test_commits_whose_lines_are_apart_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_source, "OPEN_BYTES_MAX", 1_000)
    lines = [line(f"a-{number}", "c-1", data="x" * 300) for number in range(5)]
    groups = [group for group in _source(tmp_path, [*lines, *lines]).groups() if isinstance(group, CommandLines)]
    refused = [group for group in groups if group.why is not None]
    assert 0 < len(refused) < 5
    assert all("put the lines of a command next to each other" in (group.why or "") for group in refused)


def _damaged(choose: random.Random, text: str) -> str:
    """A line that cannot be imported until it is corrected."""
    fault = choose.randrange(4)
    if fault == 0:
        return text[: choose.randrange(1, len(text))]
    if fault == 1:
        return json.dumps(json.loads(text) | {"data": TOO_LARGE})
    return json.dumps(json.loads(text) | {"timestamp": None}) if fault == 2 else "rubbish"


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_refused_the_corrected_file_gives_the_order_of_its_lines(
    seed: int, shared: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_run, "BATCH_COMMITS", 6)
    choose = random.Random(seed)
    places = [f"corrected-{seed}-{choose.randrange(4)}" for _ in range(60)]
    whole = [line(aggregate, f"c-{number}", f"Step{number}") for number, aggregate in enumerate(places)]
    expected: dict[str, list[str]] = {aggregate: [] for aggregate in places}
    for number, aggregate in enumerate(places):
        expected[aggregate].append(f"Step{number}")
    path = tmp_path / "a.jsonl"
    async with es.connect(shared.store) as store:
        live = choose.randint(1, 3)
        await store.append(places[0], [es.NewEvent("Live")] * live, es.ANY, "live")
        expected[places[0]] = ["Live"] * live + expected[places[0]]
        for wrong in range(4, -1, -1):  # fewer lines each time, in the end none
            lines = list(whole)
            for place in choose.sample(range(len(lines)), wrong):
                lines[place] = _damaged(choose, whole[place])
            path.write_text("\n".join(lines), encoding="utf-8")
            summary = Summary()
            await run_import(shared.store, LineSource([str(path)]), summary, strict=False, on_progress=lambda: None)
            assert (summary.events, summary.refused > 0) == (len(whole), wrong > 0)
        assert {each: [event.type async for event in store.read(each)] for each in expected} == expected


async def test_a_writer_beside_an_import_puts_nothing_out_of_order(
    shared: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_run, "BATCH_COMMITS", 5)
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(line("beside", f"c-{number}", f"Step{number}") for number in range(100)), encoding="utf-8")
    summary = Summary()
    ended = trio.Event()

    async def write() -> None:
        async with es.connect(shared.store) as store:
            for number in itertools.count():
                await store.append("beside", [es.NewEvent("Live")], es.ANY, f"live-{number}")
                if ended.is_set():
                    return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await run_import(shared.store, LineSource([str(path)]), summary, strict=False, on_progress=lambda: None)
        ended.set()
    assert summary.new == 100
    async with es.connect(shared.store) as store:
        types = [event.type async for event in store.read("beside") if event.type != "Live"]
    assert types == [f"Step{number}" for number in range(100)]


async def test_a_command_that_is_in_the_files_with_other_content_holds_back_what_follows(
    shared: Server, tmp_path: Path
) -> None:
    first, other = line("twice", "c-1", "A", version=1), line("twice", "c-1", "B", version=1)
    between = [line(f"twice-{number}", "c-1") for number in range(1_200)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([first, *between, other, line("twice", "c-2", "C", version=2)]), encoding="utf-8")
    summary = Summary()
    await run_import(shared.store, LineSource([str(path)]), summary, strict=False, on_progress=lambda: None)
    assert (summary.new, summary.refused, summary.held_back) == (1_201, 1, 1)


async def _imported(server: Server, path: Path, *files: list[str]) -> Summary:
    paths = [path / f"{number}.jsonl" for number in range(len(files))]
    for each, lines in zip(paths, files, strict=True):
        each.write_text("\n".join(lines), encoding="utf-8")
    summary = Summary()
    await run_import(server.store, LineSource([str(each) for each in paths]), summary, strict=False, on_progress=lambda: None)
    return summary


@pytest.mark.parametrize(
    ("box", "unreadable", "stored"),
    [
        ("box-1", "rubbish", 0),
        ("box-2", line("box-2", "c-1") + line("till-2", "c-9"), 0),
        ("box-3", '{"command_id":"c-1"}', 0),
        ("box-4", '{"aggregate_id":"box-4","data":2}', 2),
    ],
)
async def test_no_part_is_stored_of_a_commit_that_may_go_on_in_a_line_that_cannot_be_read(
    box: str, unreadable: str, stored: int, shared: Server, tmp_path: Path
) -> None:
    till = box.replace("box", "till")
    files = [[line(till, "c-0"), line(box, "c-0")], [line(box, "c-1", "Opened"), line(till, "c-1"), unreadable]]
    summary = await _imported(shared, tmp_path, *files)
    assert (summary.new, summary.refused, summary.held_back) == (stored, 1, 4 - stored)
    files[1][2] = line(box, "c-1", "Closed")
    corrected = await _imported(shared, tmp_path, *files)
    assert (corrected.new, corrected.repeated, corrected.refused, corrected.held_back) == (5 - stored, stored, 0, 0)


async def test_aggregates_with_lines_that_cannot_be_read_take_bounded_memory(
    shared: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_source, "UNSURE_AGGREGATES_MAX", 3)
    lines = [f'{{"aggregate_id":"unsure-{number}"}}' for number in range(4)]
    assert (await _imported(shared, tmp_path, [*lines[1:], line("unsure", "c-1")])).new == 1
    summary = await _imported(shared, tmp_path, [*lines, line("unsure", "c-2")])
    assert (summary.new, summary.refused, summary.held_back) == (0, 4, 1)


@pytest.mark.parametrize("size", [5, 1_000])
async def test_however_many_aggregates_there_are_their_order_is_known(
    size: int, shared: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_aggregates, "AGGREGATES_IN_MEMORY", size)
    monkeypatch.setattr(import_run, "BATCH_COMMITS", 7)
    first, second = ([line(f"many-{size}-{each}", f"c-{n}", version=n) for each in range(40)] for n in (1, 2))
    summary = await _imported(shared, tmp_path, second, first)
    assert (summary.new, summary.refused, summary.held_back) == (40, 40, 0)
    summary = await _imported(shared, tmp_path, first, second, first)
    assert (summary.new, summary.repeated, summary.refused, summary.misplaced) == (40, 80, 0, 40)


async def test_commits_that_each_stand_twice_are_sent_once(shared: Server, tmp_path: Path) -> None:
    lines = [line("pairs", f"c-{number}", version=number) for number in range(1, 301)]
    before = shared.stats()
    summary = await _imported(shared, tmp_path, [each for each in lines for _ in range(2)])
    assert (summary.new, summary.repeated, summary.commits) == (300, 300, 600)
    after = shared.stats()
    assert after["duplicates"] == before["duplicates"]
    assert after["batches"] - before["batches"] < 10


async def test_of_a_refused_commit_that_stands_twice_the_second_is_held_back(shared: Server, tmp_path: Path) -> None:
    lines = [line("pair", f"c-{number}", version=number) for number in (1, 2)]
    await _imported(shared, tmp_path, [line("pair", "c-1", "Other")])
    summary = await _imported(shared, tmp_path, [lines[0], lines[0], lines[1], lines[1]])
    assert (summary.new, summary.refused, summary.held_back) == (0, 1, 3)


async def test_the_events_of_all_aggregates_are_stored_in_the_order_of_the_file(shared: Server, tmp_path: Path) -> None:
    choose = random.Random(7)
    places = [f"order-{choose.randrange(20)}" for _ in range(400)]
    lines = [line(aggregate, f"c-{number}", f"T{number}") for number, aggregate in enumerate(places)]
    async with es.connect(shared.store) as store:
        for aggregate in ("order-3", "order-7"):  # some are there before
            await store.append(aggregate, [es.NewEvent("Live")], es.ANY, "live")
        summary = await _imported(shared, tmp_path, lines)
        assert summary.new == 400
        found = [event.type async for event in store.read_all(aggregate_prefix="order-") if event.type != "Live"]
    assert found == [f"T{number}" for number in range(400)]


async def test_exports_in_the_wrong_order_are_refused_by_line(shared: Server, tmp_path: Path) -> None:
    lines = [line("wrong", f"c-{number}", version=number) for number in range(1, 31)]
    summary = await _imported(shared, tmp_path, lines[20:], lines[:25])
    assert (summary.new, summary.repeated, summary.refused, summary.held_back) == (10, 0, 1, 24)


@pytest.mark.parametrize("times", [1, 2])
async def test_exports_in_the_wrong_order_are_refused_even_if_one_lies_within_the_other(
    times: int, shared: Server, tmp_path: Path
) -> None:
    lines = [line(f"within-{times}", f"c-{number}", version=number) for number in range(1, 21)]
    summary = await _imported(shared, tmp_path, *[lines[9:], lines] * times)
    assert (summary.new, summary.refused, summary.held_back) == (11, 1, 31 * times - 12)


async def test_a_repetition_between_files_in_the_wrong_order_does_not_hide_it(shared: Server, tmp_path: Path) -> None:
    lines = [line("hidden", f"c-{number}", version=number) for number in range(1, 5)]
    summary = await _imported(shared, tmp_path, lines[:2], lines[3:], lines[:2], lines[2:3])
    assert (summary.new, summary.repeated, summary.refused) == (3, 2, 1)


async def test_what_follows_a_repetition_with_other_content_is_held_back_in_a_new_aggregate(
    shared: Server, tmp_path: Path
) -> None:
    first, other = line("again", "c-1", "A", version=1), line("again", "c-1", "B", version=1)
    summary = await _imported(shared, tmp_path, [first], [other, line("again", "c-2", "C", version=2)])
    assert (summary.new, summary.refused, summary.held_back) == (1, 1, 1)


async def test_repetitions_that_an_earlier_import_put_in_another_order_are_counted(shared: Server, tmp_path: Path) -> None:
    lines = [line("before", f"c-{number}", version=number) for number in (1, 2)]
    await _imported(shared, tmp_path, lines[1:])
    summary = await _imported(shared, tmp_path, lines, lines[1:])
    assert (summary.new, summary.repeated, summary.misplaced) == (1, 2, 1)


async def test_what_an_earlier_import_put_in_another_order_is_counted(shared: Server, tmp_path: Path) -> None:
    lines = [line("early", f"c-{number}") for number in range(3)]
    await _imported(shared, tmp_path, [lines[0], lines[2]])
    summary = await _imported(shared, tmp_path, lines)
    assert (summary.new, summary.repeated, summary.misplaced) == (1, 2, 1)


def test_a_repetition_that_lacks_a_line_is_not_taken_for_the_commit(tmp_path: Path) -> None:
    commit = [line("a", "c-1", version=version) for version in (1, 2, 3)]
    source = _source(tmp_path, [commit[0], commit[2], line("b", "c-1"), *commit])
    assert [why is None for why in _whys(source)] == [True, False]


def test_a_refusal_names_the_aggregate_that_it_holds_back(tmp_path: Path) -> None:
    source = _source(tmp_path, [line("a", "c-1")[:25], "rubbish"])
    assert [item.aggregate_id for item in source.groups() if isinstance(item, Refusal)] == ["a", None]


def test_a_line_that_is_too_long_may_be_of_several_aggregates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_source, "LINE_BYTES_MAX", 200)
    source = _source(tmp_path, [line("a", "c-1", data="x" * 200) + line("b", "c-1"), line("b", "c-2")])
    refused = [item for item in source.groups() if isinstance(item, Refusal)]
    assert [(item.why, item.aggregate_id) for item in refused] == [("the line is longer than 200 bytes", None)]


async def test_two_lines_without_a_break_between_them_hold_back_both_aggregates(shared: Server, tmp_path: Path) -> None:
    lines = [line(aggregate, f"c-{number}") for number in (1, 2) for aggregate in ("joined-1", "joined-2")]
    summary = await _imported(shared, tmp_path, [lines[0] + lines[1], *lines[2:]])
    assert (summary.new, summary.refused, summary.held_back) == (0, 1, 2)
    assert (await _imported(shared, tmp_path, lines)).new == 4


def test_the_lines_of_a_refused_commit_are_told() -> None:
    told = [str(Refusal("f", 4, events, "no", 1, 5, "a")) for events in (4, 5)]
    assert told == ["f, line 4: no (4 lines from 1 to 5 are one commit)", "f, line 4: no (lines 1 to 5 are one commit)"]
