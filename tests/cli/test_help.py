from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.processes import output, refused

COMMANDS = (
    "serve",
    "work",
    "send",
    "project",
    "import",
    "export",
    "read",
    "tail",
    "append",
    "stats",
    "inspect",
    "verify",
    "rebuild",
)
HEAVY = ("trio", "numpy", "lmdb", "rich", "structlog", "pydantic_settings", "anyio", "msgpack")


def test_help_lists_every_command() -> None:
    text = output("--help")
    assert all(f"\n  {command} " in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    text = output(command, "--help")
    assert f"Example:\n    eventstore {command}" in text


def test_version() -> None:
    assert output("--version").startswith("eventstore ")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from eventstore.cli.main import run; run(['--help']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


def test_an_unknown_command_is_refused_in_one_line() -> None:
    assert "No such command" in refused("conquer", code=2)


def test_a_missing_argument_is_refused_in_one_line() -> None:
    assert "Missing argument" in refused("read", code=2)


def test_no_command_shows_help() -> None:
    result = subprocess.run([sys.executable, "-m", "eventstore.cli.main"], capture_output=True, text=True, check=False)
    assert "Commands:" in result.stdout + result.stderr
