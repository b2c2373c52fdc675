"""An outbox in a separate process, between two servers; each of the three is killed while it publishes."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore import blocking
from eventstore.server.outbox.relay import relay
from tests.cli.processes import output, refused
from tests.server.outbox.test_outbox_killed import TOPIC, check, published
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_SECONDS, wait_until

PROGRAM = (sys.executable, "-m", "eventstore", "publish")


def append(address: str, commits: int, name: str) -> None:
    with blocking.connect(address) as store:
        events = [es.NewEvent("Happened", {"by": name})] * 2
        store.append_many([es.Commit(f"a-{number % 5}", events, es.ANY, f"{name}-{number}") for number in range(commits)])


def relayed(source: ServerProcess, target: ServerProcess, checkpoint: Path | None = None) -> int:
    async def run() -> int:
        with trio.fail_after(DEADLINE_SECONDS):
            return await relay(source.address, target.address, TOPIC, checkpoint, until_caught_up=True)

    return trio.run(run)


def listed(store: blocking.BlockingStore) -> list[tuple[str, bool, int]]:
    return [(each.name, each.has_left, each.position) for each in store.projections()]


def test_relay_publishes_all_events_first_and_only_new_ones_the_next_time(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "a") as source, ServerProcess(tmp_path / "b") as target:
        append(source.address, 300, "first")
        assert relayed(source, target) == 600
        append(source.address, 20, "second")
        assert relayed(source, target) == 40
        assert relayed(source, target) == 0
        with blocking.connect(source.address) as events, blocking.connect(target.address) as broker:
            assert check(events, published(broker)) == 0
            broker.broker.delete_topic(TOPIC)
            assert listed(events) == [], "it was to end at the last event"
        assert relayed(source, target, tmp_path / "checkpoint.json") == 640
        assert (tmp_path / "checkpoint.json").exists()
        assert relayed(source, target, tmp_path / "checkpoint.json") == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_follows_until_a_signal_ends_it_and_says_what_it_did(tmp_path: Path, number: int, code: int) -> None:
    with ServerProcess(tmp_path / "a") as source, blocking.connect(source.address) as store:
        append(source.address, 3, "first")
        command = [*PROGRAM, "--from", source.address, "--topic", TOPIC]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as publisher:
            try:
                wait_until(lambda: len(published(store)) == 6, "all is published")
                wait_until(lambda: [each[:2] for each in listed(store)] == [(f"publish {TOPIC}", False)], "it is listed")
                publisher.send_signal(number)
                assert publisher.communicate(timeout=DEADLINE_SECONDS)[0] == f"6 events published to topic {TOPIC}\n"
            finally:
                publisher.kill()
        assert publisher.returncode == code
        wait_until(lambda: [each[:2] for each in listed(store)] == [(f"publish {TOPIC}", True)], "it has left")


def test_the_largest_event_passes(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "a") as source, ServerProcess(tmp_path / "b") as target:
        with blocking.connect(source.address) as store:
            for number in range(3):
                store.append("large", [es.NewEvent("Happened", bytes(4 * 1024 * 1024))], number)
        assert relayed(source, target) == 3


def test_a_store_restored_from_an_older_copy_is_refused_until_an_operator_goes_on_behind_what_it_lost(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.json"
    with ServerProcess(tmp_path / "b") as target, blocking.connect(target.address) as broker:

        def told(source: ServerProcess) -> tuple[object, ...]:
            ends = "--from", source.address, "--to", target.address, "--topic", TOPIC
            return "publish", *ends, "--checkpoint", checkpoint, "--until-caught-up"

        with ServerProcess(tmp_path / "a") as source:
            append(source.address, 10, "kept")
            assert source.terminate() == 0
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        with ServerProcess(tmp_path / "a") as source:
            append(source.address, 5, "lost")
            assert "30 events published" in output(*told(source))
        with ServerProcess(tmp_path / "copy") as source:
            append(source.address, 30, "others")
            assert "stands at the event of sequence 30, but the store has another event there" in refused(*told(source), code=1)
            checkpoint.unlink()
            assert "sequences 21 to 30" in refused(*told(source), code=1)
            assert _count(broker) == 30
            assert "61 events published" in output(*told(source), "--past-lost")
            append(source.address, 1, "more")
            assert "2 events published" in output(*told(source))
            assert "0 events published" in output(*told(source))


@pytest.mark.heavy
@pytest.mark.long
def test_no_event_is_left_out_if_any_of_the_processes_is_killed(tmp_path: Path) -> None:
    rng = random.Random("relay")
    source, target = ServerProcess(tmp_path / "a"), ServerProcess(tmp_path / "b")
    try:
        for life in range(6):
            victim = ("source", "target", "relay")[life % 3]
            append(source.address, 400, f"before-{life}")
            options = ["--from", source.address, "--to", target.address, "--topic", TOPIC]
            with open(tmp_path / f"{life}.log", "wb") as log:
                process = subprocess.Popen([*PROGRAM, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                with blocking.connect(target.address) as broker:
                    goal = life * 1_000 + rng.randint(1, 800)
                    wait_until(lambda broker=broker, goal=goal: _count(broker) >= goal, "some are published")  # type: ignore[misc]
                append(source.address, 100, f"after-{life}")
                if victim == "relay":
                    process.kill()
                elif victim == "source":
                    source.kill()
                    source = ServerProcess(tmp_path / "a", listen=_listen(source))
                else:
                    target.kill()
                    target = ServerProcess(tmp_path / "b", listen=_listen(target))
                if victim != "relay":
                    with blocking.connect(target.address) as broker:
                        total = (life + 1) * 1_000
                        wait_until(lambda broker=broker, total=total: _count(broker) >= total, "all are published")  # type: ignore[misc]
            finally:
                process.kill()
                process.wait(DEADLINE_SECONDS)
        relayed(source, target)
        with blocking.connect(source.address) as events, blocking.connect(target.address) as broker:
            assert check(events, published(broker)) <= 64 * 2, "no more than was in flight when the relay was killed"
    finally:
        source.kill()
        target.kill()


def _listen(server: ServerProcess) -> str:
    return server.address.removeprefix("tcp://")


def _count(broker: blocking.BlockingStore) -> int:
    try:
        return sum(queue.end for queue in broker.broker.queues(TOPIC))
    except es.UnknownTopic:
        return 0
