"""Structured logs on standard error: one line per event, for people (`console`) or for machines (`json`)."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from eventstore.fields import escaped

LINES_A_MINUTE: Final = 100
_MINUTE_S: Final = 60.0


@contextmanager
def _stand_in(name: str, module: ModuleType | None) -> Iterator[None]:
    """Gives this to what imports a module meanwhile, unless it is loaded already. None: there is no such module."""
    missing = name not in sys.modules
    if missing:
        sys.modules[name] = module  # type: ignore[assignment] # None, as the documentation of `sys.modules` says
    try:
        yield
    finally:
        if missing:
            del sys.modules[name]


# structlog loads rich for tracebacks that are not printed here, asyncio for methods that are not called, greenlet for contexts
# that are not used, each where it is installed: 3, 1.4 and 1.1 MB a shard
with _stand_in("rich", None), _stand_in("asyncio", ModuleType("asyncio")), _stand_in("greenlet", None):
    import structlog

get_logger = structlog.get_logger


def configure_logs(log_format: str, level: str, shard: int | None = None) -> None:
    """Sends all log records, including those of libraries, through structlog. `shard`: named in each line."""

    def name_shard(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return event if shard is None else {"shard": shard, **event}

    shared: list[structlog.typing.Processor] = [
        name_shard,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered: list[structlog.typing.Processor] = (
        [structlog.processors.JSONRenderer()]
        if log_format == "json"
        else [_on_one_line, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    processors: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        *rendered,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(LineLimit())
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=processors))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _on_one_line(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escapes what is not printable: the text of an exception may hold a client's line breaks, and would forge lines."""
    return {**event, "event": escaped(str(event.get("event", "")))}


class LineLimit(logging.Filter):
    """Lets each place in this project's code log 100 lines a minute: no client fills the disk with what is said of it.

    The first line after those that were left out says how many they are. Debugging and programs' own lines are not limited.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._lock = clock, threading.Lock()
        self._since = clock()
        self._lines: dict[tuple[str, int], int] = {}
        self._left_out: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO or record.name.partition(".")[0] != "eventstore":
            return True
        place = record.pathname, record.lineno
        with self._lock:
            now = self._clock()
            if now >= self._since + _MINUTE_S:
                self._since = now
                self._left_out |= {
                    each: lines - LINES_A_MINUTE for each, lines in self._lines.items() if lines > LINES_A_MINUTE
                }
                self._lines.clear()
            lines = self._lines[place] = self._lines.get(place, 0) + 1
            left_out = self._left_out.pop(place, 0)
        if left_out:
            record.msg = _with_count(record.msg, left_out)
        return lines <= LINES_A_MINUTE


def _with_count(message: object, left_out: int) -> object:
    if isinstance(message, dict):
        return {**message, "left_out": left_out}
    return f"{message} ({left_out} more like this were left out before)"
