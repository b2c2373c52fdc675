"""Made-up grants, tokens and handshakes; `python -m tests.fuzz.access` searches longer."""

from __future__ import annotations

from pathlib import Path

import eventstore as es
from tests.fuzz.access_fuzzer import AccessReport, fuzz_handshakes, fuzz_permissions, fuzz_tokens
from tests.security.access_file import give
from tests.security.conftest import Certificates
from tests.server_thread import ServerThread


def test_nothing_is_permitted_that_was_not_granted() -> None:
    report = AccessReport()
    fuzz_permissions(1, 5_000, report)
    assert report.broken == []
    assert min(report.outcomes["permitted"], report.outcomes["denied"]) > 500


def test_only_a_token_is_the_token() -> None:
    report = AccessReport()
    fuzz_tokens(1, 5_000, report)
    assert report.broken == []
    assert min(report.outcomes["known"], report.outcomes["unknown"]) > 500


def test_no_handshake_that_is_not_quite_right_gets_in_or_keeps_others_out(tmp_path: Path, certificates: Certificates) -> None:
    data = tmp_path / "data"
    token = give(data, "somebody", "admin")
    report = AccessReport()
    with ServerThread(data, **certificates.settings(), hello_timeout_s=1) as server:
        fuzz_handshakes(server.port, 1, 200, report, certificates.context())
        assert report.broken == []
        assert report.outcomes["refused"] > 0
        assert not server.ask(lambda running: running.security._doorkeepers[0]._admitted)
        assert server.ask(lambda running: running.security._doorkeepers[0].refused) > 0
        with es.blocking.connect(server.address, ssl_context=certificates.context(), token=token) as store:
            assert store.version("a") == 0
