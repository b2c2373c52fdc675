"""The columns of the source: their names, and their types in Spark and in Arrow.

Spark prunes no columns of a Python source. Whoever needs only some of them names them, with `.schema(…)` or the option
`columns`; what is not named is not built.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType, TimestampType

from eventstore.errors import InvalidArgument

CORRUPT: Final = "_corrupt"
OFFSET: Final = "_offset"
FORMAT: Final = "_format"

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
    OFFSET: (LongType(), pa.int64()),
    FORMAT: (LongType(), pa.int64()),
    CORRUPT: (StringType(), pa.string()),
}
"""Only where they are asked for: `_offset`, the byte offset of the commit record; `_format`, bit 0: data is JSON, bit 1:
metadata is. `_corrupt` is there in permissive mode alone.
"""

PLAIN: Final = tuple(name for name in COLUMNS if not name.startswith("_"))
NEVER_NULL: Final = frozenset(COLUMNS) - {"data_json", "metadata", CORRUPT}


def table_schema(names: tuple[str, ...] | None, *, permissive: bool) -> StructType:
    """The schema of these columns, or of all that are there without being asked for.

    Raises:
        InvalidArgument: there is no such column.
    """
    chosen = names if names is not None else (*PLAIN, CORRUPT) if permissive else PLAIN
    for name in chosen:
        _check_name(name)
    return StructType([StructField(name, COLUMNS[name][0]) for name in chosen])


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects of record batches for `schema`, which a user may have given.

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
                f"column {field.name} is asked for as {wrong}, it is {spark.simpleString()}; cast it in the query",
                field=field.name,
                value=wrong,
            )
        fields.append(pa.field(field.name, arrow, field.nullable))
    return pa.schema(fields)


def _check_name(name: str) -> None:
    if name not in COLUMNS:
        raise InvalidArgument(f"there is no column {name!r}; there are {', '.join(COLUMNS)}", field="schema", value=name)
