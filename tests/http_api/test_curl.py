"""curl as a client: a large body, which it announces first, a stream, TLS."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.http_api.asking import ANY_EVENT
from tests.http_api.conftest import Serve
from tests.security.access_file import give
from tests.security.conftest import Certificates, certificates  # noqa: F401 # a fixture

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
Curl = Callable[..., str]


@pytest.fixture
def curl(tmp_path: Path) -> Curl:
    """Runs curl and returns what it prints."""

    def run(*arguments: str) -> str:
        command = ["curl", "--silent", "--show-error", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    return run


def test_a_large_body_is_announced_and_taken(tmp_path: Path, serve: Serve, curl: Curl) -> None:
    body = {"events": [{"type": "T", "data": "x" * 3_000_000}] * 2, "expected_version": 0}
    (tmp_path / "body.json").write_text(json.dumps(body))
    url = f"{serve().http}/api/aggregates/a-1/events"
    told = curl("--json", "@body.json", "-H", "Idempotency-Key: c-1", "-H", "Expect: 100-continue", "-i", url)
    assert told.startswith("HTTP/1.1 100")
    assert "HTTP/1.1 201" in told
    page = json.loads(curl(url))  # ends with the event that exceeds the bytes of a page
    assert len(page["events"]) == 2


def test_one_connection_takes_many_requests_also_after_one_that_is_refused(serve: Serve, curl: Curl) -> None:
    url = f"{serve().http}/api/aggregates/a-1/events"
    given = ["-H", "Idempotency-Key: c-1", "--json", json.dumps({"events": [ANY_EVENT], "expected_version": 0})]
    says = ["-s", "-o", "/dev/null", "-w", "%{http_code} %{num_connects}\\n", url]
    refused = ["-H", "Idempotency-Key: c-1", "-H", "Content-Type: text/plain", "-d", "x" * 10_000]
    told = curl(*given, *says, "--next", *refused, *says, "--next", *given, *says)
    assert told.splitlines() == ["201 1", "415 0", "200 0"]


def test_over_tls_with_a_token(
    tmp_path: Path,
    serve: Serve,
    curl: Curl,
    certificates: Certificates,  # noqa: F811
) -> None:
    token = give(tmp_path / "data", "billing", "writer", "read")
    server = serve(**certificates.settings())
    url = f"{server.http.replace('http://127.0.0.1', 'https://localhost')}/api/aggregates/a-1/events"
    given = ["--cacert", certificates.ca, url]
    assert json.loads(curl(*given))["title"] == "Unauthenticated"
    body = json.dumps({"events": [ANY_EVENT], "expected_version": 0})
    known = ["-H", f"Authorization: Bearer {token}"]
    assert json.loads(curl(*known, "--json", body, "-H", "Idempotency-Key: c-1", *given))["version"] == 1
    assert len(json.loads(curl(*known, *given))["events"]) == 1
