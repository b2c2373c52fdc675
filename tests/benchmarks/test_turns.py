"""What a benchmark says of its turns: medians and ratios where the turns agree, and words where they do not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.harness.builds import Build
from benchmarks.harness.measure import measure
from benchmarks.harness.report import Pace, Report, Result, cell, markdown
from benchmarks.harness.subject import Measured, Run, Unavailable, Workload, processor_s, processor_s_below

WORKLOAD = Workload("append", "append", "ev/s")
BURNS = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True); input()"


def result(key: str, rates: Sequence[float], server_s: float = 0.5) -> Result:
    return Result(key, tuple(Measured(int(rate), 1.0, 0.1, server_s) for rate in rates))


@dataclass
class Recorded:
    """A subject that notes its turns."""

    name: str
    turns: list[str]
    version: str = "1"
    durable: bool = True
    sizes: list[int] = field(default_factory=list)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def fill(self, events: int) -> None: ...

    def workloads(self) -> Mapping[str, Run]:
        return {WORKLOAD.name: self._run}

    def _run(self, size: int) -> Measured:
        self.turns.append(self.name)
        return Measured(size, size / 1_000)


def test_turns_that_agree_are_a_number_and_those_that_do_not_are_too_noisy_to_say() -> None:
    assert cell(result("now", [1_000, 1_010, 990, 1_000, 5_000]), WORKLOAD) == "1,000 ev/s; 100.0 + 500.0 µs"
    assert cell(result("now", [1_000, 1_300, 700, 1_000, 500]), WORKLOAD).startswith("too noisy to say (30%); ")


def test_a_ratio_is_that_of_the_same_round_whatever_the_disk_did_between_rounds() -> None:
    subjects = {name: Recorded(name, []) for name in ("now", "before")}
    report = Report("append", False, Pace(4, 1.0, 1.0), subjects, {}, ours=("now",))
    now, before = result("now", [200, 2_000, 600, 800], 0.1), result("before", [100, 1_000, 300, 400], 0.4)
    report.results[WORKLOAD] = {"now": now, "before": before}
    assert report.ratio(WORKLOAD, "now") == 2.0
    row = markdown(report).splitlines()[4]
    assert row.count("too noisy to say") == 2
    assert row.endswith("2.00× before; 0.50 + 0.12 |")


def test_subjects_have_their_turns_in_both_orders() -> None:
    turns: list[str] = []
    subjects = {name: Recorded(name, turns) for name in ("a", "b")}
    report = Report("append", False, Pace(3, 0.1, 60.0), subjects, {})
    measure(report, [WORKLOAD], 0.0)
    assert "".join(turns[-6:]) == "abbaab"


def test_the_processor_time_of_servers_is_that_of_all_processes_below_one() -> None:
    shell = subprocess.Popen(
        ["/bin/sh", "-c", f"'{sys.executable}' -c '{BURNS}'; true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert shell.stdout is not None
        shell.stdout.readline()
        assert processor_s_below(shell.pid) >= 0.2
        assert processor_s(shell.pid) < 0.2
        assert processor_s_below(os.getpid()) >= 0.2
    finally:
        shell.communicate(b"\n")


def test_a_build_whose_code_is_not_what_would_be_measured_is_refused(tmp_path: Path) -> None:
    build = Build("empty", tmp_path, "benchmarks.ours.server:EventStore")
    try:
        with pytest.raises(Unavailable, match="instead of that in"):
            build.start()
    finally:
        build.stop()
