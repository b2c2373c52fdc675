#!/usr/bin/env bash
# PySpark 4.3.0: filters that one reference to a view pushes to a Python data source decide the rows of all references.
#
# Expected: four rows are a, a, a, b, however often a query names the view, and whatever it asked before.
# Seen: Spark calls pushFilters() of a new reader for each filtered reference, keeps the last reader for the relation, and
# reads with it for all references, those without a filter included; also in later queries.
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
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition


class Reader(DataSourceReader):
    wanted = None

    def pushFilters(self, filters):
        for each in filters:
            if isinstance(each, EqualTo):
                self.wanted = each.value
            else:
                yield each  # left to Spark

    def partitions(self):
        return [InputPartition(self.wanted)]

    def read(self, partition):
        return ((letter,) for letter in "aaab" if partition.value in (None, letter))


class Letters(DataSource):
    @classmethod
    def name(cls):
        return "letters"

    def schema(self):
        return "letter string"

    def reader(self, schema):
        return Reader()


spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Letters)
print("pyspark", pyspark.__version__)
QUERIES = {
    "SELECT (SELECT count(*) FROM v WHERE letter = 'a'), (SELECT count(*) FROM v WHERE letter = 'b')": ((3, 1), (1, 1)),
    "SELECT (SELECT count(*) FROM v), (SELECT count(*) FROM v WHERE letter = 'b')": ((4, 1), (1, 1)),
    "SELECT count(*) FROM v x WHERE letter = 'a' AND NOT EXISTS (SELECT 1 FROM v y WHERE y.letter = 'b' AND x.letter = y.letter)":
        ((3,), (0,)),
}
same = True
for query, (right, seen) in QUERIES.items():
    spark.read.format("letters").load().createOrReplaceTempView("v")
    found = tuple(spark.sql(query).first())
    same = same and found == seen
    print(f"{query}\n  right {right}, Spark {found}")
spark.read.format("letters").load().createOrReplaceTempView("v")
spark.sql("SELECT * FROM v WHERE letter = 'b'").collect()
found = spark.sql("SELECT * FROM v").count()
same = same and found == 1
print(f"SELECT count(*) FROM v, after a query WHERE letter = 'b'\n  right 4, Spark {found}")
spark.stop()
sys.exit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/letters.py" 2> "$folder/log" || { cat "$folder/log" >&2; exit 1; }
