"""What clients do fills no log."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import eventstore as es
from eventstore.server.logs import LINES_A_MINUTE, LineLimit
from tests.server.conftest import Launch


def record(message: object, line: int, name: str = "eventstore.alarms", level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord(name, level, "alarms.py", line, message, (), None)


def test_a_place_in_the_code_logs_so_many_lines_a_minute_and_then_how_many_were_left_out() -> None:
    now = 0.0
    limit = LineLimit(lambda: now)
    assert sum(limit.filter(record("said", 1)) for _ in range(150)) == LINES_A_MINUTE
    assert limit.filter(record("said elsewhere", 2))
    assert all(limit.filter(record("debugging", 1, level=logging.DEBUG)) for _ in range(150))
    assert all(limit.filter(record("of a domain", 1, name="bank")) for _ in range(150))
    assert sum(limit.filter(record({"event": "said"}, 3)) for _ in range(120)) == LINES_A_MINUTE
    now = 60.0
    text, fields = record("said", 1), record({"event": "said"}, 3)
    assert limit.filter(text)
    assert text.getMessage() == "said (50 more like this were left out before)"
    assert limit.filter(fields)
    assert fields.msg == {"event": "said", "left_out": 20}
    again = record("said", 1)
    assert limit.filter(again)
    assert again.getMessage() == "said"


async def test_a_client_that_silences_alarms_again_and_again_does_not_fill_the_log(launch: Launch, tmp_path: Path) -> None:
    server = launch()
    async with es.connect(server.address) as store:
        for _ in range(2 * LINES_A_MINUTE):
            await store.alarms.silence("disk_nearly_full", 1, who="me", why="again")
    assert server.log().count("is silenced for") == LINES_A_MINUTE
    assert server.terminate() == 0


def test_what_an_exception_says_forges_no_line_and_moves_no_cursor(capfd: pytest.CaptureFixture[str]) -> None:
    said = "no such item\n2026-11-26T16:09:53.815525Z [info     ] all is well \x1b[2J"
    program = (
        "import logging, sys; from eventstore.server.logs import configure_logs; configure_logs(sys.argv[1], 'info'); "
        "logging.getLogger('eventstore.domain').warning('ValueError: %s; the event is parked', sys.argv[2])"
    )
    for log_format in ("console", "json"):
        subprocess.run([sys.executable, "-c", program, log_format, said], check=True)
        (line,) = capfd.readouterr().err.splitlines()
        assert "all is well" in line
        assert "; the event is parked" in line
        assert line.isprintable()
