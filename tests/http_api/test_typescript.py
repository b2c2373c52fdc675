"""The program in TypeScript of docs/examples: it compiles, and does what it says, on Node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import eventstore as es
from eventstore import blocking
from tests.examples import EXAMPLES
from tests.http_api.conftest import Serve
from tests.ports import free_port
from tests.server_thread import ServerThread

COMPILER = Path(__file__).parents[2] / ".venv/node/node_modules/.bin/tsc"
NODE = shutil.which("node")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        NODE is None or not COMPILER.exists(), reason="node, or TypeScript in .venv/node (see .ci/run), is missing"
    ),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    types = COMPILER.parents[1] / "@types"
    options = ["--strict", "--target", "es2022", "--module", "nodenext", "--types", "node", "--typeRoots", str(types)]
    command = [str(COMPILER), *options, "--outDir", str(folder), str(EXAMPLES / "visits.mts")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return folder / "visits.mjs"


def test_visits_of_all_are_stored_once_and_printed_in_order(serve: Serve, program: Path) -> None:
    server = serve()
    visitors = [f"v-{number}" for number in range(8)]
    command = [str(NODE), str(program), server.http, "hall/1", "8", *visitors]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    with blocking.connect(server.address) as store:
        stored = [f"{event.version} {event.json()['by']}" for event in store.read("hall/1")]
    assert printed == stored
    assert sorted(line.split()[1] for line in stored) == visitors


def test_it_continues_after_the_server_was_away(tmp_path: Path, program: Path) -> None:
    http = f"127.0.0.1:{free_port()}"
    with ServerThread(tmp_path / "data", http=http, http_api=True) as server:
        command = [str(NODE), str(program), server.http, "hall", "2", "ada"]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert running.stdout is not None
        assert running.stdout.readline() == "1 ada\n"
    with ServerThread(tmp_path / "data", http=http, http_api=True) as server, blocking.connect(server.address) as store:
        store.append("hall", [es.NewEvent("Visited", {"by": "bob"})], 1)
        with running:
            assert running.communicate(timeout=60)[0] == "2 bob\n"
            assert running.returncode == 0
