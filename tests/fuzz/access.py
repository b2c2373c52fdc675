"""Fuzzes grants, tokens and handshakes. Exit code 1 if a promise was broken; the seed repeats a run but for its tokens."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from eventstore.security.certificates import make_certificate
from tests.fuzz.access_fuzzer import AccessReport, fuzz_handshakes, fuzz_permissions, fuzz_tokens
from tests.security.access_file import give
from tests.security.conftest import Certificates
from tests.server_process import ServerProcess


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.access", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    report = AccessReport()
    handshakes = given.inputs // 20
    fuzz_permissions(given.seed, given.inputs * 3 // 5, report)
    fuzz_tokens(given.seed, given.inputs - given.inputs * 3 // 5 - handshakes, report)
    with tempfile.TemporaryDirectory() as folder:
        certificates = Certificates(Path(folder) / "certificates")
        make_certificate(certificates.folder, ["localhost", "127.0.0.1"], 1)
        data = Path(folder) / "data"
        give(data, "somebody", "admin")
        with ServerProcess(data, **certificates.settings(), hello_timeout_s=1) as server:
            fuzz_handshakes(server.port, given.seed, handshakes, report, certificates.context())
            report.broken += [line for line in server.lines() if "exception" in line]
    for name, count in (*report.inputs.items(), *report.outcomes.most_common()):
        print(f"  {name:12} {count}")
    for text in report.broken:
        print("broken:", text)
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
