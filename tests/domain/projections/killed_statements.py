"""Kills this process as it is about to execute its n-th statement in a database of tables."""

from __future__ import annotations

import os
import signal
import sqlite3
from typing import Any

from eventstore.domain.projections.targets.sqlite import SQLiteTarget


def count_statements(number: int) -> None:
    """`number`: of the statement that is not executed, from 1."""
    left = number

    def step(*ignored: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    connect = SQLiteTarget._connect

    def connect_traced(self: SQLiteTarget) -> sqlite3.Connection:
        connection = connect(self)
        connection.set_trace_callback(step)
        return connection

    SQLiteTarget._connect = connect_traced  # type: ignore[method-assign] # of this process alone
    try:
        from psycopg import Connection
    except ImportError:
        return
    execute = Connection.execute

    def execute_counted(self: Any, *arguments: Any, **options: Any) -> Any:
        step()
        return execute(self, *arguments, **options)

    Connection.execute = execute_counted  # type: ignore[method-assign, assignment] # of this process alone
