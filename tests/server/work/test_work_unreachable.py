"""A worker whose store cannot be reached: commands wait, none is lost or answered wrongly, and all are finished later."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore.domain.runtime import DomainRuntime, decide
from eventstore.model import Unchanged
from eventstore.records.slots import slot_of
from eventstore.server.mailbox_wiring import ServerEntry, ServerMailboxes, StoreAccess, StoredOutcome, make_mailboxes
from eventstore.server.requests.commands import outcome_of
from eventstore.server.work.remote_access import remote_access
from eventstore_mailbox import COMMITTED, Options
from tests.server.commands.tallies import Add, AddBelow, Raise, Wait, app, gates
from tests.server.commands.test_commands import amounts
from tests.server.conftest import Serve
from tests.server.work.worker_thread import WorkerThread
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, eventually


class Domain:
    """The bank's mailboxes in this process, on a client that fails at once if its server is gone."""

    def __init__(self, mailboxes: ServerMailboxes, access: StoreAccess) -> None:
        self.mailboxes = mailboxes
        self.access = access

    async def send(self, command: object, command_id: str) -> es.Committed | Unchanged | es.EventStoreError:
        return await outcome_of(await self.mailboxes.execute(entry_of(command, command_id)), self.access.find_commands)


def entry_of(command: object, command_id: str) -> ServerEntry:
    raw = d.encode_command(command)
    return ServerEntry(raw.aggregate_id, command_id, decide(app, raw.type, raw.payload, raw.aggregate_id, command_id))


@asynccontextmanager
async def embedded(server: ServerThread) -> AsyncIterator[Domain]:
    with trio.fail_after(DEADLINE_SECONDS):
        async with es.connect(server.address, reconnect_timeout=0.0) as store, trio.open_nursery() as nursery:
            access = remote_access(store, nursery, lambda error: None)
            runtime = DomainRuntime(app, access.read_events)
            options = Options(mailboxes=2, backoff_first_s=0.001, backoff_max_s=0.02)
            mailboxes = make_mailboxes(runtime, access, options, lambda entries: None)
            await nursery.start(mailboxes.run)
            yield Domain(mailboxes, access)
            assert mailboxes.depth == 0
            nursery.cancel_scope.cancel()


async def test_outcomes_that_come_in_parts_are_delivered_batch_by_batch(serve: Serve) -> None:
    """The store runs the domain as well, and a command of its own holds up one of the worker's appends."""
    server = serve(domain="tests.server.commands.tallies:app")
    other = next(name for name in ("a", "b", "c", "d") if slot_of(name) % 2 != slot_of("busy") % 2)  # of another mailbox
    async with embedded(server) as domain, es.connect(server.address) as store, trio.open_nursery() as nursery:

        async def is_waiting() -> bool:
            return await trio.to_thread.run_sync(lambda: server.ask(lambda _: "busy" in gates))

        async def is_answered() -> bool:
            return answered.status == COMMITTED

        nursery.start_soon(store.send, Wait("busy"))
        await eventually(is_waiting, "the handler waits")
        held_up, answered = (entry_of(Add(name), f"c-{name}") for name in ("busy", other))
        assert not domain.mailboxes.submit([held_up, answered])
        domain.mailboxes.kick()  # both travel in one frame
        await eventually(is_answered, "the other is answered")
        assert held_up.status != COMMITTED
        await trio.to_thread.run_sync(lambda: server.ask(lambda _: gates.pop("busy").set()))
        await domain.mailboxes.stop(DEADLINE_SECONDS)
        assert held_up.status == COMMITTED


async def test_commands_wait_for_an_unreachable_store_and_are_finished_when_it_is_back(serve: Serve) -> None:
    server = serve()
    async with embedded(server) as domain:
        told: dict[str, object] = {}

        async def send(command: object, command_id: str) -> None:
            told[command_id] = await domain.send(command, command_id)

        async def has_failed() -> bool:
            stats = domain.mailboxes.stats()
            return stats.persist_failures > 2 and stats.restore_failures > 2

        async def all_wait() -> bool:
            return domain.mailboxes.depth == 4

        await send(Add("warm", 5), "c-0")
        await trio.to_thread.run_sync(server.stop)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, Add("warm"), "c-1")  # its events cannot be stored
            nursery.start_soon(send, Add("cold"), "c-2")  # its aggregate cannot be restored
            await eventually(has_failed, "the store is missed")
            nursery.start_soon(send, AddBelow("warm", 9, 10), "c-3")  # refused after a command that is not stored
            nursery.start_soon(send, AddBelow("warm-too", 9, 5), "c-4")
            await eventually(all_wait, "all four wait")
            assert set(told) == {"c-0"}
            await trio.to_thread.run_sync(server.start)
    with es.blocking.connect(server.address) as store:
        assert amounts(list(store.read("warm"))) == [5, 1]
        assert amounts(list(store.read("cold"))) == [1]
    assert [type(told[f"c-{number}"]) for number in range(5)] == [es.Committed] * 3 + [es.Rejected] * 2


async def test_a_refusal_waits_for_the_store_which_may_have_the_command_already(serve: Serve) -> None:
    server = serve()
    async with embedded(server) as domain:
        told: dict[str, object] = {}

        async def send(command: object, command_id: str) -> None:
            told[command_id] = await domain.send(command, command_id)

        async def has_failed() -> bool:
            return domain.mailboxes.stats().restore_failures > 2

        first = await domain.send(AddBelow("a", 9, 10), "c-1")
        assert isinstance(first, es.Committed)
        await trio.to_thread.run_sync(server.stop)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, AddBelow("a", 9, 10), "c-1")
            nursery.start_soon(send, AddBelow("a", 9, 10), "c-2")
            nursery.start_soon(send, Raise("a", 5), "c-3")
            await eventually(has_failed, "the store is asked whether it has the command")
            assert told == {}
            await trio.to_thread.run_sync(server.start)
    assert told["c-1"] == first._replace(duplicate=True)
    assert type(told["c-2"]) is es.Rejected
    assert told["c-3"] == Unchanged("a")


async def test_the_lookup_of_a_command_is_retried_until_the_store_answers(serve: Serve) -> None:
    server = serve()
    async with embedded(server) as domain:
        first = await domain.send(Add("a"), "c-1")
        assert isinstance(first, es.Committed)
        await trio.to_thread.run_sync(server.stop)
        found: list[StoredOutcome | es.EventStoreError | None] = []
        domain.access.find_commands("a", ("c-1",), found.extend)

        async def is_found() -> bool:
            return bool(found)

        await trio.to_thread.run_sync(server.start)
        await eventually(is_found, "the store answers")
    (stored,) = found
    assert isinstance(stored, tuple)
    assert stored[0] == first._replace(duplicate=True)
    assert any(stored[1]), "its fingerprint"


def test_a_worker_ends_with_an_error_when_another_store_answers_at_its_address(serve: Serve, tmp_path: Path) -> None:
    server = serve(tmp_path / "one")
    worker = WorkerThread(server.address, domain="tests.server.commands.tallies:app", stop_timeout_s=1.0)
    worker.start()
    with es.blocking.connect(worker.address, reconnect_timeout=0.0) as store:
        store.send(Add("a"))
        address = server.address.removeprefix("tcp://")
        server.stop()
        serve(tmp_path / "two", listen=address)
        with pytest.raises(es.EventStoreError):
            store.send(Add("a"))
    with pytest.raises(BaseExceptionGroup) as ended:
        worker.join()
    assert ended.group_contains(es.ConnectionLost, match=r"another store answers at this address")
