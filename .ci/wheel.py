"""Builds a wheel of the tree, installs it into a fresh environment and runs README's program with it. `python .ci/wheel.py`.

An editable installation finds modules and files that a wheel lacks. Needs pip's registry. Exit code 1 if a file is missing or
the program prints something else than README says.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("eventstore", "mailbox/eventstore_mailbox", "cluster/eventstore_cluster", "spark_jobs/pyspark_eventstore")
ADDRESS = "tcp://127.0.0.1:7701"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        wheel = build(at)
        missing = sorted(tracked() - set(zipfile.ZipFile(wheel).namelist()))
        if missing:
            print(f"the wheel lacks {', '.join(missing)}", file=sys.stderr)
            return 1
        bin_ = install(wheel, at / "environment")
        with serving(bin_, at) as address:
            program, expected = readme()
            printed = run(bin_ / "python", "-c", program.replace(ADDRESS, address), cwd=at)
        if printed != expected:
            print(f"README's program printed\n{printed}\nand README says\n{expected}", file=sys.stderr)
            return 1
    print(f"{wheel.name}: {len(tracked())} files, README's program prints what the page says")
    return 0


def build(at: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", at, ROOT)
    (wheel,) = at.glob("*.whl")
    return wheel


def tracked() -> set[str]:
    """Returns the files of the packages, by the names that a wheel has for them."""
    names = run("git", "ls-files", *PACKAGES, cwd=ROOT).splitlines()
    return {name if name.startswith("eventstore/") else name.partition("/")[2] for name in names}


def install(wheel: Path, environment: Path) -> Path:
    """Returns the folder of the environment's commands."""
    venv.create(environment, with_pip=True)
    constraints = ROOT / "constraints.txt"
    run(environment / "bin/python", "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel)
    return environment / "bin"


@contextmanager
def serving(bin_: Path, at: Path) -> Iterator[str]:
    """Runs the installed server on a free port; yields its address."""
    command = [bin_ / "eventstore", "serve", "--data", at / "data", "--listen", "127.0.0.1:0", "--set=log_format=json"]
    with subprocess.Popen(command, cwd=at, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            lines = map(json.loads, server.stderr)
            yield next(line["address"] for line in lines if line["event"] == "serving")
        finally:
            server.terminate()
            server.communicate()


def readme() -> tuple[str, str]:
    """Returns the first program of README, and what it prints."""
    found = re.search(r"```python\n(.*?)```\n+```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None, "README has a program, and what it prints"
    return found[1], found[2]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
