"""Reports the results of a benchmark: a table for people, a JSON document for programs, and where both are written."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness.catalogue import OURS, OWN
from benchmarks.harness.subject import PAYLOAD, Measured, Subject, Workload

SPREAD_MAX = 0.15
TOO_NOISY = "too noisy to say ({:.0%})"
RESULTS = Path(__file__).parents[1] / "results"


def say(line: str) -> None:
    """Prints progress to standard error; standard output is for results."""
    print(line, file=sys.stderr, flush=True)


def machine() -> dict[str, object]:
    """Describes the machine for a JSON document."""
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}


def machine_line() -> str:
    """Describes the machine in one line."""
    return f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def write_results(stem: str, document: str, table: str | None = None, folder: Path = RESULTS) -> list[Path]:
    """Writes `stem`.json, and `stem`.md if there is a table."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {folder / f"{stem}.md": table, folder / f"{stem}.json": document + "\n"}
    for path, text in written.items():
        if text is not None:
            path.write_text(text, encoding="utf-8")
    return [path for path, text in written.items() if text is not None]


def figure(value: float | str) -> str:
    """Formats a figure, or a word in the place of one."""
    return value if isinstance(value, str) else f"{value:,.{2 if value < 1_000 else 0}f}"


def figures_table(results: Mapping[str, Mapping[str, float | str]], title: str) -> str:
    """Formats figures by name as a table of (title, figure, value)."""
    lines = [f"| {title} | figure | value |", "| --- | --- | --- |"]
    for name, figures in results.items():
        lines += [f"| {name} | {key} | {figure(value)} |" for key, value in figures.items()]
    return "\n".join(lines) + "\n"


def report_rows(
    rows: Mapping[str, Callable[[], Mapping[str, float]]], stem: str, *, as_json: bool, notes: Sequence[str] = ()
) -> None:
    """Measures the rows one after the other, prints their figures, and writes them to `stem`.json.

    `notes`: lines that follow the table; they may be added while it is measured.
    """
    found: dict[str, Mapping[str, float]] = {}
    for name, measure in rows.items():
        say(f"{name} …")
        found[name] = measure()
        say("   " + "  ".join(f"{figure} {value:,.2f}" for figure, value in found[name].items()))
    text = json.dumps({"machine": machine(), "results": found, **({"notes": list(notes)} if notes else {})}, indent=2)
    print(text if as_json else "\n".join([figures_table(found, "row"), *notes]))
    write_results(stem, text)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure: turns per workload and subject, seconds per turn, and seconds for everything together."""

    rounds: int
    turn_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """What one subject did of one workload in each round, or why it was not measured."""

    subject: str
    rounds: tuple[Measured, ...]
    failure: str | None = None

    @property
    def rates(self) -> list[float]:
        return [each.rate for each in self.rounds]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """See `spread_of`."""
        return spread_of(self.rates)

    @property
    def client_us(self) -> float:
        """Processor time of the clients for one event or replay, in microseconds."""
        return statistics.median((each.client_s or 0.0) / each.count * 1e6 for each in self.rounds)

    @property
    def server_us(self) -> float:
        """The same of the servers."""
        return statistics.median((each.server_s or 0.0) / each.count * 1e6 for each in self.rounds)


def spread_of(values: Sequence[float]) -> float:
    """How far the upper quartile lies above the lower one, as a share of the median: half of the values are in there."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return (high - low) / median


def verdict(values: Sequence[float], text: Callable[[float], str]) -> str:
    """The median as text, unless the values are too far apart for one."""
    spread = spread_of(values)
    return TOO_NOISY.format(spread) if spread > SPREAD_MAX else text(statistics.median(values))


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

    def ratios(self, workload: Workload, key: str = OWN) -> list[float]:
        """The rates of a subject, each as a multiple of the best durable peer's of the same round: both had the same disk."""
        best, result = self.best_durable_peer(workload), self.results[workload].get(key)
        if best is None or result is None:
            return []
        return [own / other for own, other in zip(result.rates, best.rates, strict=False)]

    def ratio(self, workload: Workload, key: str = OWN) -> float | None:
        """The median of `ratios`."""
        ratios = self.ratios(workload, key)
        return round(statistics.median(ratios), 3) if ratios else None


def markdown(report: Report) -> str:
    """The table: a row per workload, a column per subject, and how ours compares to the best durable peer."""
    names = [subject.name + ("" if subject.durable else " (not synced)") for subject in report.subjects.values()]
    compared = [key for key in report.ours if key in report.subjects]
    heads = ["workload", *names, *(f"{report.subjects[key].name} to the best durable peer" for key in compared)]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for workload, row in report.results.items():
        cells = [workload.title]
        cells += [cell(row[key], workload) if key in row else "–" for key in report.subjects]
        cells += [_comparison(report, workload, key) for key in compared]
        lines.append(_row(cells))
    versions = "".join(f" {subject.name} {subject.version}." for subject in report.subjects.values() if subject.version)
    rounds = (
        f"Median of {report.pace.rounds} interleaved rounds; then processor time of clients and servers for each event or "
        f"replay. Where more than {SPREAD_MAX:.0%} of the median lie between the quartiles of rates or ratios, it is too noisy "
        "to say. Behind a ratio: processor time of clients and servers as a multiple of the peer's"
    )
    lines += ["", f"{rounds}. {len(PAYLOAD)}-byte payloads.{versions} {machine_line()}."]
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


def cell(result: Result, workload: Workload) -> str:
    """Formats the median of a result, and its processor times."""
    if not result.rates:
        return "failed"
    rate = verdict(result.rates, lambda rate: f"{rate:,.0f} {workload.unit}")
    return f"{rate}; {result.client_us:,.1f} + {result.server_us:,.1f} µs"


def _comparison(report: Report, workload: Workload, key: str) -> str:
    ratios, best, own = report.ratios(workload, key), report.best_durable_peer(workload), report.results[workload].get(key)
    if not ratios or best is None or own is None:
        return "–"
    times = [f"{mine / other:.2f}" if other else "–" for mine, other in zip(_times(own), _times(best), strict=True)]
    return f"{verdict(ratios, lambda ratio: f'{ratio:.2f}×')} {report.subjects[best.subject].name}; {' + '.join(times)}"


def _times(result: Result) -> tuple[float, float]:
    return result.client_us, result.server_us


def document(report: Report) -> str:
    """The same as JSON; rates per second."""
    content = {
        "benchmark": report.benchmark,
        "quick": report.quick,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": report.pace.rounds,
        "payload_bytes": len(PAYLOAD),
        "machine": machine(),
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
            client_us, server_us = (round(us, 2) for us in _times(result))
            results[key] = {
                "rates": rates,
                "median": round(result.median, 1),
                "spread": spread,
                "client_us": client_us,
                "server_us": server_us,
                "ratio": ratio,
            }
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
