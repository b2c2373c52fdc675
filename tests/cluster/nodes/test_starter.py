"""The processes of shards are copies of a template: what becomes of them, and of later ones, when either is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from structlog.typing import EventDict

from eventstore import blocking
from eventstore_cluster.processes import starter as starter_module
from eventstore_cluster.processes.starter import ShardStarter, Started
from tests.cluster.node_process import NodeProcess, children, has_ended, kill_process
from tests.waiting import eventually, wait_until

TOLD = "tests.cluster.nodes.told_process"


@asynccontextmanager
async def running(program: str = TOLD) -> AsyncIterator[ShardStarter]:
    async with trio.open_nursery() as nursery:
        starter = ShardStarter(program)
        await nursery.start(starter.run)
        yield starter
        nursery.cancel_scope.cancel()


async def told(starter: ShardStarter, code: int) -> tuple[Started, socket.socket]:
    """Starts a process that is to end with this code when its channel says so. Returns it and our end of the channel."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            started = await starter.start(theirs)
        except OSError:
            ours.close()
            raise
    ours.sendall(json.dumps({"settings": {"says": "[]", "code": code}, "replica": {"sit_out": False}}).encode() + b"\n")
    assert await trio.to_thread.run_sync(ours.recv, 4096)
    return started, ours


def template_of(started: Started) -> int:
    """Returns the parent of a process."""
    return int(Path(f"/proc/{started.pid}/stat").read_text().rpartition(") ")[2].split()[1])


def end(channel: socket.socket) -> None:
    with channel:
        channel.sendall(b'{"map": ""}\n')


async def test_each_process_is_one_of_its_own_and_its_exit_code_is_told() -> None:
    async with running() as starter:
        processes = [await told(starter, code) for code in (0, 3, 1)]
        pids = [started.pid for started, _ in processes]
        template = template_of(processes[0][0])
        assert sorted(children(template)) == sorted(pids)
        assert [os.getpgid(pid) for pid in pids] == pids, "Ctrl-C ends none of them"
        for _, channel in reversed(processes):
            end(channel)
        with trio.fail_after(30):
            assert [await started.wait() for started, _ in processes] == [0, 3, 1]
        killed, channel = await told(starter, 0)
        kill_process(killed.pid)
        with channel, trio.fail_after(30):
            assert await killed.wait() == -signal.SIGKILL
        os.kill(template, signal.SIGSTOP)
    assert has_ended(template), "a node ends, whatever it does"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_signals_do_not_end_the_template_before_its_node(number: signal.Signals) -> None:
    async with running() as starter:
        first, channel = await told(starter, 0)
        template = template_of(first)
        os.kill(template, number)
        os.kill(first.pid, number)
        with channel, trio.fail_after(30):
            assert await first.wait() in (-number, 1), "its own signals are as in any program"
        second, channel = await told(starter, 5)
        assert template_of(second) == template
        end(channel)
        with trio.fail_after(30):
            assert await second.wait() == 5


async def test_processes_outlive_their_template_and_another_one_makes_the_next(logged: list[EventDict]) -> None:
    async with running() as starter:
        first, channel = await told(starter, 0)
        template = template_of(first)
        kill_process(template)

        async def is_started() -> bool:
            try:
                second, other = await told(starter, 7)
            except OSError:  # it was asked before its end was noticed
                return False
            end(other)
            return await second.wait() == 7

        await eventually(is_started, "another template makes processes")
        assert not has_ended(first.pid)
        end(channel)
        with trio.fail_after(30):
            assert await first.wait() is None
        assert has_ended(first.pid), "only then may another one have its lease"
    assert any("another one is started" in each["event"] for each in logged)


async def test_another_template_is_there_before_a_process_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_module, "_REST_S", 0.1)
    async with running() as starter:
        first, channel = await told(starter, 0)
        template, before = template_of(first), set(children(os.getpid()))
        kill_process(template)

        async def is_there() -> bool:
            return bool(set(children(os.getpid())) - before)

        await eventually(is_there, "another template is started")
        end(channel)
        with trio.fail_after(30):
            assert await first.wait() is None


async def test_a_template_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as starter:
        first, channel = await told(starter, 0)
        template = template_of(first)
        os.kill(template, signal.SIGSTOP)
        monkeypatch.setattr(starter_module, "_ANSWERS_S", 0.1)
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(TimeoutError, match="did not answer for"):
            await starter.start(theirs)
        monkeypatch.undo()
        second, other = await told(starter, 0)
        assert template_of(second) != template
        for each in (channel, other):
            end(each)
        with trio.fail_after(30):
            assert (await first.wait(), await second.wait()) == (None, 0)


async def test_the_end_of_a_process_is_seen_though_the_template_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_module, "_CODE_S", 0.1)
    async with running() as starter:
        started, channel = await told(starter, 0)
        os.kill(template_of(started), signal.SIGSTOP)
        end(channel)
        with trio.fail_after(30):
            assert await started.wait() is None


async def test_a_process_that_cannot_be_made_is_an_error_with_its_reason() -> None:
    ours, theirs = socket.socketpair()
    async with running("tests.cluster.nodes.unforkable") as starter:
        with ours, theirs, pytest.raises(BlockingIOError, match="Resource temporarily unavailable"):
            await starter.start(theirs)


def test_a_shard_is_started_again_though_the_template_was_killed_too(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node, blocking.connect(node.shard_address(0)) as store:
        (template,) = children(node.pid)
        pids = [row.pid for row in node.rows()]
        kill_process(template)
        wait_until(lambda: has_ended(template), "the template has ended")
        assert store.read("a") is not None, "its shards serve on"
        kill_process(pids[0])
        node.wait_for_pid(0, other_than=pids[0] or 0)
        assert node.rows()[1].pid == pids[1]
        (other,) = children(node.pid)
        assert other != template
        node.kill()
        wait_until(lambda: has_ended(other), "it ends with its node")


def test_a_shard_says_when_its_own_process_began(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 1) as node:

        def began() -> int:
            with blocking.connect(node.shard_address(0)) as store:
                return int(store.stats()["process_start_time_seconds"] or 0)

        first, pid = began(), node.rows()[0].pid
        wait_until(lambda: time.time() >= first + 1, "another second begins")
        kill_process(pid)
        node.wait_for_pid(0, other_than=pid or 0)
        assert began() > first
