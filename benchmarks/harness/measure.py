"""Interleaved measuring: every workload on every subject in turns, A B C A B C ….

A disk, and a machine that others work on, drift within minutes. Many short turns, every second one backwards, spread the
drift over all subjects, the median drops the worst of it, and the spread shows what is left. Each measurement is sized by
time, not by a fixed count: the size comes from a short calibration, which also warms the subject up, and is corrected after
every turn. `--against COMMIT` measures this tree beside that commit, and no peers.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.harness.builds import NOW, builds
from benchmarks.harness.catalogue import CATALOGUE, OURS, Catalogue, started
from benchmarks.harness.report import RESULTS, Pace, Report, Result, cell, document, markdown, say, write_results
from benchmarks.harness.subject import Measured, Run, Subject, Workload, timed

CALIBRATION_SHARE = 0.25
CALIBRATION_STEPS_MAX = 12
CALIBRATION_GROWTH_MAX = 8.0
TURN_S_MIN = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """A benchmark: its workloads, its two paces, what to do with each subject before the first workload, and who takes part.

    `ours`: the subjects that do not count as peers. `build`: what `--against` measures, as `module:class`.
    """

    name: str
    description: str
    workloads: Sequence[Workload]
    quick: Pace
    full: Pace
    prepare: Callable[[Subject, bool], None] = lambda _subject, _quick: None
    catalogue: Catalogue = field(default_factory=lambda: CATALOGUE)
    ours: Sequence[str] = OURS
    build: str = "benchmarks.ours.server:EventStore"


def measure(report: Report, workloads: Sequence[Workload], started_at: float) -> None:
    """Measure the workloads one after the other into `report`, faster turns the less is left of the total time."""
    turns_ahead = {
        workload: sum(workload.name in subject.workloads() for subject in report.subjects.values()) for workload in workloads
    }
    for workload in workloads:
        runs = {key: subject.workloads().get(workload.name) for key, subject in report.subjects.items()}
        able = {key: run for key, run in runs.items() if run is not None}
        left_s = report.pace.total_s - (time.monotonic() - started_at)
        # Calibration takes about half a turn more for each subject.
        turns = sum(turns_ahead.values()) * (report.pace.rounds + 0.5)
        turn_s = max(TURN_S_MIN, min(report.pace.turn_s, left_s / max(1.0, turns)))
        say(f"{workload.title}: {len(able)} subjects, {report.pace.rounds} rounds of {turn_s:.1f} s")
        report.results[workload] = _in_turns(workload, able, report.pace.rounds, turn_s)
        for key, result in report.results[workload].items():
            say(f"  {report.subjects[key].name:24} {cell(result, workload)}")
        del turns_ahead[workload]


def _in_turns(workload: Workload, runs: Mapping[str, Run], rounds: int, turn_s: float) -> dict[str, Result]:
    found: dict[str, list[Measured]] = {key: [] for key in runs}
    failures: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for turn in range(rounds + 1):
        for key, run in list(runs.items())[:: 1 if turn % 2 else -1]:
            if key in failures:
                continue
            try:
                if turn == 0:
                    sizes[key] = _calibrated_size(run, workload.smallest, turn_s)
                else:
                    measured = timed(run, sizes[key])
                    found[key].append(measured)
                    sizes[key] = _resized(sizes[key], measured, turn_s, workload.smallest)
            except Exception as error:
                # One subject that breaks must not cost the results of the others; it is shown, and fails the run.
                failures[key] = f"{type(error).__name__}: {error}"[:300]
    return {key: Result(key, () if key in failures else tuple(found[key]), failures.get(key)) for key in runs}


def _calibrated_size(run: Run, smallest: int, turn_s: float) -> int:
    """The size at which a run takes about `turn_s`, from ever larger runs that together take less than one turn."""
    size = smallest
    for _ in range(CALIBRATION_STEPS_MAX):
        measured = timed(run, size)
        if measured.seconds >= turn_s * CALIBRATION_SHARE:
            break
        growth = turn_s * CALIBRATION_SHARE * 1.2 / measured.seconds
        size = max(size + 1, int(size * min(CALIBRATION_GROWTH_MAX, growth)))
    return _resized(size, measured, turn_s, smallest)


def _resized(size: int, measured: Measured, turn_s: float, smallest: int) -> int:
    return max(smallest, round(size * turn_s / measured.seconds))


def benchmark(plan: Plan, argv: Sequence[str] | None = None) -> int:
    """The command line of one benchmark; returns the exit code, 1 where a subject failed at a workload."""
    started_at = time.monotonic()
    options = _options(plan, argv)
    # SIGTERM must run the finally clauses as well, or servers would be left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    pace = plan.quick if options.quick else plan.full
    with ExitStack() as stack:
        only, catalogue, ours = options.only, plan.catalogue, plan.ours
        if options.against is not None:
            catalogue, ours = stack.enter_context(builds(options.against, plan.build)), (NOW,)
            only = list(catalogue)
        subjects, skipped = stack.enter_context(started(only, catalogue, ours))
        for name, reason in skipped.items():
            say(f"skipped {name}: {reason}")
        for subject in subjects.values():
            plan.prepare(subject, options.quick)
        report = Report(plan.name, options.quick, pace, subjects, skipped, ours)
        measure(report, [workload for workload in plan.workloads if workload.name in options.workload], started_at)
    table = markdown(report)
    print(document(report) if options.json else table)
    if options.json:
        say(table)
    # A quick run, or one without the peers, never overwrites the results of a full one.
    stem = f"{plan.name}{'-quick' if options.quick else ''}{'-against' if options.against else ''}"
    for path in write_results(stem, document(report), table, options.out):
        say(f"written: {path}")
    return int(report.failed)


def _options(plan: Plan, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{plan.name}", description=plan.description)
    parser.add_argument("--quick", action="store_true", help="short turns, less than 45 seconds in all")
    parser.add_argument("--json", action="store_true", help="print the JSON document, and nothing else, to stdout")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where the files go (%(default)s)")
    parser.add_argument("--against", metavar="COMMIT", help="measure this tree beside a commit of it, and no peers")
    for flag, names in (("--only", list(plan.catalogue)), ("--workload", [workload.name for workload in plan.workloads])):
        among = partial(_among, names)
        parser.add_argument(flag, type=among, default=names, metavar="NAME[,NAME]", help=f"of: {', '.join(names)}")
    return parser.parse_args(argv)


def _among(names: Sequence[str], text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(names)}")
    return [name for name in names if name in chosen]
