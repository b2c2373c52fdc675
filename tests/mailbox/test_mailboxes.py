"""The mailboxes on trio: what takes time, what is cancelled, and how they end. The clock jumps; nothing sleeps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from eventstore_mailbox import (
    COMMITTED,
    CONFLICT,
    FAILED,
    OVERLOADED,
    REFUSED,
    STOPPED,
    UNCHANGED,
    Batch,
    Entry,
    Mailboxes,
    Options,
    Overloaded,
    Ports,
    Publication,
    Stopped,
    Stopping,
    Unrestorable,
)  # fmt: skip
from tests.mailbox.history_store import Change, HistoryStore, Outcome
from tests.mailbox.stepped import History, Rejected, Request, handle

Set = Mailboxes[Request, History, Change, Outcome]


class World:
    """A store and senders around mailboxes; what a test changes, it changes here."""

    def __init__(
        self, options: Options | None = None, publish: bool = False,
        refresh: Callable[[str, History], Awaitable[History]] | None = None,
    ) -> None:  # fmt: skip
        self.store = HistoryStore()
        self.answered: list[Entry[Request, Outcome]] = []
        self.unreachable = 0
        self.held: list[Batch[Change, Outcome]] | None = None
        self.restored: list[str] = []
        self.errors: list[str] = []
        self.published: list[tuple[str, object]] = []
        self.before_restore: Callable[[str], Awaitable[None]] | None = None
        self.before_publish: Callable[[Sequence[Publication[Change, Outcome]]], Awaitable[None]] | None = None
        self.on_answer: Callable[[object], None] = lambda entries: None
        self.handle: Callable[[Request, History], object] = handle
        self.mailboxes: Set = Mailboxes(
            Ports(
                handle=lambda request, history: self.handle(request, history),  # type: ignore[arg-type,return-value]
                restore=self._restore, persist=self._persist, answer=self._answer, clock=trio.current_time,
                refusal=lambda error: (REFUSED, error, 0), untouched=lambda history: not history.dirty,
                publish=self._publish if publish else None, on_error=lambda what, error: self.errors.append(what),
                refresh=refresh, chance=lambda: 0.5,
            ),
            options,
        )  # fmt: skip

    def _answer(self, entries: Sequence[Entry[Request, Outcome]]) -> None:
        self.answered += entries
        self.on_answer(entries)

    async def _restore(self, aggregate_id: str) -> History:
        self.restored.append(aggregate_id)
        if self.before_restore is not None:
            await self.before_restore(aggregate_id)
        return History(aggregate_id, self.store.history(aggregate_id))

    def _persist(self, batch: Batch[Change, Outcome]) -> None:
        if self.unreachable:
            self.unreachable -= 1
            raise ConnectionError("unreachable")
        if self.held is None:
            batch.deliver(self.store.append(batch.changes, batch.followers))
        else:
            self.held.append(batch)

    def release(self) -> None:
        held, self.held = self.held or [], None
        for batch in held:
            batch.deliver(self.store.append(batch.changes, batch.followers))

    async def _publish(self, publications: Sequence[Publication[Change, Outcome]]) -> None:
        if self.before_publish is not None:
            await self.before_publish(publications)
        self.published += [(publication.aggregate_id, publication.outcome[1]) for publication in publications]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Set]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.mailboxes.run)
            yield self.mailboxes
            assert await self.mailboxes.stop(60) == 0


async def test_a_command_is_answered_with_what_the_store_said() -> None:
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


async def test_what_a_handler_raises_is_the_answer_and_leaves_no_trace() -> None:
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


async def test_even_a_handlers_exit_fails_its_command_alone() -> None:
    def leave(request: Request, history: History) -> object:
        raise SystemExit(3)

    world = World()
    world.handle = leave
    async with world.running() as mailboxes:
        assert isinstance((await mailboxes.execute(Request("a", "1"))).error, SystemExit)


async def test_nothing_is_answered_before_what_it_rests_on_is_durable() -> None:
    world = World()
    async with world.running() as mailboxes:
        await mailboxes.execute(Request("a", "0"))
        world.held = []
        mailboxes.submit([Request("a", "1"), Request("a", "2", "nothing"), Request("a", "3", "reject")])
        mailboxes.kick()
        assert world.answered == []
        world.release()
        assert [entry.status for entry in world.answered] == [COMMITTED, UNCHANGED, FAILED]


async def test_a_conflict_runs_the_command_again_on_what_the_store_has() -> None:
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
        figures = mailboxes.figures()
    assert world.store.history("a") == ("1", "theirs", "2", "3")
    assert world.restored == ["a", "b", "a"]
    assert sum(mailbox.conflicts for mailbox in figures.mailboxes) == 1
    assert sum(mailbox.reruns for mailbox in figures.mailboxes) == 2
    assert figures.hottest == (("a", 1),)


async def test_a_command_that_conflicts_for_ever_is_told_so() -> None:
    def stale(request: Request, history: History) -> Change:
        return request.aggregate_id, 7, request.command_id, None

    world = World(Options(reruns_max=3))
    world.handle = stale
    async with world.running() as mailboxes:
        entry = await mailboxes.execute(Request("a", "1"))
    assert (entry.status, entry.outcome) == (CONFLICT, (CONFLICT, 0, 0))
    assert len(world.restored) == 4


async def test_the_pauses_of_an_aggregate_that_conflicts_again_and_again_double_up_to_a_bound(
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


async def test_before_a_refusal_is_told_the_aggregate_is_brought_up_to_the_store() -> None:
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
    assert world.restored == ["a"]  # and not once more


async def test_a_store_that_cannot_be_reached_is_tried_until_it_can(autojump_clock: trio.testing.MockClock) -> None:
    world = World(Options(backoff_first_s=1, backoff_max_s=4))
    world.unreachable = 5
    async with world.running() as mailboxes:
        entry = await mailboxes.execute(Request("a", "1"))
    assert entry.status == COMMITTED
    assert world.errors == ["persist"] * 5
    assert trio.current_time() == pytest.approx(1 + 2 + 4 + 4 + 4)


async def test_a_restore_that_fails_holds_up_its_own_aggregate_alone(autojump_clock: trio.testing.MockClock) -> None:
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


async def test_restores_run_at_the_same_time_up_to_their_bound() -> None:
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
        assert mailboxes.figures().restoring == 5
        assert mailboxes.figures().restores_waiting == 15
        gate.set()
    assert most == 5
    assert len(world.answered) == 20


async def test_an_async_handler_holds_only_its_own_aggregate() -> None:
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


async def test_an_async_handler_is_cancelled_when_what_it_works_on_turns_out_wrong() -> None:
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


async def test_a_publication_that_fails_holds_up_its_own_aggregate_alone(autojump_clock: trio.testing.MockClock) -> None:
    failing = True

    async def fails(publications: Sequence[Publication[Change, Outcome]]) -> None:
        if failing and any(publication.aggregate_id == "a" for publication in publications):
            raise ConnectionError("unreachable")

    world = World(publish=True)
    world.before_publish = fails
    async with world.running() as mailboxes:
        mailboxes.submit([Request("a", "1"), Request("b", "1"), Request("a", "2"), Request("b", "2")])
        mailboxes.kick()
        with trio.move_on_after(100):
            await trio.sleep_forever()
        assert [entry.aggregate_id for entry in world.answered] == ["b", "b"]
        assert world.store.history("a") == ("1", "2")
        failing = False
    assert [version for name, version in world.published if name == "a"] == [1, 2]
    assert len(world.answered) == 4


async def test_a_full_mailbox_refuses_and_its_senders_may_wait() -> None:
    world = World(Options(mailboxes=1, capacity=3))
    async with world.running() as mailboxes:
        world.held = []
        requests = [Request("a", f"{number}") for number in range(5)]
        refused = mailboxes.submit(requests)
        mailboxes.kick()
        assert refused == requests[3:]
        assert refused[0].status == OVERLOADED
        assert isinstance(refused[0].error, Overloaded)
        assert refused[0].outcome is None
        assert mailboxes.full
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mailboxes.wait_for_room)
            nursery.start_soon(mailboxes.execute, Request("a", "last"))
            await trio.testing.wait_all_tasks_blocked()
            world.release()
        assert mailboxes.submit(refused) == []
        mailboxes.kick()
    assert world.store.history("a") == ("0", "1", "2", "last", "3", "4")


async def test_plain_appends_past_their_bound_are_refused() -> None:
    world = World(Options(passing_max=2))
    async with world.running() as mailboxes:
        world.held = []
        told: list[Outcome] = []
        mailboxes.append([(name, None, "1", None) for name in "abc"], told.extend)
        with pytest.raises(Overloaded, match="of at most 2"):
            mailboxes.append([("d", None, "1", None)], told.extend)
        world.release()
        assert [outcome[0] for outcome in told] == [COMMITTED] * 3
        mailboxes.append([("d", None, "1", None)], told.extend)
    assert len(told) == 4


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
            await mailboxes.wait_for_room()
        assert world.answered == []
        world.release()
    assert left == [0]
    assert [entry.status for entry in world.answered] == [COMMITTED, COMMITTED]


async def test_what_is_left_at_the_deadline_is_told_that_nobody_knows(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    told: list[Outcome] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(world.mailboxes.run)
        world.held = []
        held = world.held
        world.mailboxes.submit([Request("a", "1"), Request("a", "1"), Request("a", "2", "slow_add")])
        world.mailboxes.append([("a", None, "3", None), ("p", None, "4", None)], told.extend)
        world.mailboxes.kick()
        await trio.testing.wait_all_tasks_blocked()
        assert await world.mailboxes.stop(5) == 5
    assert [entry.status for entry in world.answered] == [STOPPED] * 3
    assert all(isinstance(entry.error, Stopped) for entry in world.answered)
    assert [outcome[0] for outcome in told] == [REFUSED] * 2
    for batch in held:  # too late to matter
        batch.deliver(world.store.append(batch.changes))
    assert len(world.answered) == 3
    assert len(told) == 2


async def test_cancelling_the_mailboxes_leaves_nobody_waiting() -> None:
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


async def test_a_cancelled_wait_does_not_take_the_command_back() -> None:
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


async def test_the_event_loop_has_its_turn_between_many_commands() -> None:
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
            persist=lambda batch: batch.deliver(store.append(batch.changes, batch.followers)),
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
        assert 0 < sum(mailbox.handled for mailbox in mailboxes.figures().mailboxes) < 50
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


async def test_an_answer_that_raises_does_not_keep_others_from_theirs() -> None:
    world = World()
    told: list[Outcome] = []

    def fails(outcomes: list[Outcome]) -> None:
        raise ValueError("a sender's fault")

    async with world.running() as mailboxes:
        mailboxes.append([("a", None, "1", None)], fails)
        mailboxes.append([("b", None, "1", None)], told.extend)
        mailboxes.kick()
    assert world.errors == ["answer"]
    assert len(told) == 1
