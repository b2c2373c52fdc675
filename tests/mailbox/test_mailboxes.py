"""The mailboxes on trio: commands, conflicts, restores and async handlers. The clock jumps; nothing sleeps."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from eventstore_mailbox import COMMITTED, CONFLICT, FAILED, UNCHANGED, Options, Unrestorable
from tests.mailbox.history_store import Change
from tests.mailbox.stepped import History, Rejected, Request, handle
from tests.mailbox.world import World


async def test_a_command_is_answered_with_the_stores_outcome() -> None:
    world = World()
    async with world.running() as mailboxes:
        first = await mailboxes.execute(Request("a", "1"))
        second = await mailboxes.execute(Request("a", "2"))
    assert (first.status, first.outcome) == (COMMITTED, (COMMITTED, 1, 1))
    assert second.outcome == (COMMITTED, 2, 2)
    assert world.restored == ["a"]
    assert world.answered == []


async def test_answers_of_submitted_commands_come_in_batches() -> None:
    world = World()
    requests = [Request(f"{number % 3}", f"{number}") for number in range(100)]
    async with world.running() as mailboxes:
        assert mailboxes.submit(requests) == []
        mailboxes.kick()
    assert sorted(world.answered, key=lambda entry: int(entry.command_id)) == requests
    assert world.store.history("1") == tuple(f"{number}" for number in range(1, 100, 3))


async def test_handlers_run_ahead_of_the_disk() -> None:
    world = World()
    async with world.running() as mailboxes:
        await mailboxes.execute(Request("a", "0"))
        world.held = []
        requests = [Request("a", f"{number}") for number in range(1, 50)]
        for request in requests:
            mailboxes.submit([request])
            mailboxes.kick()
        assert all(request.seen for request in requests)
        assert len(world.held) == 1
        assert mailboxes.depth == 49
        world.release()
    assert [len(request.seen) for request in requests] == list(range(1, 50))


async def test_the_second_of_two_commands_that_create_an_aggregate_sees_the_first() -> None:
    world = World()
    first, second = Request("new", "1"), Request("new", "2")
    async with world.running() as mailboxes:
        mailboxes.submit([first])
        mailboxes.kick()
        mailboxes.submit([second])
        mailboxes.kick()
    assert second.seen == ("1",)
    assert world.restored == ["new"]


async def test_a_handlers_exception_is_the_answer_and_does_not_change_the_aggregate() -> None:
    world = World()
    async with world.running() as mailboxes:
        await mailboxes.execute(Request("a", "1"))
        rejected = await mailboxes.execute(Request("a", "2", "reject"))
        assert rejected.status == FAILED
        assert isinstance(rejected.error, Rejected)
        assert world.restored == ["a"]
        spoiled = await mailboxes.execute(Request("a", "3", "spoil"))
        assert spoiled.status == FAILED
        nothing = await mailboxes.execute(Request("a", "4", "nothing"))
        assert (nothing.status, nothing.outcome, nothing.error) == (UNCHANGED, None, None)
        last = Request("a", "5")
        await mailboxes.execute(last)
    assert last.seen == ("1",)
    assert world.restored == ["a", "a"]


async def test_a_handlers_system_exit_fails_only_its_command() -> None:
    def leave(request: Request, history: History) -> object:
        raise SystemExit(3)

    world = World()
    world.handle = leave
    async with world.running() as mailboxes:
        assert isinstance((await mailboxes.execute(Request("a", "1"))).error, SystemExit)


async def test_nothing_is_answered_before_the_changes_it_depends_on_are_durable() -> None:
    world = World()
    async with world.running() as mailboxes:
        await mailboxes.execute(Request("a", "0"))
        world.held = []
        mailboxes.submit([Request("a", "1"), Request("a", "2", "nothing"), Request("a", "3", "reject")])
        mailboxes.kick()
        assert world.answered == []
        world.release()
        assert [entry.status for entry in world.answered] == [COMMITTED, UNCHANGED, FAILED]


async def test_a_conflict_reruns_the_command_on_the_stored_state() -> None:
    world = World()
    async with world.running() as mailboxes:
        await mailboxes.execute(Request("a", "1"))
        await mailboxes.execute(Request("b", "1"))
        world.store.append([("a", None, "theirs", None)])
        requests = [Request("a", "2"), Request("b", "2"), Request("a", "3")]
        mailboxes.submit(requests)
        mailboxes.kick()
        with trio.fail_after(10):
            while mailboxes.depth:
                await trio.testing.wait_all_tasks_blocked()
        stats = mailboxes.stats()
    assert world.store.history("a") == ("1", "theirs", "2", "3")
    assert world.restored == ["a", "b", "a"]
    assert sum(mailbox.conflicts for mailbox in stats.mailboxes) == 1
    assert sum(mailbox.reruns for mailbox in stats.mailboxes) == 2
    assert stats.hottest == (("a", 1),)


async def test_a_command_that_always_conflicts_is_answered_with_the_conflict() -> None:
    def stale(request: Request, history: History) -> Change:
        return request.aggregate_id, 7, request.command_id, None

    world = World(Options(reruns_max=3))
    world.handle = stale
    async with world.running() as mailboxes:
        entry = await mailboxes.execute(Request("a", "1"))
    assert (entry.status, entry.outcome) == (CONFLICT, (CONFLICT, 0, 0))
    assert len(world.restored) == 4


async def test_pauses_after_repeated_conflicts_double_up_to_a_bound(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def stale(request: Request, history: History) -> Change:
        return request.aggregate_id, 7, request.command_id, None

    world = World(Options(reruns_max=6, rerun_pause_first_s=1.0, rerun_pause_max_s=4.0))
    world.handle = stale
    started = trio.current_time()
    async with world.running() as mailboxes:
        await mailboxes.execute(Request("a", "1"))
    assert trio.current_time() - started == pytest.approx(0 + 1 + 2 + 4 + 4 + 4)


async def test_the_aggregate_is_refreshed_before_a_refusal_is_answered() -> None:
    def only_behind_another(request: Request, history: History) -> Change:
        if len(history.ids) < 2:
            raise Rejected(request.command_id)
        return handle(request, history)  # type: ignore[return-value] # these are decided at once

    refreshed: list[tuple[str, ...]] = []

    async def refresh(aggregate_id: str, history: History) -> History:
        refreshed.append(tuple(history.ids))
        return History(aggregate_id, world.store.history(aggregate_id))

    world = World(refresh=refresh)
    async with world.running() as mailboxes:
        await mailboxes.execute(Request("a", "1"))
        world.handle = only_behind_another
        refused = await mailboxes.execute(Request("a", "2"))
        world.store.append([("a", None, "theirs", None)])
        decided = await mailboxes.execute(Request("a", "3"))
    assert (refused.status, decided.status) == (FAILED, COMMITTED)
    assert refreshed == [("1",), ("1",)]
    assert world.restored == ["a"]  # and not again


async def test_an_unreachable_store_is_retried_until_it_answers(autojump_clock: trio.testing.MockClock) -> None:
    world = World(Options(backoff_first_s=1, backoff_max_s=4))
    world.unreachable = 5
    async with world.running() as mailboxes:
        entry = await mailboxes.execute(Request("a", "1"))
    assert entry.status == COMMITTED
    assert world.errors == ["persist"] * 5
    assert trio.current_time() == pytest.approx(1 + 2 + 4 + 4 + 4)


async def test_a_failing_restore_blocks_only_its_aggregate(autojump_clock: trio.testing.MockClock) -> None:
    failures = iter(range(3))

    async def fails(aggregate_id: str) -> None:
        if aggregate_id == "a" and next(failures, None) is not None:
            raise ConnectionError("unreachable")

    world = World(Options(restores_max=1))
    world.before_restore = fails
    async with world.running() as mailboxes:
        mailboxes.submit([Request("a", "1"), Request("b", "1")])
        mailboxes.kick()
        await trio.testing.wait_all_tasks_blocked()
        assert [entry.aggregate_id for entry in world.answered] == ["b"]
    assert [entry.aggregate_id for entry in world.answered] == ["b", "a"]
    assert world.errors == ["restore"] * 3


async def test_an_aggregate_that_cannot_be_restored_fails_its_commands() -> None:
    async def never(aggregate_id: str) -> None:
        raise Unrestorable(ValueError("unknown event"))

    world = World()
    world.before_restore = never
    async with world.running() as mailboxes:
        entry = await mailboxes.execute(Request("a", "1"))
        assert isinstance(entry.error, ValueError)
        world.before_restore = None
        assert (await mailboxes.execute(Request("a", "2"))).status == COMMITTED


async def test_restores_run_concurrently_up_to_their_bound() -> None:
    running, most, gate = 0, 0, trio.Event()

    async def counted(_: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    world = World(Options(restores_max=5))
    world.before_restore = counted
    async with world.running() as mailboxes:
        mailboxes.submit([Request(f"{number}", "1") for number in range(20)])
        mailboxes.kick()
        await trio.testing.wait_all_tasks_blocked()
        assert mailboxes.stats().restoring == 5
        assert mailboxes.stats().restores_waiting == 15
        gate.set()
    assert most == 5
    assert len(world.answered) == 20


async def test_an_async_handler_blocks_only_its_aggregate() -> None:
    gate = trio.Event()

    async def slow(request: Request, history: History) -> object:
        await gate.wait()
        return handle(request, history)

    world = World()
    world.handle = lambda request, history: slow(request, history) if request.command_id == "slow" else handle(request, history)
    requests = [Request("a", "slow"), Request("a", "2"), Request("b", "3")]
    async with world.running() as mailboxes:
        mailboxes.submit(requests)
        mailboxes.kick()
        await trio.testing.wait_all_tasks_blocked()
        assert [entry.command_id for entry in world.answered] == ["3"]
        gate.set()
    assert world.store.history("a") == ("slow", "2")


async def test_an_async_handler_is_cancelled_when_its_aggregate_is_outdated() -> None:
    cancelled = []

    async def slow(request: Request, history: History) -> object:
        if "theirs" not in history.ids:
            try:
                await trio.sleep_forever()
            finally:
                cancelled.append(request.command_id)
        return handle(request, history)

    world = World()
    world.handle = lambda request, history: slow(request, history) if request.command_id == "slow" else handle(request, history)
    async with world.running() as mailboxes:
        await mailboxes.execute(Request("a", "1"))
        world.held = []
        world.store.append([("a", None, "theirs", None)])
        mailboxes.submit([Request("a", "2"), Request("a", "slow")])
        mailboxes.kick()
        await trio.testing.wait_all_tasks_blocked()
        world.release()
    assert cancelled == ["slow"]
    assert world.store.history("a") == ("1", "theirs", "2", "slow")
