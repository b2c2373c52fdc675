"""The data source as Spark sees it: options, partitions, streaming."""
