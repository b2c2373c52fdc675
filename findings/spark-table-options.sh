#!/usr/bin/env bash
# PySpark 4.3.0: a table over a Python data source loses its path and options when it is queried.
#
# Expected: CREATE TABLE … USING letters OPTIONS (path 'x', letters 'ab') gives the source path and letters when the table is
# created and when it is queried, as CREATE TEMPORARY VIEW does.
# Seen: the source of the query is made with no options at all.
#
# Needs Java 17 or newer and Python 3.11 to 3.13. Exits 0 while Spark does this, 1 if it does something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3
cat > "$folder/letters.py" <<'PYTHON'
import os
import sys

os.environ["PYSPARK_PYTHON"] = sys.executable
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader


class Reader(DataSourceReader):
    def __init__(self, options):
        self.options = dict(options)

    def read(self, partition):
        return iter([(self.options.get("letters"), "path" in self.options)])


class Letters(DataSource):
    @classmethod
    def name(cls):
        return "letters"

    def schema(self):
        return "letters string, has_path boolean"

    def reader(self, schema):
        return Reader(self.options)


folder = sys.argv[1]
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Letters)
print("pyspark", pyspark.__version__)
found = {}
for kind in ("TEMPORARY VIEW", "TABLE"):
    name = kind.split()[-1].lower() + "_of_letters"
    spark.sql(f"CREATE {kind} {name} USING letters OPTIONS (path '{folder}/x', letters 'ab')")
    found[kind] = tuple(spark.sql(f"SELECT * FROM {name}").first())
    print(f"SELECT * FROM a {kind}\n  right ('ab', True), Spark {found[kind]}")
spark.stop()
sys.exit(0 if found == {"TEMPORARY VIEW": ("ab", True), "TABLE": (None, False)} else 1)
PYTHON
"$folder/venv/bin/python" "$folder/letters.py" "$folder" 2> "$folder/log" || { cat "$folder/log" >&2; exit 1; }
