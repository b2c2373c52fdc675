"""A few rounds of the fuzzer, each day from another seed; and that it finds a request without an answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from eventstore.protocol.request_declaration import DECLARATIONS
from eventstore.protocol.requests import Hello, Version
from eventstore.server.requests.read_requests import ReadRequests
from tests.fuzz import fuzzer
from tests.fuzz.__main__ import DOMAIN
from tests.fuzz.request_maker import MAKERS
from tests.server import raw
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread


def test_every_kind_of_request_is_made() -> None:
    assert set(MAKERS) == DECLARATIONS.keys() - {Hello}


@pytest.mark.heavy
@pytest.mark.parametrize("rounds", [120, pytest.param(400, marks=pytest.mark.long)])
def test_every_request_is_answered_and_nothing_is_logged_as_an_error_or_kept(tmp_path: Path, rounds: int) -> None:
    seed = datetime.now(UTC).toordinal()
    again = f"python -m tests.fuzz --seed {seed} --rounds {rounds}"
    print(again)
    with ServerProcess(tmp_path / "data", domain=DOMAIN) as server:
        report = fuzzer.fuzz(server.port, seed, rounds)
        assert not report.unanswered, again
        assert not [line for line in server.lines() if "exception" in line], again
        assert len(report.latencies_s) == rounds, again
        assert server.memory_peak_bytes() < fuzzer.MEMORY_BYTES_MAX, again
        assert server.terminate() == 0, again
    assert report.answers.keys() >= {"Ok", "Outcomes", "Page", "Messages", "InvalidArgument", "ProtocolError"}, again


def test_a_client_that_waits_for_much_longer_than_before_is_late() -> None:
    def late(before_s: float, then_s: float) -> bool:
        return fuzzer.Report(latencies_s=[then_s] * 100, before_s=[before_s] * 100).late

    assert late(0.001, 0.06)
    assert late(0.02, 0.11)
    assert not late(0.001, 0.04)
    assert not late(0.02, 0.09), "the machine is slow"
    assert not fuzzer.Report(latencies_s=[0.001] * 999 + [9.0], before_s=[0.001]).late


def test_a_request_without_an_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ReadRequests.__init__

    def forgetful(self: ReadRequests, *given: Any) -> None:
        made(self, *given)
        routes = {**self.feature.routes, Version: lambda connection, request_id, request: None}
        self.feature = replace(self.feature, routes=routes)

    monkeypatch.setattr(ReadRequests, "__init__", forgetful)
    monkeypatch.setattr(raw, "DEADLINE_SECONDS", 1.0)
    with ServerThread(tmp_path / "data") as server:
        reports = (
            fuzzer.fuzz(server.port, seed, 5) for seed in range(30)
        )  # which kinds a seed makes changes with every new one
        unanswered = next((each.unanswered for each in reports if each.unanswered), [])
    assert unanswered
    assert all(text.startswith("VERSION") for text in unanswered)
