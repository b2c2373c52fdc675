"""Reads the table of the bank's projection `Balances`."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def cents(path: Path) -> dict[str, int]:
    connection = sqlite3.connect(path)
    try:
        return dict(connection.execute("SELECT key, cents FROM balances"))
    finally:
        connection.close()
