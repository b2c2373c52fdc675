"""What a worker needs, and does not: it may be a machine that has never seen a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.processes import run_to_end
from tests.spark.settings import settings_folder

ROOT = Path(__file__).parents[2]
BLOCKED = (
    "lmdb",
    "trio",
    "anyio",
    "sortedcontainers",
    "typer",
    "rich",
    "pydantic",
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
from pyspark_eventstore.source import stream
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
# what docs/SPARK.md says of job.py
import pyspark_eventstore
assert ".zip" in pyspark_eventstore.__file__, pyspark_eventstore.__file__
data, out, folder = sys.argv[1:]
frame = spark.read.format("eventstore").option("partitionBytes", 65536).load(data)
seen = frame.selectExpr("sequence", "aggregate_id").collect()
def where(_):
    import pyspark_eventstore as package
    yield package.__file__
places = set(spark.sparkContext.parallelize(range(4), 4).mapPartitions(where).collect())
assert all(".zip" in place for place in places), places
from pyspark_eventstore.jobs.rebuild import rebuild_once
from pyspark_eventstore.folds.distribution import ProjectionReference
done = rebuild_once(spark, [data], ProjectionReference("totals:Totals", folder), "parquet:" + out)
print("ROWS", len(seen), frame.rdd.getNumPartitions(), done.events, done.keys, done.rows)
spark.stop()
"""

TOTALS = """
from eventstore.domain import Projection

class Totals(Projection[int]):
    name = "totals"
    columns = {"events": int}

    def initial(self):
        return 0

    def apply(self, state, event):
        return state + 1

    def row(self, key, state):
        return {"events": state}
"""


def cluster_section() -> str:
    return (ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8").split("## On a cluster")[1].split("\n## ")[0]


def cluster_commands() -> list[str]:
    """The commands of docs/SPARK.md, as they are written there."""
    block = cluster_section().split("<!-- cluster -->")[1].split("<!-- /cluster -->")[0]
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def job() -> str:
    """A job with the lines that docs/SPARK.md says a job begins with."""
    lines = cluster_section().split("```python\n")[1].split("```")[0]
    return CLUSTER.replace("# what docs/SPARK.md says of job.py", lines)


@pytest.mark.long
@pytest.mark.heavy
def test_a_cluster_of_two_workers_gets_the_package_by_py_files(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Workers are processes of their own, start elsewhere, and know our code only by the archive that was shipped."""
    from pyspark_eventstore.spark_session import why_no_java

    if (reason := why_no_java()) is not None:
        pytest.skip(reason)
    from tests.spark.made import three_states

    store = three_states(tmp_path / "shard", count=1_000)
    expected = store.sequence
    store.close()
    (tmp_path / "job.py").write_text(job())
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "totals.py").write_text(TOTALS)
    interpreter = bare_interpreter(tmp_path)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{Path(pyspark.__file__).parent / 'bin'}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": str(interpreter),
        "PYSPARK_DRIVER_PYTHON": str(interpreter),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(settings_folder(tmp_path_factory.mktemp("spark"))),
    }
    ship, submit = cluster_commands()
    submit = submit.replace("spark://…", "'local-cluster[2,1,1024]' --conf spark.executor.memory=512m")
    submit = f"{submit} {store.path} {tmp_path}/out {tmp_path}/modules"
    for command in (ship, submit):
        command = command.replace("/tmp/es.zip", f"{tmp_path}/es.zip")
        done = run_to_end(["/bin/sh", "-c", command], tmp_path, environment)
        assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    [told] = [line.split() for line in done.stdout.splitlines() if line.startswith("ROWS")]
    assert int(told[1]) == expected
    assert int(told[2]) > 2
    assert [int(number) for number in told[3:]] == [expected, 10, 10]


def test_an_archive_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pyspark_eventstore.main import run

    assert run(["ship", str(tmp_path / "nothing" / "es.zip")]) == 1
    said = "error: {}: cannot be written (No such file or directory); choose another place\n"
    assert capsys.readouterr().err == said.format(tmp_path / "nothing" / "es.zip")


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
