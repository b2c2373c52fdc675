"""Interleaved measuring: every workload on every subject in turns, A B C A B C …, and what comes out of it.

A disk, and a machine that others work on, drift within minutes. Turns spread the drift over all subjects, the median
drops the worst of it, and the spread shows what is left. Each measurement is sized by time, not by a fixed count: the
size comes from a short calibration, which also warms the subject up, and is corrected after every turn.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.subjects import CATALOGUE, OURS, OWN, PAYLOAD, Catalogue, Measured, Run, Subject, Workload, started

CALIBRATION_SHARE = 0.25
CALIBRATION_STEPS_MAX = 12
CALIBRATION_GROWTH_MAX = 8.0
TURN_S_MIN = 0.1

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure: turns per workload and subject, seconds per turn, and seconds for everything together."""

    rounds: int
    turn_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A benchmark: its workloads, its two paces, what to do with each subject before the first workload, and who takes part.

    `ours`: who is no peer of the others.
    """

    name: str
    description: str
    workloads: Sequence[Workload]
    quick: Pace
    full: Pace
    prepare: Callable[[Subject, bool], None] = lambda _subject, _quick: None
    catalogue: Catalogue = field(default_factory=lambda: CATALOGUE)
    ours: Sequence[str] = OURS


@dataclass(frozen=True, slots=True)
class Result:
    """The rates of one subject on one workload, one per round, or why there are none."""

    subject: str
    rates: tuple[float, ...]
    failure: str | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """How far the fastest round lies above the slowest one, as a share of the median."""
        return (max(self.rates) - min(self.rates)) / self.median


@dataclass(slots=True)
class Report:
    """Everything one benchmark found, ready to be written as a table or as a document."""

    benchmark: str
    quick: bool
    pace: Pace
    subjects: Mapping[str, Subject]
    skipped: Mapping[str, str]
    ours: Sequence[str] = OURS
    results: dict[Workload, dict[str, Result]] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return any(result.failure for row in self.results.values() for result in row.values())

    def best_durable_peer(self, workload: Workload) -> Result | None:
        """The fastest of those that are not ours and lose nothing when the power goes."""
        row = self.results[workload]
        peers = [row[key] for key in row if key not in self.ours and self.subjects[key].durable and row[key].rates]
        return max(peers, key=lambda result: result.median, default=None)

    def ratio(self, workload: Workload, key: str = OWN) -> float | None:
        """The median of a subject as a multiple of the best durable peer's."""
        best, result = self.best_durable_peer(workload), self.results[workload].get(key)
        if best is None or result is None or not result.rates:
            return None
        return round(result.median / best.median, 3)


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
        _say(f"{workload.title}: {len(able)} subjects, {report.pace.rounds} rounds of {turn_s:.1f} s")
        report.results[workload] = _in_turns(workload, able, report.pace.rounds, turn_s)
        for key, result in report.results[workload].items():
            _say(f"  {report.subjects[key].name:24} {_cell(result, workload)}")
        del turns_ahead[workload]


def _in_turns(workload: Workload, runs: Mapping[str, Run], rounds: int, turn_s: float) -> dict[str, Result]:
    rates: dict[str, list[float]] = {key: [] for key in runs}
    failures: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for turn in range(rounds + 1):
        for key, run in runs.items():
            if key in failures:
                continue
            try:
                if turn == 0:
                    sizes[key] = _calibrated_size(run, workload.smallest, turn_s)
                else:
                    measured = _timed(run, sizes[key])
                    rates[key].append(measured.rate)
                    sizes[key] = _resized(sizes[key], measured, turn_s, workload.smallest)
            except Exception as error:
                # One subject that breaks must not cost the results of the others; it is shown, and fails the run.
                failures[key] = f"{type(error).__name__}: {error}"[:300]
    return {key: Result(key, () if key in failures else tuple(rates[key]), failures.get(key)) for key in runs}


def _calibrated_size(run: Run, smallest: int, turn_s: float) -> int:
    """The size at which a run takes about `turn_s`, from ever larger runs that together take less than one turn."""
    size = smallest
    for _ in range(CALIBRATION_STEPS_MAX):
        measured = _timed(run, size)
        if measured.seconds >= turn_s * CALIBRATION_SHARE:
            break
        growth = turn_s * CALIBRATION_SHARE * 1.2 / measured.seconds
        size = max(size + 1, int(size * min(CALIBRATION_GROWTH_MAX, growth)))
    return _resized(size, measured, turn_s, smallest)


def _resized(size: int, measured: Measured, turn_s: float, smallest: int) -> int:
    return max(smallest, round(size * turn_s / measured.seconds))


def _timed(run: Run, size: int) -> Measured:
    """One run, with the garbage of the one before it out of the way; the collector stays on, as it would for a user."""
    gc.collect()
    return run(size)


def markdown(report: Report) -> str:
    """The table: a row per workload, a column per subject, and how ours compares to the best durable peer."""
    names = [subject.name + ("" if subject.durable else " (not synced)") for subject in report.subjects.values()]
    compared = [key for key in report.ours if key in report.subjects]
    heads = ["workload", *names, *(f"{report.subjects[key].name} to the best durable peer" for key in compared)]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for workload, row in report.results.items():
        cells = [workload.title]
        cells += [_cell(row[key], workload) if key in row else "–" for key in report.subjects]
        cells += [_comparison(report, workload, key) for key in compared]
        lines.append(_row(cells))
    versions = ", ".join(f"{subject.name} {subject.version}" for subject in report.subjects.values())
    machine = f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    rounds = f"Median of {report.pace.rounds} interleaved rounds (in brackets: fastest minus slowest, as a share of it)"
    lines += ["", f"{rounds}. {len(PAYLOAD)}-byte payloads. {versions}. {machine}."]
    lines += [f"\nSkipped: {name}: {reason}" for name, reason in report.skipped.items()]
    lines += [
        f"\nFailed: {report.subjects[key].name}, {workload.title}: {result.failure}"
        for workload, row in report.results.items()
        for key, result in row.items()
        if result.failure
    ]
    return "\n".join([f"## {report.benchmark}{' (quick)' if report.quick else ''}", "", *lines]) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(result: Result, workload: Workload) -> str:
    if not result.rates:
        return "failed"
    return f"{result.median:,.0f} {workload.unit} ({result.spread:.0%})"


def _comparison(report: Report, workload: Workload, key: str) -> str:
    ratio, best = report.ratio(workload, key), report.best_durable_peer(workload)
    return "–" if ratio is None or best is None else f"{ratio:.2f}× {report.subjects[best.subject].name}"


def document(report: Report) -> str:
    """The same as JSON; rates per second."""
    content = {
        "benchmark": report.benchmark,
        "quick": report.quick,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": report.pace.rounds,
        "payload_bytes": len(PAYLOAD),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "subjects": {
            key: {"name": subject.name, "version": subject.version, "durable": subject.durable}
            for key, subject in report.subjects.items()
        },
        "skipped": report.skipped,
        "workloads": [_workload_document(report, workload) for workload in report.results],
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def _workload_document(report: Report, workload: Workload) -> dict[str, object]:
    best = report.best_durable_peer(workload)
    results: dict[str, object] = {}
    for key, result in report.results[workload].items():
        if result.rates:
            spread, ratio = round(result.spread, 3), report.ratio(workload, key)
            rates = [round(rate, 1) for rate in result.rates]
            results[key] = {"rates": rates, "median": round(result.median, 1), "spread": spread, "ratio": ratio}
        else:
            results[key] = {"failure": result.failure}
    return {
        "name": workload.name,
        "title": workload.title,
        "unit": workload.unit,
        "best_durable_peer": best.subject if best else None,
        "ratio": report.ratio(workload),
        "results": results,
    }


def write_files(report: Report, folder: Path) -> list[Path]:
    """Write the table and the document into `folder`; a quick run never overwrites the results of a full one."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{report.benchmark}{'-quick' if report.quick else ''}"
    table, data = stem.with_suffix(".md"), stem.with_suffix(".json")
    table.write_text(markdown(report), encoding="utf-8")
    data.write_text(document(report) + "\n", encoding="utf-8")
    return [table, data]


def benchmark(plan: Plan, argv: Sequence[str] | None = None) -> int:
    """The command line of one benchmark; returns the exit code, 1 where a subject failed at a workload."""
    started_at = time.monotonic()
    options = _options(plan, argv)
    # A polite kill has to go through the finally clauses as well, or servers would be left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    pace = plan.quick if options.quick else plan.full
    with started(options.only, plan.catalogue, plan.ours) as (subjects, skipped):
        for name, reason in skipped.items():
            _say(f"skipped {name}: {reason}")
        for subject in subjects.values():
            plan.prepare(subject, options.quick)
        report = Report(plan.name, options.quick, pace, subjects, skipped, plan.ours)
        measure(report, [workload for workload in plan.workloads if workload.name in options.workload], started_at)
    table = markdown(report)
    print(document(report) if options.json else table)
    if options.json:
        _say(table)
    for path in write_files(report, options.out):
        _say(f"written: {path}")
    return int(report.failed)


def _options(plan: Plan, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{plan.name}", description=plan.description)
    parser.add_argument("--quick", action="store_true", help="short turns, less than 45 seconds in all")
    parser.add_argument("--json", action="store_true", help="print the JSON document, and nothing else, to stdout")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where the files go (%(default)s)")
    for flag, names in (("--only", list(plan.catalogue)), ("--workload", [workload.name for workload in plan.workloads])):
        among = partial(_among, names)
        parser.add_argument(flag, type=among, default=names, metavar="NAME[,NAME]", help=f"of: {', '.join(names)}")
    return parser.parse_args(argv)


def _among(names: Sequence[str], text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(names)}")
    return [name for name in names if name in chosen]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
