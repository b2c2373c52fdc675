"""A few rounds of the fuzzer, of a seed that nobody chose; and that it finds a request without an answer."""

from __future__ import annotations

import secrets
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

ROUNDS = 400
MEMORY_BYTES_MAX = 600 * 1024 * 1024
"""Far below the sum of the bounds of OPERATIONS: these requests are small, so nothing they leave may be large."""


def test_every_kind_of_request_is_made() -> None:
    assert set(MAKERS) == DECLARATIONS.keys() - {Hello}


@pytest.mark.heavy
def test_every_request_is_answered_and_nothing_is_logged_as_an_error_or_kept(tmp_path: Path) -> None:
    seed = secrets.randbelow(2**32)
    again = f"python -m tests.fuzz --seed {seed} --rounds {ROUNDS}"
    with ServerProcess(tmp_path / "data", domain=DOMAIN) as server:
        report = fuzzer.fuzz(server.port, seed, ROUNDS)
        assert not report.unanswered, again
        assert not [line for line in server.lines() if "exception" in line], again
        assert len(report.latencies_s) == ROUNDS, again
        assert server.memory_peak_bytes() < MEMORY_BYTES_MAX, again
        assert server.terminate() == 0, again
    assert report.answers.keys() >= {"Ok", "Outcomes", "Page", "Messages", "InvalidArgument", "ProtocolError"}, again


def test_a_request_without_an_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ReadRequests.__init__

    def forgetful(self: ReadRequests, *given: Any) -> None:
        made(self, *given)
        self.routes[Version] = lambda connection, request_id, request: None

    monkeypatch.setattr(ReadRequests, "__init__", forgetful)
    monkeypatch.setattr(raw, "DEADLINE_SECONDS", 1.0)
    with ServerThread(tmp_path / "data") as server:
        reports = (
            fuzzer.fuzz(server.port, seed, 5) for seed in range(30)
        )  # which kinds a seed makes changes with every new one
        unanswered = next((each.unanswered for each in reports if each.unanswered), [])
    assert unanswered
    assert all(text.startswith("VERSION") for text in unanswered)
