"""A request is added to a copy of the project as HACKING says, in four places, and the rest follows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.pages import ROOT, TIMEOUT_S, text_of

COPIED = (".ci", "docs", "eventstore")
HEAD = "from __future__ import annotations\n"
GENERATE = """
import sys

sys.path.insert(0, ".ci")
from blocking_client import blocking_modules
from protocol_page import protocol_page

for path, text in blocking_modules().items():
    path.write_text(text)
print(protocol_page())
"""
PROGRAM = """
import sys
from pathlib import Path

from eventstore import UnknownTopic, blocking
from tests.cluster.node_process import NodeProcess
from tests.server_thread import ServerThread

def node_of(folder: Path) -> NodeProcess:
    return NodeProcess(folder, 2, before=["env"])  # a process that is forked has the modules of this project as they are


with ServerThread(Path(sys.argv[1]) / "alone") as server, node_of(Path(sys.argv[1]) / "shards") as node:
    for address in server.address, node.address:
        with blocking.connect(address) as store:
            store.broker.create_topic("orders")
            with store.consumer("billing", "orders"):
                print([(each.name, each.members) for each in store.broker.reading_groups("orders")])
            try:
                store.broker.reading_groups("bills")
            except UnknownTopic as error:
                print(error.fields["topic"])
    node.terminate()
"""


def added(text: str, block: str) -> str:
    """Returns a module with what a page shows of it: imports at its beginning, the rest at its end."""
    imports = "".join(line + "\n" for line in block.splitlines() if line.startswith("from "))
    rest = "".join(line + "\n" for line in block.splitlines() if not line.startswith("from "))
    return text.replace(HEAD, HEAD + "\n" + imports, 1) + "\n\n" + rest.strip("\n") + "\n"


@pytest.mark.heavy
def test_a_request_that_is_added_in_four_places_is_answered_by_a_server_and_by_several_shards(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for folder in COPIED:
        shutil.copytree(ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", project)
    blocks = re.findall(r"^```python (eventstore/\S+)\n(.*?)^```", text_of("docs/HACKING.md"), flags=re.M | re.S)
    assert len(blocks) == 4
    for name, block in blocks:
        (project / name).write_text(added((project / name).read_text(encoding="utf-8"), block), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (project, ROOT)))}

    def run(*command: object) -> str:
        given = [sys.executable, *map(str, command)]
        done = subprocess.run(
            given, cwd=project, env=environment, timeout=TIMEOUT_S, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    row = "| 98 | LIST_READING_GROUPS | topic (str) | OK: (name (str), generation (int), number of members (int)) … | `stats` |"
    assert row in run("-c", GENERATE)
    told = [line for line in run("-c", PROGRAM, tmp_path).splitlines() if line.startswith(("[(", "bills"))]
    assert told == ["[('billing', 1)]", "bills"] * 2
