"""Reads event files with Spark: a data source called `eventstore`, and jobs built on it.

    spark.read.format("eventstore").load("/data/shard-0")
    spark.readStream.format("eventstore").option("maxEventsPerTrigger", 100_000).load("/data/shard-*")

Reads files only, also while a server writes them; never connects to a server. Workers need pyspark, pyarrow, numpy, msgpack
and crc32c. Spark discovers the source, because the name of this package begins with `pyspark_`.
"""

TYPE_CHECKING = False  # as in `typing`, whose import would leave Ctrl-C more time to come too early
if TYPE_CHECKING:
    from pyspark_eventstore.source.source import EventStoreSource
    from pyspark_eventstore.source.source import EventStoreSource as DefaultSource

__all__ = ["DefaultSource", "EventStoreSource"]


def _import_lazily(name: str) -> object:
    """Imports the source on first use: `eventstore-spark` must be able to report that Spark is missing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_eventstore.source.source import EventStoreSource

    return EventStoreSource


if not TYPE_CHECKING:  # a type checker would believe in every name that is asked for
    __getattr__ = _import_lazily
