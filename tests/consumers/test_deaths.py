"""A message that kills its consumer's process is a dead letter after the attempts of its group, and only that message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio.to_thread
import pytest

from tests.consumers.clients import World, with_each_client
from tests.consumers.deadly_process import ATTEMPTS, GROUP
from tests.waiting import eventually

HANDLED = [b"%d" % number for number in range(12)]
HOUR_S = 3_600.0
BODIES = [*HANDLED[:5], b"kill", *HANDLED[5:]]


def start(world: World, kind: str, mode: str, concurrency: int, delay_s: float = 0.01) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "tests.consumers.deadly_process"]
    return subprocess.Popen(
        [*program, world.server.address, kind, mode, str(concurrency), str(delay_s)],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip


async def ends(process: subprocess.Popen[str]) -> list[str]:
    """Waits until the process is dead, and returns what it had handled."""
    lines, _ = await anyio.to_thread.run_sync(process.communicate)
    assert process.returncode == 9
    return lines.split()


async def survives(world: World, process: subprocess.Popen[str]) -> None:
    """Waits until everything is done, and ends the process."""
    try:
        await world.backlog_is(GROUP, 0)
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


VARIANTS = [
    ("trio", "parallel", 1),
    pytest.param("trio", "parallel", 8, marks=pytest.mark.long),
    pytest.param("asyncio", "sequential", 4, marks=pytest.mark.heavy),
    pytest.param("blocking", "key", 4, marks=pytest.mark.heavy),
    pytest.param("blocking", "sequential", 2, marks=pytest.mark.heavy),
]


@pytest.mark.parametrize(("client", "mode", "concurrency"), VARIANTS)
@with_each_client(kinds=("trio",))
async def test_a_message_that_kills_its_consumer_is_dead_after_its_attempts(
    world: World, client: str, mode: str, concurrency: int
) -> None:
    topic = await world.create(queues=2)
    for body in BODIES:
        await topic.send(body, key=body.decode() if mode == "key" else None)
    for _ in range(ATTEMPTS):
        await ends(start(world, client, mode, concurrency))
    await survives(world, start(world, client, mode, concurrency))
    (dead,) = await world.store.broker.dead_letters(GROUP)
    assert (dead.body, dead.properties[":failures"]) == (b"kill", str(ATTEMPTS))


@pytest.mark.parametrize("mode", ["sequential", "key"])
@with_each_client(kinds=("trio",))
async def test_what_fails_in_place_and_waits_for_an_hour_stops_no_other_queue_after_a_death(world: World, mode: str) -> None:
    """Queue 0 begins with a message that fails, queue 1 with one that kills: before its last attempt all are suspects."""
    topic = await world.create(queues=2)
    for number, body in enumerate([b"fail", b"0", b"1"]):
        await topic.send(body, key=f"a{number}", queue=0)
    for number, body in enumerate([b"kill", *HANDLED[2:]]):
        await topic.send(body, key=f"b{number}", queue=1)
    for _ in range(ATTEMPTS):
        await ends(start(world, "trio", mode, 1, HOUR_S))
    process = start(world, "trio", mode, 1, HOUR_S)

    async def is_handled() -> bool:
        queues = (await world.store.broker.group(GROUP)).queues
        return bool(queues[1].offset == queues[1].end)

    try:
        await eventually(is_handled, "queue 1 is handled, though queue 0 waits")
    finally:
        process.kill()
        lines, _ = process.communicate()
    assert {*HANDLED[2:]} <= {line.encode() for line in lines.split()}
    dead = await world.store.broker.dead_letters(GROUP)
    assert [each.properties[":failures"] for each in dead if each.body == b"kill"] == [str(ATTEMPTS)]
