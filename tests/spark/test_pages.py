"""What the pages say of the package is what there is."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eventstore.errors import InvalidArgument
from eventstore.model import NewEvent
from pyspark_eventstore.source.source import EventStoreSource
from pyspark_eventstore.source.source_options import parse_options
from pyspark_eventstore.source.table import COLUMNS
from pyspark_eventstore.spark_session import why_no_java
from tests.processes import run_to_end
from tests.spark.made import MadeStore
from tests.spark.settings import settings_folder

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_page_of_spark_names_every_column_and_every_option() -> None:
    text = page("SPARK.md")
    assert [name for name in COLUMNS if f"`{name}`" not in text] == []
    options = text.split("## Options")[1].split("\n## ")[0]
    given = {
        "columns": "data", "mode": "permissive", "partitionBytes": "65536", "after": "{}", "upto": "{}", "types": "T",
        "aggregate_id": "a", "aggregate_prefix": "a", "startingVersion": "1", "endingVersion": "1",
        "startingTimestamp": "2026-01-31T00:00Z", "endingTimestamp": "2026-01-31T00:00Z",
        "maxEventsPerTrigger": "1", "startingOffsets": "latest", "report": "x",
    }  # fmt: skip
    for name, value in given.items():
        assert f"`{name}`" in options
        parse_options({"path": "x", name: value})


@pytest.mark.parametrize("name", ["startingOffsets", "maxEventsPerTrigger"])
def test_an_option_of_streams_is_refused_by_a_query_that_reads_once(name: str) -> None:
    """Spark passes names in lower case."""
    source = EventStoreSource({"path": "x", name.lower(): {"startingOffsets": "latest"}.get(name, "9")})
    with pytest.raises(InvalidArgument, match=f"{name} is an option of readStream; .* by after and upto") as caught:
        source.reader(source.schema())
    assert caught.value.fields["field"] == name


@pytest.mark.heavy
def test_the_program_of_the_page_prints_what_is_below_it(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """On the bank of CLIENT.md."""
    if (reason := why_no_java()) is not None:
        pytest.skip(reason)
    program, printed = re.findall(r"^```\w+ totals.py\n(.*?)^```$", page("SPARK.md"), flags=re.M | re.S)
    store = MadeStore(tmp_path / "accounts")
    for place, (account, cents) in enumerate([("acc-1", 100), ("acc-1", -30), ("acc-2", 7), ("acc-1", 5)]):
        store.append(account, NewEvent("Moved", {"cents": cents}), command_id=f"c-{place}")
    store.close()
    (tmp_path / "totals.py").write_text(program)
    hostile = tmp_path / "bin" / "python3"  # the first of the path has not the package
    hostile.parent.mkdir()
    hostile.write_text("#!/bin/sh\nexit 3\n")
    hostile.chmod(0o755)
    settings = {
        "PATH": f"{hostile.parent}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(settings_folder(tmp_path_factory.mktemp("spark"))),
    }  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = run_to_end([sys.executable, "totals.py"], tmp_path, {**environment, **settings})
    assert done.stdout.strip() == printed.strip(), done.stderr


def test_the_picture_of_the_walk_through_shows_the_table_above_it() -> None:
    text = page("SPARK.md").split("| quarter | declarations | days, median |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (\S+) \| ([\d,]+) \| ([\d.]+) \|$", text, flags=re.M)
    assert len(rows) == 8
    drawn = [node.text for node in ElementTree.parse(ROOT / "docs" / "payment-times.svg").iter() if node.tag.endswith("}text")]
    for quarter, count, days in rows:
        place = drawn.index(quarter)
        assert drawn[place - 1 : place + 2] == [days, quarter, f"{count} paid"]
