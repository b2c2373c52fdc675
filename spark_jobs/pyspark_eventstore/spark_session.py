"""Starts a Spark session with the settings that the source needs; checks for Java and the libraries first."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from eventstore.errors import FolderRefused
from eventstore.extras import advice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
LIBRARIES: Final = ("pyspark", "pyarrow", "pandas")
SETTINGS: Final = {
    "spark.python.unix.domain.socket.enabled": "true",  # a fifth faster than TCP on loopback
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # by default INT96, which others read as local, or not at all
    "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),  # a progress bar is noise in a log
}


def start_session(name: str, master: str | None = None, settings: dict[str, str] | None = None) -> SparkSession:
    """Starts a session on `master`, or on the master given to spark-submit.

    Raises:
        FolderRefused: Java or a library is missing, or too old.
    """
    check_libraries()
    check_java()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark would start the first python3 on the path
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def check_libraries() -> None:
    """Checks that the libraries are installed.

    Raises:
        FolderRefused: a library that Spark needs is missing; says how to install it.
    """
    for name in LIBRARIES:
        if find_spec(name) is None:
            raise FolderRefused(name, f"is not installed; {advice('spark')}")


def check_java() -> None:
    """Checks that Java is installed.

    Raises:
        FolderRefused: Java is missing or too old; says what to install.
    """
    what = why_no_java()
    if what is not None:
        raise FolderRefused("java", what)


def why_no_java() -> str | None:
    """Returns why Spark would not start here, or None."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    advice = f"install Java {JAVA_MIN} or newer (Debian: openjdk-{JAVA_MIN}-jre-headless), or set JAVA_HOME"
    if java is None or not os.path.exists(java):
        return f"Spark needs Java, and {java or 'java'} was not found; {advice}"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if found is None:
        return f"{java} does not report its version; {advice}"
    return None if int(found[1]) >= JAVA_MIN else f"{java} is version {found[1]}; {advice}"
