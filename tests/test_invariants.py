"""Planted mistakes: each leaves a contradiction behind. What does not find it checks nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from eventstore.chunks.writing.group_commit import GroupCommit
from eventstore.server.net.budgets import OutboundBudget
from eventstore.server.net.connection import ServerConnection
from eventstore.store.projection_waits import ProjectionWaits, Wait
from eventstore_cluster.replica.actions import Action
from eventstore_cluster.replica.leading import Leading
from eventstore_cluster.replica.places import LogEnds
from eventstore_mailbox.core.joint_commands import JointCommands
from eventstore_mailbox.core.outcome_processor import OutcomeProcessor
from eventstore_mailbox.core.state import AggregateQueue, AnyEntry
from tests.chunks import test_group_commit
from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.history import world
from tests.mailbox import test_model
from tests.store import test_projection_waits

_rewind = AggregateQueue.rewind
_leave = OutcomeProcessor._leave
_commit = GroupCommit.commit
_keep = ServerConnection.keep
_cancel = ProjectionWaits.cancel


def _still_in_flight(lane: AggregateQueue, to: AnyEntry | None) -> int:
    in_flight = lane.in_flight
    handled = _rewind(lane, to)
    lane.in_flight = in_flight
    return handled


def _rewinds_one_aggregate(joint: JointCommands, whole: AnyEntry) -> None:
    del joint.joined[whole.lane]
    whole.lane.rewind(whole)


def _keeps_depth_of_reruns(outcomes: OutcomeProcessor, lane: AggregateQueue, entry: AnyEntry) -> None:
    lane.mailbox.depth += entry in outcomes._reruns
    _leave(outcomes, lane, entry)


def _keeps_bytes(committer: GroupCommit[Any, Any], chunk: int, end: int) -> None:
    uncommitted_bytes = committer._uncommitted_bytes
    _commit(committer, chunk, end)
    committer._uncommitted_bytes = uncommitted_bytes


def _counts_what_is_written(leading: Leading, ends: LogEnds, now: float) -> list[Action]:
    leading.synced = leading.written
    return leading.advance(now)


def _keeps_what_was_not_read(budget: OutboundBudget, connection: ServerConnection) -> None:
    connection.counted_bytes = 0


def _counts_twice(connection: ServerConnection, payloads: list[bytes]) -> None:
    _keep(connection, payloads)
    connection.pending_bytes += sum(map(len, payloads))


def _forgets_a_wait_twice(waits: ProjectionWaits, wait: Wait) -> None:
    _cancel(waits, wait)
    waits.count -= 1


def _run_waits(_: Path) -> None:
    for seed in range(5):
        test_projection_waits.run(seed)


def _run_mailboxes(_: Path) -> None:
    for seed in range(5):
        test_model.run_seed(seed)


def _run_group_commit(folder: Path) -> None:
    trio.run(lambda: test_group_commit.run(0, folder, replicated=True))


def _run_history(_: Path) -> None:
    for seed in range(5):
        world(seed).run()


def _close_a_connection(_: Path) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.enter_context(socket.create_connection(listener.getsockname()))
        accepted, address = listener.accept()
        connection, outbound = ServerConnection(accepted, address, 0.0), OutboundBudget(1_000, 1_000)
        stack.callback(connection.close)
        connection.keep([b"request"])
        connection.check_invariants()
        connection.send(b"answer")
        outbound.count(connection)
        outbound.check_invariants([connection])
        connection.close()
        outbound.forget(connection)
        connection.check_invariants()
        outbound.check_invariants([connection])


@dataclass(frozen=True)
class Mistake:
    what: str
    owner: type
    method: str
    wrong: Callable[..., object]
    run: Callable[[Path], None]
    says: str


MISTAKES = (
    Mistake(
        "changes stay in flight at a rewind", AggregateQueue, "rewind", _still_in_flight, _run_mailboxes, "flight, drafts have"
    ),
    Mistake(
        "a command about several aggregates is rewound on one", JointCommands, "rewind", _rewinds_one_aggregate, _run_mailboxes,
        "in flight of a part of its aggregates|is in no draft",
    ),
    Mistake(
        "a command that ran again stays in the depth", OutcomeProcessor, "_leave", _keeps_depth_of_reruns, _run_mailboxes,
        r"counts \d+ commands, its lanes have",
    ),
    Mistake("a committed segment stays counted", GroupCommit, "commit", _keeps_bytes, _run_group_commit, "as not committed"),
    Mistake("what is not synced counts", Leading, "durable", _counts_what_is_written, _run_history, "as synced|commits"),
    Mistake(
        "a closed connection stays in the budget", OutboundBudget, "forget", _keeps_what_was_not_read, _close_a_connection,
        "6 bytes are counted in all",
    ),
    Mistake(
        "a pending request is counted twice", ServerConnection, "keep", _counts_twice, _close_a_connection,
        r"\d+ bytes are counted, \d+ are pending",
    ),
    Mistake(
        "a wait that is cancelled is counted off twice", ProjectionWaits, "cancel", _forgets_a_wait_twice, _run_waits,
        r"waits are counted, \d+ are there",
    ),
)  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_a_planted_mistake_is_found(mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.run(tmp_path)
    monkeypatch.setattr(mistake.owner, mistake.method, mistake.wrong)
    (tmp_path / "wrong").mkdir()
    with pytest.RaisesGroup(
        pytest.RaisesExc((AssertionError, Broken), match=mistake.says), allow_unwrapped=True, flatten_subgroups=True
    ):
        mistake.run(tmp_path / "wrong")
