"""The file layer: append-only chunk files, checked records, one double-buffered writer, recovery.

Knows nothing of aggregates or topics. `eventstore.store` and `eventstore.broker` stand side by side on it.
"""
