"""Structured logs on standard error: one line per event, for people (`console`) or for machines (`json`)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


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


# structlog loads rich for tracebacks that are not printed here, asyncio for methods that are not called: 3 and 1.4 MB a shard
with _stand_in("rich", None), _stand_in("asyncio", ModuleType("asyncio")):
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
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    processors: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        renderer,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=processors))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
