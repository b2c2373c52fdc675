"""`eventstore import` into several shards: the lines of a file reach the shards of their aggregates, in order."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore import blocking
from tests.cli.processes import line, output, refused, start
from tests.cluster.led_shards import LedShards
from tests.waiting import wait_until

LINES = 3_000


@pytest.fixture
def led(tmp_path: Path) -> Iterator[LedShards]:
    with LedShards(tmp_path, 3) as shards:
        yield shards


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(line(f"a-{number % 50}", f"c-{number}", data={"number": number}) + "\n" for number in range(LINES)))
    return path


def imported(led: LedShards, *arguments: object) -> tuple[int, int, int]:
    summary: dict[str, Any] = json.loads(output("import", *arguments, "--json", store=led.address))
    return summary["new"], summary["repeated"], summary["refused"]


def check_order(led: LedShards) -> None:
    with blocking.connect(led.address) as store:
        for number in range(50):
            found = [json.loads(event.data)["number"] for event in store.read(f"a-{number}")]
            assert found == list(range(number, LINES, 50))


def test_every_line_is_stored_once_and_importing_again_writes_nothing(led: LedShards, file: Path) -> None:
    assert imported(led, file) == (LINES, 0, 0)
    assert imported(led, file) == (0, LINES, 0)
    check_order(led)
    text = line("a-1", "c-1", data={"number": -1})
    wrong = file.with_name("wrong.jsonl")
    wrong.write_text(text + "\n")
    assert "1 event was refused" in refused("import", wrong, store=led.address)


def test_an_import_waits_for_a_shard_that_is_away_and_continues(led: LedShards, file: Path, tmp_path: Path) -> None:
    old, errors = led.leaders[1], tmp_path / "errors"
    led.elect(1, None)
    with open(tmp_path / "summary", "wb") as summary, open(errors, "wb") as stderr:
        importing = start("import", file, "--json", "--store", led.address, stdout=summary, stderr=stderr)
    try:
        wait_until(lambda: errors.read_text() == "connection lost, trying again for 30 s\n", "the loss is reported")
        led.elect(1, old)
        assert importing.wait(60) == 0
    except (AssertionError, subprocess.TimeoutExpired):
        importing.kill()
        raise
    assert json.loads((tmp_path / "summary").read_text())["new"] == LINES
    check_order(led)
