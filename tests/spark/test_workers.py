"""What a worker needs, and does not: it may be a machine that has never seen a server."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

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
    assert {"chunks", "store", "errors"} <= floors
    assert floors.isdisjoint({"server", "client", "protocol", "broker", "domain", "cli"})


CLUSTER = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
from pyspark_eventstore import DefaultSource
import pyspark_eventstore
assert ".zip" in pyspark_eventstore.__file__, pyspark_eventstore.__file__
spark.dataSource.register(DefaultSource)
frame = spark.read.format("eventstore").option("partitionBytes", 65536).load(sys.argv[1])
seen = frame.selectExpr("sequence", "aggregate_id").collect()
def where(_):
    import pyspark_eventstore as package
    yield package.__file__
places = set(spark.sparkContext.parallelize(range(4), 4).mapPartitions(where).collect())
assert all(".zip" in place for place in places), places
print("ROWS", len(seen), frame.rdd.getNumPartitions())
"""


@pytest.mark.heavy
def test_a_cluster_of_two_workers_gets_the_package_by_py_files(tmp_path: Path) -> None:
    """Workers are processes of their own, start elsewhere, and know our code only by the archive that was shipped."""
    from pyspark_eventstore.session import why_no_java

    if (reason := why_no_java()) is not None:
        pytest.skip(reason)
    from tests.spark.made import three_states

    store = three_states(tmp_path / "shard", count=3_000)
    expected = store.sequence
    store.close()
    archive = ship(tmp_path / "shipped.zip")
    script = tmp_path / "job.py"
    script.write_text(CLUSTER)
    interpreter = bare_interpreter(tmp_path)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": str(interpreter),
        "PYSPARK_DRIVER_PYTHON": str(interpreter),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [
            str(submit), "--master", "local-cluster[2,1,1024]", "--py-files", str(archive),
            "--conf", "spark.sql.python.filterPushdown.enabled=true", "--conf", "spark.ui.enabled=false",
            "--conf", f"spark.local.dir={tmp_path}", "--conf", "spark.executor.memory=512m",
            str(script), str(store.path),
        ],
        capture_output=True, text=True, cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    [told] = [line.split() for line in done.stdout.splitlines() if line.startswith("ROWS")]
    assert int(told[1]) == expected
    assert int(told[2]) > 2


def ship(archive: Path) -> Path:
    """The packages that workers need, as docs/SPARK.md tells to pack them."""
    with zipfile.ZipFile(archive, "w") as target:
        for top, package in ((ROOT, "eventstore"), (ROOT / "spark_jobs", "pyspark_eventstore")):
            for path in sorted((top / package).rglob("*.py")):
                target.write(path, path.relative_to(top))
    return archive


def bare_interpreter(folder: Path) -> Path:
    """A Python with the libraries of this environment, but without our own packages on its path."""
    site = folder / "site"
    site.mkdir()
    for entry in Path(pyspark.__file__).parents[1].iterdir():
        if entry.suffix != ".pth" and "eventstore_trio" not in entry.name:
            (site / entry.name).symlink_to(entry)
    script = folder / "python3"
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:$PYTHONPATH" exec "{base}" "$@"\n')
    script.chmod(0o755)
    return script
