"""`make demo-cluster`: its program tells the whole story, and leaves neither folders nor processes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.cluster.etcd.etcd_program import MISSING, etcd_program
from tests.documents.pages import ROOT, run

STEPS = (
    "Three nodes and an etcd",
    "2,000 appends, each on the disks of three machines",
    r"SIGKILL of (n\d) and of all its processes",
    "All 2,040 acknowledged events are there, once each",
    r"(n\d) is started again",
    "All nodes stopped; their files compared, and verified",
)


@pytest.mark.heavy
@pytest.mark.long
async def test_the_demo_of_a_cluster_tells_its_story_and_leaves_nothing_behind(tmp_path: Path) -> None:
    if etcd_program() is None:
        pytest.skip(MISSING)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = await run([sys.executable, ROOT / "docs" / "examples" / "demo_cluster"], tmp_path, TMPDIR=str(scratch))
    printed = result.stdout.decode()
    assert result.returncode == 0, printed
    said = [re.fullmatch(step, line) for step, line in zip(STEPS, re.findall(r"^✓ (.*)$", printed, flags=re.M), strict=True)]
    assert all(said), printed
    assert re.search(r"^  etcd \d+\.\d+\.\d+, /", printed, flags=re.M), printed
    before, after = (re.findall(rf"^  [01] +(n\d) +(\d+) +(.*?) +{events} *$", printed, flags=re.M) for events in (0, 1020))
    (victim,) = {match[1] for match in said if match is not None and match.re.groups}
    assert before[0][0] == victim
    assert int(after[0][1]) > int(before[0][1])
    assert all(sorted(in_sync.split(", ")) == ["n1", "n2", "n3"] for _, _, in_sync in after)
    sums = re.findall(r"^  [01] +([0-9a-f]{16})  \1  \1 *$", printed, flags=re.M)
    assert len(sums) == 2, printed
    assert list(scratch.iterdir()) == []
    assert _processes(scratch) == []


@pytest.mark.parametrize(
    ("version", "warned"),
    [("3.4.21", True), ("3.4.22", False), ("3.5.1", True), ("3.5.5", True), ("3.5.6", False), ("3.6.0", False)],
)
async def test_the_demo_says_which_etcd_it_runs_and_whether_that_is_for_trying_only(
    tmp_path: Path, version: str, warned: bool
) -> None:
    program = tmp_path / "etcd"
    program.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\necho 'Git SHA: 0'\n")
    program.chmod(0o755)
    code = "from pathlib import Path; from demo_cluster.processes import Etcd; print(Etcd(Path('.')).used)"
    examples = str(ROOT / "docs" / "examples")
    result = await run([sys.executable, "-c", code], tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin", PYTHONPATH=examples)
    assert result.returncode == 0, result.stderr
    said = "; for trying only: CLUSTER.md names the versions to run" if warned else ""
    assert result.stdout.decode() == f"etcd {version}, {program}{said}\n"


def _processes(scratch: Path) -> list[str]:
    """Returns the command lines of those that were started with this folder for their files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={scratch}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # another user's, or ended meanwhile
            continue
    return found
