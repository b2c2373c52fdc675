"""Bounds of commands: handlers that block, full mailboxes, aggregates in memory, stopping."""

from __future__ import annotations

import pytest
import trio

import eventstore as es
from eventstore.model import Unchanged
from eventstore.protocol.answers import Goodbye
from tests.server.commands.domain_hosts import DomainHost
from tests.server.commands.tallies import Add, AddBelow, Block, BlockLate, Raise, Wait, gates
from tests.server.commands.test_commands import amounts
from tests.server.commands.test_mixed import release, send, waiting
from tests.server.conftest import Begin
from tests.server.raw import RawClient, outcomes_of
from tests.waiting import DEADLINE_SECONDS, wait_until


@pytest.mark.parametrize("command", [Block, BlockLate], ids=["sync", "async"])
def test_a_handler_that_blocks_is_named_in_the_log(
    host: Begin, caplog: pytest.LogCaptureFixture, command: type[Block] | type[BlockLate]
) -> None:
    running = host()
    with running.connect() as store:
        store.send(command("a", 0.0))
        assert "blocked" not in caplog.text
        store.send(command("a", 0.08))
        assert running.stats()["handlers_slow"] == 1
    (said,) = [record.getMessage() for record in caplog.records if "blocked" in record.getMessage()]
    name = "block" if command is Block else "block_late"
    assert said.startswith(f"handler tests.server.commands.tallies.{name} blocked all others for ")
    assert "'a'" in said


def test_a_full_mailbox_answers_overloaded_and_takes_more_when_there_is_room(host: Begin) -> None:
    running = host(mailboxes=1, mailbox_capacity=4)
    with RawClient(running.port) as client, running.connect() as store:
        client.send(send(2, Wait("a"), Add("a"), Add("a")))
        wait_until(lambda: waiting(running, "a"), "the handler waits")
        assert store.send(Raise("b-{a}", 0)) == Unchanged("b-{a}")
        client.send(send(3, Add("a"), Add("a"), Add("c-{a}"), Add("a")))
        client.send(send(4, Add("c-{a}")))
        kinds = [outcome[:2] for outcome in outcomes_of(client.answer()[1])]
        assert kinds == [(3, es.Overloaded.code)]
        with pytest.raises(es.Overloaded, match="holds 4 commands of at most 4"):
            store.send(Add("d-{a}"))
        release(running, "a")
        assert [outcome[:2] for outcome in outcomes_of(client.answer()[1])] == [(0, 1), (0, 2), (0, 3)]
        kinds = [outcome[:2] for outcome in outcomes_of(client.answer()[1])]
        assert kinds == [(0, 4), (3, es.Overloaded.code), (3, es.Overloaded.code), (3, es.Overloaded.code)]
        assert store.send(Add("d-{a}")).version == 1  # type: ignore[union-attr] # it is committed
    assert amounts(running.events("a")) == [1, 1, 1, 1]
    assert running.stats()["mailbox_depth"] == 0


def test_evicted_aggregates_are_restored_from_the_store(host: Begin) -> None:
    running = host(aggregates_max=10)
    with running.connect() as store:
        for number in range(4):
            for first in range(0, 100, 4):
                outcomes = store.send_many([AddBelow(f"a-{name}", 1, min(number + 1, 3)) for name in range(first, first + 4)])
                assert [type(outcome) for outcome in outcomes] == [es.Committed if number < 3 else es.Rejected] * 4
        stats = running.stats()
    most = 14 * running.shards
    assert stats["aggregates_in_memory"] <= most
    assert stats["aggregates_evicted"] >= 400 - most
    assert stats["commands_handled"] == 400
    assert all(amounts(running.events(f"a-{name}")) == [1, 1, 1] for name in range(100))


# -- the end --------------------------------------------------------------------------------------------------------------


async def send_all(running: DomainHost, tasks: int, each: int, at: int) -> dict[str, es.Committed]:
    """Sends commands from many tasks over two clients, and restarts the server or worker meanwhile."""
    committed: dict[str, es.Committed] = {}
    ready = trio.Event()

    async def run(store: es.client.store.NetworkStore, task: int) -> None:
        for number in range(each):
            done = await store.send(Add(f"a-{number % 3}"), f"{task}-{number}")
            assert isinstance(done, es.Committed)
            committed[f"{task}-{number}"] = done
            if len(committed) == at:
                ready.set()

    with trio.fail_after(2 * DEADLINE_SECONDS):
        async with es.connect(running.address) as store, es.connect(running.address) as other, trio.open_nursery() as nursery:
            for task in range(tasks):
                nursery.start_soon(run, (store, other)[task % 2], task)
            await ready.wait()
            await trio.to_thread.run_sync(running.restart)
    return committed


def test_clients_do_not_notice_a_restart_of_the_process_that_runs_their_domain(host: Begin) -> None:
    running = host()
    committed = trio.run(send_all, running, 20, 40, 200)
    assert len(committed) == 800
    events = [event for name in range(3) for event in running.events(f"a-{name}")]
    assert {(event.command_id, event.version) for event in events} == {
        (command_id, done.version) for command_id, done in committed.items()
    }
    assert len(events) == 800
    assert [len(amounts(running.events(f"a-{name}"))) for name in range(3)] == [280, 260, 260]


def test_commands_in_flight_are_finished_at_a_stop_and_later_ones_sent_elsewhere(host: Begin) -> None:
    running = host()
    with RawClient(running.port) as client:
        client.send(send(2, Wait("a"), Add("a")))
        wait_until(lambda: waiting(running, "a"), "the handler waits")
        running.begin_to_stop()
        request_id, answer = client.answer()
        assert (request_id, type(answer)) == (0, Goodbye)
        client.send(send(3, Add("a")))
        request_id, error = client.error()
        assert (request_id, type(error)) == (3, es.ShuttingDown)
        release(running, "a")
        assert [outcome[:2] for outcome in outcomes_of(client.answer()[1])] == [(0, 1), (0, 2)]
        assert client.is_gone()
    running.start_again()
    assert amounts(running.events("a")) == [1, 1]


def test_a_handler_that_does_not_end_is_abandoned_and_its_command_sent_to_the_next_process(host: Begin) -> None:
    running = host(stop_timeout_s=0.2)
    done: list[object] = []

    async def main() -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            async with es.connect(running.address) as store, trio.open_nursery() as nursery:

                async def run(command: object, command_id: str) -> None:
                    done.append(await store.send(command, command_id))

                nursery.start_soon(run, Wait("a"), "c-1")
                await trio.to_thread.run_sync(wait_until, lambda: waiting(running, "a"), "the handler waits")
                await run(Add("b"), "c-2")
                await trio.to_thread.run_sync(running.ask, gates.clear)
                await trio.to_thread.run_sync(running.restart)
                await trio.to_thread.run_sync(wait_until, lambda: waiting(running, "a"), "the handler waits")
                await trio.to_thread.run_sync(release, running, "a")

    trio.run(main)
    assert done == [es.Committed("b", 1, 1), es.Committed("a", 1, 2)]
    assert amounts(running.events("a")) == [1]
