"""The trio driver: room, turns of the event loop, stopping and cancellation. The clock jumps; nothing sleeps."""

from __future__ import annotations

import os

import pytest
import trio
import trio.testing

from eventstore_mailbox import (
    COMMITTED,
    OVERLOADED,
    REFUSED,
    STOPPED,
    Entry,
    Mailboxes,
    MailboxFull,
    Options,
    Ports,
    Stopped,
    Stopping,
)
from tests.client.forks.child import error_of, in_child
from tests.mailbox.history_store import HistoryStore, Outcome
from tests.mailbox.stepped import History, Request, handle
from tests.mailbox.world import Set, World


async def test_a_full_mailbox_refuses_commands_and_execute_waits() -> None:
    world = World(Options(mailboxes=1, capacity=3))
    async with world.running() as mailboxes:
        world.held = []
        requests = [Request("a", f"{number}") for number in range(5)]
        refused = mailboxes.submit(requests)
        mailboxes.kick()
        assert refused == requests[3:]
        assert refused[0].status == OVERLOADED
        assert isinstance(refused[0].error, MailboxFull)
        assert refused[0].outcome is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mailboxes.execute, Request("a", "last"))
            await trio.testing.wait_all_tasks_blocked()
            world.release()
        assert mailboxes.submit(refused) == []
        mailboxes.kick()
    assert world.store.history("a") == ("0", "1", "2", "last", "3", "4")


async def test_plain_appends_past_their_bound_are_refused() -> None:
    world = World(Options(fast_path_max=2))
    async with world.running() as mailboxes:
        world.held = []
        delivered: list[Outcome] = []
        mailboxes.append([(name, None, "1", None) for name in "abc"], delivered.extend)
        with pytest.raises(MailboxFull, match="of at most 2"):
            mailboxes.append([("d", None, "1", None)], delivered.extend)
        world.release()
        assert [outcome[0] for outcome in delivered] == [COMMITTED] * 3
        mailboxes.append([("d", None, "1", None)], delivered.extend)
    assert len(delivered) == 4


async def test_stopping_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.mailboxes.run)
        world.held = []
        mailboxes = world.mailboxes
        mailboxes.submit([Request("a", "1"), Request("b", "1")])
        mailboxes.kick()
        left: list[int] = []

        async def stop() -> None:
            left.append(await mailboxes.stop(60))

        nursery.start_soon(stop)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Stopping):
            mailboxes.submit([Request("a", "2")])
        with pytest.raises(Stopping):
            mailboxes.append([("a", None, "2", None)], lambda outcomes: None)
        with pytest.raises(Stopping):
            await mailboxes.execute(Request("a", "2"))
        assert world.answered == []
        world.release()
    assert left == [0]
    assert [entry.status for entry in world.answered] == [COMMITTED, COMMITTED]


async def test_commands_left_at_the_deadline_are_answered_as_stopped(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    delivered: list[Outcome] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(world.mailboxes.run)
        world.held = []
        held = world.held
        world.mailboxes.submit([Request("a", "1"), Request("a", "1"), Request("a", "2", "slow_add")])
        world.mailboxes.append([("a", None, "3", None), ("p", None, "4", None)], delivered.extend)
        world.mailboxes.kick()
        await trio.testing.wait_all_tasks_blocked()
        assert await world.mailboxes.stop(5) == 5
    assert [entry.status for entry in world.answered] == [STOPPED] * 3
    assert all(isinstance(entry.error, Stopped) for entry in world.answered)
    assert [outcome[0] for outcome in delivered] == [REFUSED] * 2
    for batch in held:  # too late to matter
        batch.deliver(world.store.append(batch.changes))
    assert len(world.answered) == 3
    assert len(delivered) == 2


async def test_cancelling_the_mailboxes_answers_all_waiting_senders() -> None:
    async def never(_: str) -> None:
        await trio.sleep_forever()

    world = World(Options(mailboxes=1, capacity=2))
    world.before_restore = never
    executed: list[Entry[Request, Outcome]] = []

    async def execute() -> None:
        executed.append(await world.mailboxes.execute(Request("a", "1")))

    async def execute_later() -> None:
        with pytest.raises(Stopping):
            await world.mailboxes.execute(Request("a", "3"))

    async with trio.open_nursery() as senders:
        async with trio.open_nursery() as nursery:
            await nursery.start(world.mailboxes.run)
            senders.start_soon(execute)
            await trio.testing.wait_all_tasks_blocked()
            world.mailboxes.submit([Request("a", "2")])
            senders.start_soon(execute_later)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert [entry.status for entry in executed + world.answered] == [STOPPED, STOPPED]


async def test_a_cancelled_wait_does_not_withdraw_the_command() -> None:
    world = World()
    async with world.running() as mailboxes:
        world.held = []
        with trio.CancelScope() as scope:
            scope.cancel()
            await mailboxes.execute(Request("a", "1"))
        await trio.testing.wait_all_tasks_blocked()
        world.release()
    assert world.store.history("a") == ("1",)
    assert world.answered == []


async def test_a_cancelled_stop_ends_them_at_once() -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.mailboxes.run)
        world.held = []
        world.mailboxes.submit([Request("a", "1")])
        world.mailboxes.kick()
        with trio.CancelScope() as scope:
            scope.cancel()
            await world.mailboxes.stop(60)
    assert [entry.status for entry in world.answered] == [STOPPED]


async def test_the_event_loop_gets_its_turn_between_many_commands() -> None:
    seconds = 0.0
    turns = 0

    def clock() -> float:
        nonlocal seconds
        seconds += 0.0001
        return seconds

    async def count() -> None:
        nonlocal turns
        while mailboxes.depth:
            turns += 1
            await trio.lowlevel.checkpoint()

    store = HistoryStore()
    answered: list[Entry[Request, Outcome]] = []

    async def restore(aggregate_id: str) -> History:
        return History(aggregate_id, ())

    mailboxes: Set = Mailboxes(
        Ports(
            handle=handle,
            restore=restore,
            persist=lambda batch: batch.deliver(store.append(batch.changes, batch.dependents)),
            answer=answered.extend,
            clock=clock,
            refusal=lambda error: (REFUSED, error, 0),
        )
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(mailboxes.run)
        await mailboxes.execute(Request("a", "first"))
        mailboxes.submit([Request("a", f"{number}") for number in range(1_000)])
        mailboxes.kick()
        assert 0 < sum(mailbox.handled for mailbox in mailboxes.stats().mailboxes) < 50
        await count()
        await mailboxes.stop(1)
    assert turns > 20
    assert len(answered) == 1_000


async def test_a_sender_that_submits_from_its_answer_is_served_without_recursion() -> None:
    world = World()
    rest = [Request("a", f"{number}") for number in range(3_000)]
    done = trio.Event()

    def send_the_next(_: object) -> None:
        if rest:
            world.mailboxes.submit([rest.pop()])
            world.mailboxes.kick()
        else:
            done.set()

    world.on_answer = send_the_next
    async with world.running() as mailboxes:
        mailboxes.submit([rest.pop()])
        mailboxes.kick()
        await done.wait()
    assert len(world.store.history("a")) == 3_000


async def test_an_answer_that_raises_does_not_block_the_others() -> None:
    world = World()
    delivered: list[Outcome] = []

    def fails(outcomes: list[Outcome]) -> None:
        raise ValueError("a sender's fault")

    async with world.running() as mailboxes:
        mailboxes.append([("a", None, "1", None)], fails)
        mailboxes.append([("b", None, "1", None)], delivered.extend)
        mailboxes.kick()
    assert world.errors == ["answer"]
    assert len(delivered) == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
async def test_in_a_child_process_nothing_is_accepted_and_the_parent_goes_on() -> None:
    world = World()
    async with world.running() as mailboxes:
        calls = (lambda: mailboxes.submit([Request("a", "1")]), lambda: mailboxes.append([("b", None, "1", None)], print))
        refused = in_child(lambda: [error_of(call) for call in calls])
        text = f"OfParent: the mailboxes belong to process {os.getpid()}, which this one was forked from"
        assert [each.partition(";")[0] for each in refused] == [text, text]
        await mailboxes.execute(Request("a", "1"))
    assert world.store.history("a") == ("1",)


async def test_aggregates_leave_memory_when_the_mailboxes_stop() -> None:
    world = World()
    async with world.running() as mailboxes:
        for name in "abca":
            await mailboxes.execute(Request(name, f"{world.store.sequence}"))
        assert world.evicted == {}
    assert world.evicted == {name: list(world.store.history(name)) for name in "abc"}
