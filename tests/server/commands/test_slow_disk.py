"""Handlers do not wait for the disk: during a sync of seconds, commands are handled as fast as ever."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import eventstore as es
from eventstore.protocol.requests import Stats
from tests.server.commands.tallies import Add
from tests.server.commands.test_mixed import send
from tests.server.conftest import Launch
from tests.server.raw import Ok, RawClient, outcomes_of
from tests.server.tracing import injecting, needs_strace
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, needs_strace]
FIRST = "events/0000000001.events"
COMMANDS = 6_000
CAPACITY = 2_000
MAILBOXES = 2


def stats(client: RawClient) -> dict[str, object]:
    answer = client.ask(Stats())
    assert isinstance(answer, Ok)
    return dict(zip(answer.values[0::2], answer.values[1::2], strict=True))  # type: ignore[arg-type] # names are text


def test_during_a_slow_sync_commands_are_handled_up_to_the_bound(launch: Launch, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = launch(
        data=data, before=injecting("fdatasync:delay_exit=3000000", path=str(data / FIRST)),
        domain="tests.server.commands.tallies:app", mailboxes=MAILBOXES, mailbox_capacity=CAPACITY,
    )  # fmt: skip
    with RawClient(server.port) as client, RawClient(server.port) as watcher:
        commands = [Add(f"a-{number % 97}") for number in range(COMMANDS)]
        frames = [send(2 + first, *commands[first : first + 300]) for first in range(0, COMMANDS, 300)]
        client.send(b"".join(frames))
        wait_until(lambda: stats(watcher)["commands_handled"] == MAILBOXES * CAPACITY, "the mailboxes are full")
        assert stats(watcher)["events"] == 0, "nothing is durable yet"
        kinds = Counter[object]()
        answered = 0
        while not client.quiet():
            kinds.update(outcome[:2] for outcome in outcomes_of(client.answer()[1]))
            answered += 1
        assert set(kinds) <= {(3, es.Overloaded.code)}, "nothing is acknowledged that is not durable"
        server.let_go_of_tracer()
        for _ in range(len(frames) - answered):
            kinds.update(outcome[:2] if outcome[0] else 0 for outcome in outcomes_of(client.answer()[1]))
        assert kinds.keys() <= {0, (3, es.Overloaded.code)}
        assert kinds.total() == COMMANDS
        assert kinds[0] >= MAILBOXES * CAPACITY, "more only of those that were taken after the disk went on"
        assert stats(watcher)["mailbox_depth"] == 0
        assert stats(watcher)["events"] == kinds[0]
    assert server.terminate() == 0
