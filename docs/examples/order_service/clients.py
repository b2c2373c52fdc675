"""The clients of this process: made once, where this module is imported; they connect at their first calls."""

from __future__ import annotations

import os

import eventstore as es

_STORE = os.environ.get("EVENTSTORE_STORE", "tcp://127.0.0.1:7701")

store = es.blocking.connect(_STORE, name="orders", timeout=5)
"""Reads events."""
commands = es.blocking.connect(os.environ.get("ORDERS_WORKERS", _STORE), name="orders", timeout=5)
"""Sends commands, to workers that run the domain; without any to the server of the store."""
