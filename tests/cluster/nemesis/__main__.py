"""Breaks a cluster for some time: `python -m tests.cluster.nemesis --seconds 600 --seed 7 --faults kill,stop`."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from tests.cluster.etcd.etcd_program import MISSING, etcd_program
from tests.cluster.nemesis.faults import ALL
from tests.cluster.nemesis.round import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.nemesis", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long things are broken (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the faults (default: random)")
    parser.add_argument("--faults", default=",".join(ALL), help="kinds of faults (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the data and logs are kept (default: a temporary folder)")
    asked = parser.parse_args()
    kinds = asked.faults.split(",") if asked.faults else []
    if unknown := set(kinds) - set(ALL):
        parser.error(f"unknown faults {sorted(unknown)}, known are {ALL}")
    if etcd_program() is None:
        parser.error(MISSING)
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="nemesis-"))
    folder.mkdir(exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    print(f"seed {asked.seed}, {asked.seconds:g} s of {', '.join(kinds) or 'nothing'}, in {folder}", flush=True)
    report = trio.run(partial(play, folder, asked.seconds, asked.seed, kinds, printed=True))
    print("\n".join(report.lines()))
    if report.timeline.anomalies or report.timeline.slow:
        print(f"seed {asked.seed}: the data and logs are kept in {folder}")
        return 1
    if asked.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
