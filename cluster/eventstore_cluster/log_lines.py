"""The log of a node: lines as a server writes them, without the libraries for it, which a node has no room for."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

_FIELDS: Final = "fields"


def log(logger: logging.Logger, level: int, event: str, **fields: object) -> None:
    """Logs an event with its fields."""
    logger.log(level, "%s", event, extra={_FIELDS: fields})


def configure_node_logs(log_format: str, level: str) -> None:
    """Sends all log records to standard error: `console` for people, `json` for machines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else _Console())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"event": record.getMessage(), "level": record.levelname.lower(), "timestamp": _time(record), **_fields(record)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} [{record.levelname.lower():<9}] {record.getMessage():<30} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found: dict[str, object] = getattr(record, _FIELDS, {})
    return found
