"""Whatever is wrong with the files of an import, nothing is stored out of order without a word, and no part of a commit.

The model is a log of commits, in files that overlap as exports do, or in files where the lines of a commit stand apart. A first
import gets the files with faults: in another order, with lines that are cut, joined or unreadable, and with commands that occur
again with other content. A second import gets the corrected files.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eventstore as es
from eventstore.cli.transfer import import_run
from eventstore.cli.transfer.import_run import Summary, run_import
from eventstore.cli.transfer.line_source import LineSource
from tests.cli.processes import Server, line

AGGREGATES: Final = ("@a", "@b")
PAYLOADS: Final = (1, {"of": {"aggregate_id": "other"}}, 'a quoted "aggregate_id": and {')
FAULTS: Final = (
    *("other command", "other content", "joined", "cut", "cut and joined", "front cut"),
    *("unreadable", "no command", "no aggregate", "two commands"),
)
_examples = itertools.count()  # they share a server: a number replaces the "@" of aggregates


@dataclass(frozen=True, slots=True)
class Step:
    """The event of an aggregate that has `number` events before it."""

    aggregate: str
    command: str
    number: int


@dataclass(frozen=True, slots=True)
class Case:
    log: list[Step]
    faulty: list[str]
    corrected: list[str]
    is_permuted: bool
    has_other_content: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    commits: list[list[Step]] = []
    counts = dict.fromkeys(AGGREGATES, 0)
    sizes = st.sampled_from([1, 1, 2, 3])
    for aggregate, size in draw(st.lists(st.tuples(st.sampled_from(AGGREGATES), sizes), min_size=4, max_size=10)):
        commits.append([Step(aggregate, f"c-{len(commits)}", counts[aggregate] + each) for each in range(size)])
        counts[aggregate] += size
    data, is_spaced = draw(st.sampled_from(PAYLOADS)), draw(st.booleans())

    def text(step: Step, of: Step, kind: str = "Step") -> str:
        """Returns the line of a step, with the command and version of another one."""
        compact = line(step.aggregate, of.command, f"{kind} {step.number}", data, version=of.number + 1)
        return json.dumps(json.loads(compact)) if is_spaced else compact

    def mixed(steps: list[Step]) -> list[Step]:
        """Returns steps in another order, which is the same for each aggregate."""
        of_each = {aggregate: iter([step for step in steps if step.aggregate == aggregate]) for aggregate in AGGREGATES}
        return [next(of_each[step.aggregate]) for step in draw(st.permutations(steps))]

    log = list(itertools.chain(*commits))
    ends = [*sorted(draw(st.lists(st.integers(1, len(commits)), max_size=2))), len(commits)]
    is_mixed = draw(st.booleans())
    starts = [0, *(end if is_mixed else draw(st.integers(0, end)) for end in ends[:-1])]
    files = [list(itertools.chain(*commits[start:end])) for start, end in zip(starts, ends, strict=True)]
    if is_mixed:
        files = [*map(mixed, files)]
    places = [(file, place) for file, steps in enumerate(files) for place in range(len(steps))]
    faults = draw(st.dictionaries(st.sampled_from(places), st.sampled_from(FAULTS), min_size=1, max_size=2))
    broken = [[text(step, step) + "\n" for step in steps] for steps in files]
    for (file, place), fault in faults.items():
        step, whole = files[file][place], broken[file][place]
        cut = draw(st.integers(1, len(whole) - 2))
        if fault == "joined":
            broken[file][place] = whole[:-1]
        elif fault == "front cut":
            broken[file][place] = whole[cut:]
        elif fault == "unreadable":
            broken[file][place] = "rubbish\n"
        elif fault == "two commands":
            broken[file][place] = whole.replace('"command_id":', '"command_id":"another","command_id":')
        elif fault.startswith("no "):
            broken[file][place] = whole.replace(f'"{fault[3:]}_id":', '"event_id":')
        elif fault == "other content":
            broken[file][place] = text(step, step, "Other") + "\n"
        elif fault == "other command":
            before = [each for each in log if each.aggregate == step.aggregate and each.number < max(step.number, 1)]
            broken[file][place] = text(step, draw(st.sampled_from(before))) + "\n"
        else:
            # Two pieces may look like one whole line.
            is_joined = fault == "cut and joined" and "cut" not in faults.get((file, place + 1), "")
            broken[file][place] = whole[:cut] + "\n" * (not is_joined)
    order = draw(st.just(range(len(files))) | st.permutations(range(len(files))))
    return Case(
        log,
        ["".join(broken[file]) for file in order],
        ["".join(text(step, step) + "\n" for step in steps) for steps in files],
        list(order) != sorted(order),
        any(fault.startswith("other") for fault in faults.values()),
    )


async def _import(server: Server, number: int, files: list[str]) -> tuple[Summary, dict[str, list[int]]]:
    """Imports files. Returns the summary, and by aggregate the numbers of the steps that are stored then."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{place}.jsonl" for place in range(len(files))]
        for path, text in zip(paths, files, strict=True):
            path.write_text(text.replace("@", f"{number}-"), encoding="utf-8")
        summary = Summary()
        await run_import(server.store, LineSource([*map(str, paths)]), summary, strict=False, on_progress=lambda: None)
    stored = {}
    async with es.connect(server.store) as store:
        for each in AGGREGATES:
            events = [event async for event in store.read(each.replace("@", f"{number}-"))]
            stored[each] = [int(event.type.split()[1]) for event in events]
    return summary, stored


def _refusals(summary: Summary, number: int, aggregate: str) -> list[tuple[int, int]]:
    """Returns the places, file and line, of what was refused of an aggregate, or of one that cannot be read."""
    ids = (None, aggregate.replace("@", f"{number}-"))
    return sorted((int(Path(each.file).stem), each.first) for each in summary.refusals.kept if each.aggregate_id in ids)


def _steps_before(place: tuple[int, int], files: list[str], aggregate: str) -> set[int]:
    """Returns the numbers of the steps of an aggregate whose lines stand before a place."""
    lines = [((file, row), text) for file, lines in enumerate(files) for row, text in enumerate(lines.split("\n"), 1)]
    step = re.compile(rf'\{{"aggregate_id": ?"{aggregate}".*"event_type": ?"\w+ (\d+)"')
    found = [step.match(text) for at, text in lines if at < place]
    return {int(each[1]) for each in found if each is not None}


def assert_whole_commits(log: list[Step], aggregate: str, stored: list[int]) -> None:
    steps = [step for step in log if step.aggregate == aggregate]
    for _, commit in itertools.groupby(steps, lambda step: step.command):
        assert len({step.number in stored for step in commit}) == 1


@settings(max_examples=150)
@given(case=cases(), batch_commits=st.sampled_from([3, 1_000]))
async def test_nothing_is_stored_out_of_order_without_a_word(shared: Server, case: Case, batch_commits: int) -> None:
    number = next(_examples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_run, "BATCH_COMMITS", batch_commits)
        first, before = await _import(shared, number, case.faulty)
        second, after = await _import(shared, number, case.corrected)
    for aggregate in AGGREGATES:
        whole = [step.number for step in case.log if step.aggregate == aggregate]
        refused = _refusals(first, number, aggregate)
        # What is refused holds back what follows, so only files in another order can put anything in another place.
        assert not refused or _steps_before(refused[0], case.faulty, aggregate).issuperset(before[aggregate])
        if not case.has_other_content:
            assert_whole_commits(case.log, aggregate, before[aggregate])
        if before[aggregate] == whole[: len(before[aggregate])]:
            assert after[aggregate] == whole[: len(after[aggregate])]
            assert after[aggregate] == whole or (case.has_other_content and _refusals(second, number, aggregate))
        else:
            assert case.is_permuted
            assert refused
            assert _refusals(second, number, aggregate) or second.misplaced
    if not case.is_permuted and not case.has_other_content:
        assert (second.refused, second.held_back, second.misplaced) == (0, 0, 0)
