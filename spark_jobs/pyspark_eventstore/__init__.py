"""Spark reads the event files of an event store: a data source called `eventstore`, and jobs that rest on it.

    spark.read.format("eventstore").load("/data/shard-0")
    spark.readStream.format("eventstore").option("maxEventsPerTrigger", 100_000).load("/data/shard-*")

Reads files only, while a server writes them or not; never talks to the server. Workers need pyspark, pyarrow, numpy, msgpack
and crc32c. Spark finds the source by itself, because the name of this package begins with `pyspark_`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_eventstore.source import EventStoreSource
    from pyspark_eventstore.source import EventStoreSource as DefaultSource

__all__ = ["DefaultSource", "EventStoreSource"]


def __getattr__(name: str) -> object:
    """The source, when it is asked for: without Spark the command `eventstore-spark` has to be able to say so."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_eventstore.source import EventStoreSource

    return EventStoreSource
