"""Fuzzes a server for some rounds and reports what it saw. Exit code 1 if a promise was broken; the seed repeats a run."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.fuzz.fuzzer import fuzz
from tests.server_process import ServerProcess

DOMAIN = "docs.examples.bank:app"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder) / "data", domain=DOMAIN) as server:
        report = fuzz(server.port, given.seed, given.rounds)
        said = [line for line in server.lines() if "exception" in line]
        peak = server.memory_peak_bytes()
    print(f"{report.requests} requests in {report.rounds} rounds; peak memory {peak >> 20} MiB")
    print(f"a healthy client's appends: p99 {report.p99_s * 1000:.1f} ms")
    for name, count in report.answers.most_common():
        print(f"  {name:20} {count}")
    for text in (*report.unanswered, *said):
        print("broken:", text)
    return 1 if report.unanswered or said else 0


if __name__ == "__main__":
    sys.exit(main())
