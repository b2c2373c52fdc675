"""Workers on all shards of a cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import bank
import eventstore as es
from eventstore import blocking
from eventstore.records.cluster_map import even_slots
from eventstore.records.slots import slot_of
from tests.cluster.led_shards import LedShards
from tests.cluster.node_process import NodeProcess, kill_process
from tests.cluster.test_reacting import ACCOUNTS, OPENING, balances, finished, open_accounts
from tests.server.commands.command_ledger import CommandLedger
from tests.server.commands.tallies import Add, AddOften
from tests.server.work.worker_process import WorkerProcess
from tests.server.work.worker_thread import WorkerThread
from tests.waiting import DEADLINE_SECONDS, eventually, wait_until

TALLIES = "tests.server.commands.tallies:app"


@pytest.mark.heavy
@pytest.mark.long
def test_a_worker_on_three_shards_loses_and_doubles_nothing_when_shards_are_killed(tmp_path: Path) -> None:
    ledger, chance = CommandLedger("shards", aggregates=9), random.Random("shards")
    owners = [slots[0][0] for slots in even_slots(3)]
    assert {sum(slot_of(f"a-{number}") >= low for low in owners) for number in range(9)} == {1, 2, 3}, "all shards have some"
    with NodeProcess(tmp_path / "data", 3) as node, WorkerProcess(node.address, tmp_path) as worker:

        async def kill(ledger: CommandLedger) -> None:
            for shard in (1, 0, 2):
                await ledger.until(chance.randint(50, 200))
                await trio.to_thread.run_sync(lambda shard=shard: kill_process(node.rows()[shard].pid))
            await ledger.until(200)

        ledger.run([worker.address], 500, kill)
        ledger.check(node.address)
        with blocking.connect(worker.address) as store:
            assert store.stats()["mailbox_depth"] == 0
        assert worker.terminate() == 0
        assert node.terminate() == 0


@pytest.mark.heavy
@pytest.mark.usefixtures("examples")
def test_reactions_of_a_worker_take_effect_once_when_it_and_a_shard_are_killed(tmp_path: Path) -> None:
    rng, checkpoint = random.Random(3), tmp_path / "reactions.json"

    def work(listen: str = "127.0.0.1:0") -> WorkerProcess:
        return WorkerProcess(node.address, tmp_path, domain="bank:app", checkpoint=checkpoint, listen=listen)

    with NodeProcess(tmp_path / "data", 3) as node:
        worker = work()
        try:
            open_accounts(worker.address)
            with blocking.connect(worker.address) as sender:
                for batch in range(4):
                    to = [rng.choice([*ACCOUNTS, "nobody"]) for _ in range(40)]
                    sender.send_many([bank.Transfer(rng.choice(ACCOUNTS), each, 1) for each in to])
                    if batch == 1:
                        kill_process(node.rows()[2].pid)
                    if batch == 2:
                        worker.kill()
                        worker = work(worker.address.removeprefix("tcp://"))
                wait_until(lambda: finished(node.address), "every transfer has ended")
                names = [each.name for each in sender.reactions.progress()]
                assert names == sorted(names)
                assert {name.partition("@")[2] for name in names} == {"0", "1", "2"}
                assert sender.reactions.parked(names[0]) == []
                assert sender.reactions.replay(names[-1], 1, who="op", why="test") == 0
                with pytest.raises(es.InvalidArgument, match=r"names no shard: .* shards 0, 1, 2; say which, such as NAME@0"):
                    sender.reactions.parked(names[0].partition("@")[0])
                wait_until(lambda: finished(node.address), "what was replayed takes effect once")
            assert sum(balances(node.address).values()) == OPENING * len(ACCOUNTS)
            assert worker.terminate() == 0
        finally:
            worker.kill()
        assert sorted(each.name for each in tmp_path.glob("reactions-?.json")) == [f"reactions-{n}.json" for n in range(3)]
        assert node.terminate() == 0


async def test_a_worker_that_was_paused_through_three_splits_goes_on(tmp_path: Path) -> None:
    ids = [f"t-{number}" for number in range(24)]
    with LedShards(tmp_path, 1) as led, WorkerThread(led.address, domain=TALLIES) as worker, trio.fail_after(DEADLINE_SECONDS):
        async with es.connect(worker.address) as sender, es.connect(led.address) as store:
            await sender.send_many([Add(each) for each in ids])

            def pause(_: object) -> None:
                for _ in range(3):
                    led.split(0, restarts=True)

            await trio.to_thread.run_sync(worker.ask, pause)
            assert {type(each) for each in await sender.send_many([Add(each) for each in ids * 2])} == {es.Committed}
            assert [await store.version(each) for each in ids] == [3] * len(ids)


@pytest.mark.parametrize(
    ("shards", "restarts"),
    [(2, False), (1, True), pytest.param(1, False, marks=pytest.mark.long), pytest.param(2, True, marks=pytest.mark.long)],
)
async def test_a_worker_goes_on_through_splits_and_keeps_the_order_of_commands(
    tmp_path: Path, shards: int, restarts: bool
) -> None:
    ids = [f"t-{number}" for number in range(24)]
    with LedShards(tmp_path, shards) as led, WorkerThread(led.address, domain=TALLIES) as worker:
        async with es.connect(worker.address) as sender, es.connect(led.address) as store:
            for number in range(4):
                sent = [(AddOften(each, 2), f"{number}-{place}") for place in range(3) for each in ids]
                with trio.fail_after(DEADLINE_SECONDS):
                    assert {type(each) for each in await sender.send_many(sent)} == {es.Committed}
                for each in ids:
                    commands = [event.command_id async for event in store.read(each, number * 6 + 1)]
                    assert commands == [f"{number}-{place}" for place in range(3) for _ in range(2)]
                if number < 3:
                    await trio.to_thread.run_sync(lambda: led.split(0, restarts=restarts))
            assert (await sender.stats())["attention"] is None


@pytest.fixture
def led(tmp_path: Path) -> Iterator[LedShards]:
    with LedShards(tmp_path, 3) as shards:
        yield shards


async def test_a_shard_that_is_away_holds_up_its_own_commands_and_the_worker_names_it(led: LedShards) -> None:
    with WorkerThread(led.address, domain=TALLIES) as worker, trio.fail_after(DEADLINE_SECONDS):
        async with es.connect(worker.address) as sender, es.connect(led.address) as store, trio.open_nursery() as nursery:

            async def attention() -> object:
                return (await sender.stats())["attention"]

            async def all_are_there() -> bool:
                return await attention() is None

            async def is_missed() -> bool:
                return await attention() == "shard 1 is away: commands to their aggregates wait"

            async def waits() -> bool:
                return (await sender.stats())["mailbox_depth"] == 1

            await eventually(all_are_there, "all shards are connected")
            leader = led.leaders[1]
            led.elect(1, None)
            await eventually(is_missed, "it says which shard is away")
            nursery.start_soon(sender.send, Add(led.id_of(1)), "c-1")
            await eventually(waits, "the command waits")
            assert isinstance(await sender.send(Add(led.id_of(0))), es.Committed)
            assert isinstance(await sender.send(Add(led.id_of(2))), es.Committed)
            assert await waits(), "the others did not wait with it"
            led.elect(1, leader)

            async def is_stored() -> bool:
                return await store.version(led.id_of(1)) == 1

            await eventually(is_stored, "it is handled when the shard is back")
            await eventually(all_are_there, "nothing is away")


@pytest.mark.parametrize("away", [0, 3], ids=["the old one", "the new one"])
async def test_a_worker_names_the_shards_whose_commands_wait_with_those_of_one_that_is_away(led: LedShards, away: int) -> None:
    with WorkerThread(led.address, domain=TALLIES) as worker, trio.fail_after(DEADLINE_SECONDS):
        async with es.connect(worker.address) as sender, trio.open_nursery() as nursery:
            assert await trio.to_thread.run_sync(led.split, 0) == 3
            ids = {shard: led.id_of(shard) for shard in range(4)}
            assert {type(each) for each in await sender.send_many([Add(each) for each in ids.values()])} == {es.Committed}
            leader, waits_as_well = led.leaders[away], 3 - away

            async def is_missed() -> bool:
                return (await sender.stats())["attention"] == (
                    f"shard {away} is away: commands to their aggregates wait, and those of shard {waits_as_well}: mailboxes "
                    "are shared until the worker is started again"
                )

            async def one_waits() -> bool:
                return (await sender.stats())["mailbox_depth"] == 1

            async def both_wait() -> bool:
                return (await sender.stats())["mailbox_depth"] == 2

            led.elect(away, None)
            await eventually(is_missed, "it says who waits")
            nursery.start_soon(sender.send, Add(ids[away]))
            await eventually(one_waits, "its command waits")
            nursery.start_soon(sender.send, Add(ids[waits_as_well]))
            await eventually(both_wait, "both commands wait")
            assert isinstance(await sender.send(Add(ids[1])), es.Committed)
            assert await both_wait(), "only those two"
            led.elect(away, leader)


async def test_a_worker_follows_a_shard_to_its_new_leader(led: LedShards) -> None:
    with WorkerThread(led.address, domain=TALLIES) as worker, trio.fail_after(DEADLINE_SECONDS):
        async with es.connect(worker.address) as sender, es.connect(led.address) as store:
            for number in range(4):
                outcomes = await sender.send_many([Add(led.id_of(shard)) for shard in range(3)])
                assert [type(each) for each in outcomes] == [es.Committed] * 3
                led.elect(number % 3, led.lead(number % 3))
            assert [await store.version(led.id_of(shard)) for shard in range(3)] == [4, 4, 4]


async def test_a_worker_on_a_cluster_of_one_shard_works_on_that(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1) as led, WorkerThread(led.address, domain=TALLIES) as worker:
        async with es.connect(worker.address) as sender, es.connect(led.address) as store:
            assert isinstance(await sender.send(Add("a")), es.Committed)
            assert await store.version("a") == 1
