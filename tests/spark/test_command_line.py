"""The command `eventstore-spark` itself. It needs no Spark to print its version and its help."""

from __future__ import annotations

import re

import pytest

from eventstore import __version__
from pyspark_eventstore.jobs.rebuild import Rebuilt
from pyspark_eventstore.main import run


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr() == (f"eventstore-spark {__version__}\n", "")


def test_no_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "\n  rebuild  Rebuild a read model" in shown
    assert run([]) == 2
    assert capsys.readouterr() == (shown, "")


@pytest.mark.parametrize("command", ["export", "compact", "verify", "rebuild", "diff", "ship"])
def test_help_shows_no_types_of_python(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Example:\n    eventstore-spark {command}" in shown
    assert not re.search(r"<\w|\{\w|\.{4}", shown)


def test_one_event_is_not_called_events() -> None:
    assert Rebuilt(1, 1, 1, {}).told(0.5) == "1 event of 1 key, 1 row in 0.5 s"
    assert Rebuilt(1_000, 2, 0, {}).told(0.5) == "1,000 events of 2 keys, 0 rows in 0.5 s"
