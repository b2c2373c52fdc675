from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import environment


@pytest.mark.heavy
def test_the_demo_runs_through_and_leaves_nothing_behind(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "eventstore.cli.demo"],
        capture_output=True, text=True, timeout=120, check=False, env={**environment(), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("✓") == 19
    assert list(tmp_path.iterdir()) == []
