"""What a worker needs, and does not: it may be a machine that has never seen a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKED = (
    "lmdb",
    "trio",
    "anyio",
    "sortedcontainers",
    "typer",
    "rich",
    "pydantic",
    "pydantic_settings",
    "structlog",
    "prometheus_client",
)

READS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocked())
from tests.spark.loading import reader_of
reader = reader_of(sys.argv[1])
print(sum(batch.num_rows for partition in reader.partitions() for batch in reader.read(partition)))
from pyspark_eventstore import stream
loaded = sorted(name for name in sys.modules if name.startswith("eventstore."))
print(*loaded)
"""


def test_the_readers_need_no_lmdb_and_nothing_of_a_server(tmp_path: Path) -> None:
    from tests.spark.made import three_states

    store = three_states(tmp_path / "shard")
    code = READS.format(blocked=BLOCKED)
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, cwd=ROOT, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, loaded = done.stdout.splitlines()
    assert int(count) == len(store.events())
    store.close()
    floors = {name.split(".")[1] for name in loaded.split()}
    assert floors <= {"chunks", "store", "errors", "fields", "flat", "model"}
