"""The libraries of the API are loaded only where it is served, and those of the console are not needed for it."""

from __future__ import annotations

import subprocess
import sys

IMPORTED = "print(sorted(each for each in ('starlette', 'hypercorn', 'jinja2') if each in sys.modules))"


def output_of(program: str) -> str:
    command = [sys.executable, "-c", f"import sys; {program}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_server_without_it_loads_none_of_them() -> None:
    assert output_of(f"import eventstore.server.serve, eventstore.server.http; {IMPORTED}") == "[]"


def test_it_does_without_those_that_only_the_console_needs() -> None:
    program = "sys.modules['jinja2'] = None; import eventstore.server.http, eventstore.http_api.assembly"
    listens = "import eventstore.console.gatekeeping, eventstore.console.listener"
    assert output_of(f"{program}; {listens}; print('loaded')") == "loaded"
