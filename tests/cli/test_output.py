"""Stored text that is shown to people cannot control their terminal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from eventstore.fields import escaped, for_people
from tests.cli.processes import PROGRAM, Server, line, output, run

Serve = Callable[..., Server]
EVIL = "a\x1b]0;owned\x07\n\x9b2J\u202eb"
ESCAPED = "a\\x1b]0;owned\\x07\\n\\x9b2J\\u202eb"


@pytest.mark.parametrize("text", ["", "order-42", "größer – 東京 🙂"])
def test_printable_text_is_not_changed(text: str) -> None:
    assert escaped(text) == text


def test_characters_that_are_not_printable_are_escaped() -> None:
    assert escaped(EVIL) == ESCAPED
    assert escaped("\udcff") == "\\udcff"


def test_an_empty_value_is_shown_as_a_dash() -> None:
    assert [for_people(None), for_people(""), for_people(0), for_people(False), for_people(1234)] == [
        "–",
        "–",
        "0",
        "no",
        "1,234",
    ]


def test_ids_and_types_do_not_reach_the_terminal_raw(serve: Serve) -> None:
    server = serve("--set", "preload_interval_s=0.1")
    appended = output("append", EVIL, "--type", EVIL, "--data", '{"a":\n1}', "--command-id", "c", store=server.store)
    assert appended == f"{ESCAPED} is at version 1 (sequence 1)\n"
    read = output("read", EVIL, store=server.store)
    assert f'{ESCAPED}  {{"a": 1}}\n' in read
    tail = output("tail", "--no-follow", store=server.store)
    assert tail.startswith(f"#1  {ESCAPED}  v1  ")
    assert json.loads(output("tail", "--no-follow", "--json", store=server.store))["aggregate_id"] == EVIL
    assert server.stop() == 0
    for name in ("recent.json", "events/0000000001.events"):
        inspected = output("inspect", server.data / name)
        assert ESCAPED in inspected
        assert all(each.isprintable() for each in inspected.split("\n"))


def test_a_full_disk_is_reported_with_the_next_step() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run([*PROGRAM, "--version"], check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "error: No space left on device; free some space and try again\n")


def test_errors_and_refusals_do_not_reach_the_terminal_raw(shared: Server) -> None:
    broken = run("import", "-", store=shared.store, text=line("b", "c", timestamp=EVIL) + "\n")
    assert "\x1b" not in broken.stdout + broken.stderr
    conflict = run("append", EVIL, "--type", "T", "--data", "1", "--expected-version", "7", store=shared.store)
    assert conflict.returncode == 1
    assert len(conflict.stderr.splitlines()) == 1
    assert "\x1b" not in conflict.stderr
