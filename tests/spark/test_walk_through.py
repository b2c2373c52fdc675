"""The walk through of docs/SPARK.md: its query gives the table below it, and its picture is what its program draws."""

from __future__ import annotations

import gzip
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import Row, SparkSession

from eventstore import flat
from eventstore.cli.transfer.event_lines import parse_line
from eventstore.model import ANY
from eventstore.store.append import NewCommit
from tests.spark.loading import load
from tests.spark.made import MadeStore

ROOT = Path(__file__).parents[2]
REAL_DATA = ROOT.parent / "shared" / "data" / "domestic_declarations.jsonl.gz"
TEXT = (ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8").split("## A walk through")[1].split("\n## ")[0]

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(not REAL_DATA.is_file(), reason="the real events are not here")]


def shown() -> list[tuple[str, list[list[str]]]]:
    """The queries of the page, each with the table below it."""
    found = re.findall(r"^```sql\n((?:SELECT|WITH)[^`]*)```\n\n\|.*\n\|.*\n((?:\|.*\n)+)", TEXT, flags=re.M)
    return [(query, [line.strip("| ").split(" | ") for line in table.splitlines()]) for query, table in found]


def cell(value: object) -> str:
    """A value as the tables of the page show it."""
    return "–" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)


def program() -> ModuleType:
    """The program in docs/examples that draws the picture."""
    spec = importlib.util.spec_from_file_location("travel_expenses", ROOT / "docs" / "examples" / "travel_expenses.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def travel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The declarations, imported."""
    store = MadeStore(tmp_path_factory.mktemp("travel") / "travel", file_size_bytes=32 * 1024 * 1024)
    with gzip.open(REAL_DATA, "rt", encoding="utf-8") as lines:
        parsed = map(parse_line, (line.rstrip("\n") for line in lines))
        commits: list[NewCommit] = [(row[0], ANY, row[1], row[2], flat.encode(row[3])) for row in parsed]
    for first in range(0, len(commits), 5_000):
        store.append_all(commits[first : first + 5_000])
    assert f"{store.sequence:,} events" in TEXT
    store.close()
    return store.path


@pytest.fixture(scope="module")
def answers(spark: SparkSession, travel: Path) -> list[list[Row]]:
    load(spark, travel).createOrReplaceTempView("events")
    return [spark.sql(query).collect() for query, _ in shown()]


def test_each_query_gives_the_table_below_it(answers: list[list[Row]]) -> None:
    tables = [table for _, table in shown()]
    assert [len(table) for table in tables] == [8]
    assert [[list(map(cell, row)) for row in rows] for rows in answers] == tables


def test_the_picture_is_what_its_program_draws(answers: list[list[Row]]) -> None:
    drawing = program()
    assert drawing.query() == shown()[0][0]
    rows = [(row.quarter, row.declarations, float(row.days)) for row in answers[0]]
    assert drawing.chart(drawing.TITLE, rows) == (ROOT / "docs" / "payment-times.svg").read_text(encoding="utf-8")
