"""Fuzzes a server for some rounds and reports what it saw. Exit code 1 if a promise was broken; the seed repeats a run."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.fuzz.fuzzer import MEMORY_BYTES_MAX, fuzz
from tests.server_process import ServerProcess

DOMAIN = "docs.examples.bank:app"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder) / "data", domain=DOMAIN) as server:
        report = fuzz(server.port, given.seed, given.rounds)
        said = [line for line in server.lines() if "exception" in line]
        peak = server.memory_peak_bytes()
    print(f"{report.requests} requests in {report.rounds} rounds; peak memory {peak >> 20} MiB")
    print(f"a healthy client's appends: p99 {report.p99_s * 1000:.1f} ms, {report.p99_before_s * 1000:.1f} ms before")
    for name, count in report.answers.most_common():
        print(f"  {name:20} {count}")
    broken = [*report.unanswered, *said]
    if peak >= MEMORY_BYTES_MAX:
        broken.append(f"the server needed {peak >> 20} MiB, allowed are {MEMORY_BYTES_MAX >> 20}")
    if report.late:
        broken.append("a healthy client waits for much longer than before")
    for text in broken:
        print("broken:", text)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
