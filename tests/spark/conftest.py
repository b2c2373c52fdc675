"""One Spark for all tests in this folder. Without Java, or without the extra `spark`, they are skipped by name."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.settings import spark_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MISSING = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from pyspark_eventstore.spark_session import why_no_java

    reason = why_no_java()
    if reason is not None:
        for item in items:
            if Path(__file__).parent in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark_eventstore.spark_session import start_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = start_session("tests", "local[2]", spark_settings(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()
