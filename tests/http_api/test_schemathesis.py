"""schemathesis makes requests of the OpenAPI document: what is answered is what is described, and nothing fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.http_api.conftest import Serve

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection"
)


@pytest.mark.heavy
def test_what_is_answered_is_what_is_described(serve: Serve, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    server = serve()
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.http}/api/openapi.json", "--checks", CHECKS),
        *("--max-examples", "20", "--seed", "1", "--request-timeout", "60", "--generation-database", "none"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "generated" in done.stdout
