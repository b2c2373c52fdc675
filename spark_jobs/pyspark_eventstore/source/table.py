"""The columns of the source: names, and types in Spark and in Arrow.

Spark does not prune the columns of a Python source. A query that needs only some columns names them, with `.schema(…)` or the
option `columns`; the others are not built.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, StringType, StructField, StructType, TimestampType

from eventstore.errors import InvalidArgument

CORRUPT: Final = "_corrupt"
OFFSET: Final = "_offset"
FORMAT: Final = "_format"
STORED_METADATA: Final = "_metadata"

COLUMNS: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "aggregate_id": (StringType(), pa.string()),
    "version": (LongType(), pa.int64()),
    "sequence": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "type": (StringType(), pa.string()),
    "data": (BinaryType(), pa.binary()),
    "data_json": (StringType(), pa.string()),
    "metadata": (BinaryType(), pa.binary()),
    "command_id": (StringType(), pa.string()),
    "shard": (StringType(), pa.string()),
    "file": (StringType(), pa.string()),
    "tags": (ArrayType(StringType()), pa.list_(pa.string())),
    OFFSET: (LongType(), pa.int64()),
    FORMAT: (LongType(), pa.int64()),
    STORED_METADATA: (BinaryType(), pa.binary()),
    CORRUPT: (StringType(), pa.string()),
}
"""Columns on request only: `_offset`, the byte offset of the commit record; `_format`, bit 0: data is JSON, bit 1: metadata is,
bit 2: `_metadata`, the metadata as they are stored, are an envelope with tags. `_corrupt` exists in permissive mode only.
"""

PLAIN: Final = tuple(name for name in COLUMNS if not name.startswith("_"))


def table_schema(names: tuple[str, ...] | None, *, permissive: bool) -> StructType:
    """Returns the schema of these columns, or of the default ones.

    Raises:
        InvalidArgument: a column is unknown.
    """
    chosen = names if names is not None else (*PLAIN, CORRUPT) if permissive else PLAIN
    for name in chosen:
        _check_name(name)
    return StructType([StructField(name, COLUMNS[name][0]) for name in chosen])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema that Spark expects for `schema`, which may come from a user.

    Raises:
        InvalidArgument: a column is unknown or has another type.
    """
    fields = []
    for field in schema.fields:
        _check_name(field.name)
        spark, arrow = COLUMNS[field.name]
        if field.dataType != spark:
            wrong = field.dataType.simpleString()
            raise InvalidArgument(
                f"column {field.name} is requested as {wrong}, its type is {spark.simpleString()}; cast it in the query",
                field=field.name,
                value=wrong,
            )
        fields.append(pa.field(field.name, arrow, field.nullable))
    return pa.schema(fields)


def _check_name(name: str) -> None:
    if name not in COLUMNS:
        raise InvalidArgument(f"there is no column {name!r}; there are {', '.join(COLUMNS)}", field="schema", value=name)
