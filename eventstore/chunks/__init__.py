"""The file layer: append-only chunk files, checked records, a double-buffered writer, recovery.

It knows neither aggregates nor topics; the store and the broker both build on it.
"""
