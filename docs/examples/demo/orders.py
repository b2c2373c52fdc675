"""A shop bills its orders: a topic, a consumer group of two members, a message that fails once, and one that fails for good."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import trio

import eventstore as es
from demo.server_process import ServerProcess
from demo.stage import DEADLINE_SECONDS, Stage, expect
from eventstore.client.aio.consumer import Consumer
from eventstore.client.aio.store import NetworkStore

CUSTOMERS: Final = 100
ORDERS: Final = 2_000
TIMED_OUT: Final = 500
EXPIRED: Final = 700
RETRY_SECONDS: Final = (0.1, 0.2)
_TICK_SECONDS: Final = 0.02


class OrdersStory:
    """The scenes, in order. `billed`: the orders of each customer, as they were billed."""

    def __init__(self, scratch: Path, stage: Stage) -> None:
        self._stage = stage
        self._server = ServerProcess(scratch, "--set", f"broker_retry_delays_s={','.join(map(str, RETRY_SECONDS))}")
        self._customers = [f"customer-{number}" for number in random.Random(7).choices(range(CUSTOMERS), k=ORDERS)]
        self._billed: dict[str, list[int]] = {}
        self._failed: list[tuple[int, int, str]] = []
        self._card_is_renewed = False

    def run(self) -> None:
        try:
            self._server.start()
            trio.run(self._run)
        finally:
            self._server.close()

    async def _run(self) -> None:
        async with es.connect(self._server.address) as store:
            await store.broker.create_topic("orders", queues=4)
            ada, tony = (store.consumer("billing", "orders", member=name, commit_interval=0.1) for name in ("ada", "tony"))
            async with ada, tony, trio.open_nursery() as nursery:
                async for _ in _attempts("the members share the queues"):
                    if len(ada.assigned) == len(tony.assigned):
                        break
                self._stage.say("A topic with 4 queues, and a consumer group of two members")
                self._stage.show(("member", "queues of orders"), [(each.member, _queues(each)) for each in (ada, tony)])
                for each in (ada, tony):
                    nursery.start_soon(self._bill, each)
                await self._send(store)
                await self._show_billed()
                await self._show_failed(store)
                await self._replay(store)
                async for _ in _attempts("what was billed is committed"):
                    if not (await store.broker.group("billing")).backlog:
                        break
                nursery.cancel_scope.cancel()

    async def _bill(self, consumer: Consumer) -> None:
        async for message in consumer:
            order = int(message.body)
            if order == TIMED_OUT and not message.times_failed:
                self._fail(message, "the bank did not answer")
            elif order == EXPIRED and not self._card_is_renewed:
                self._fail(message, "the card has expired")
            else:
                self._billed.setdefault(message.key or "", []).append(order)
                message.done()

    def _fail(self, message: es.Delivery, reason: str) -> None:
        message.retry(reason)
        self._failed.append((int(message.body), message.times_failed + 1, reason))

    async def _send(self, store: NetworkStore) -> None:
        messages = [es.NewMessage(b"%d" % order, key=customer) for order, customer in enumerate(self._customers)]
        started = time.perf_counter()
        outcomes = await store.topic("orders").send_many(messages)
        seconds = time.perf_counter() - started
        for outcome in outcomes:
            expect(isinstance(outcome, es.SendResult), f"a message was not stored: {outcome}")
        self._stage.say(
            f"{ORDERS:,} orders of {CUSTOMERS} customers sent to it",
            f"each synced, those of a customer in one queue; {ORDERS / seconds:,.0f} messages/s",
        )

    async def _show_billed(self) -> None:
        await self._wait_for(ORDERS - 1)
        expected: dict[str, list[int]] = {}
        for order, customer in enumerate(self._customers):
            if order not in (TIMED_OUT, EXPIRED):
                expected.setdefault(customer, []).append(order)
        in_order = {customer: [order for order in orders if order != TIMED_OUT] for customer, orders in self._billed.items()}
        expect(in_order == expected, "the orders of a customer were billed in another order than they were sent")
        self._stage.say(f"{ORDERS - 1:,} of them billed, each once, those of a customer in their order")

    async def _show_failed(self, store: NetworkStore) -> None:
        """Shows that no message waits for one that fails. After its last delivery it is a dead letter, to be looked at."""
        async for _ in _attempts("what fails for good is a dead letter"):
            if letters := await store.broker.dead_letters("billing"):
                break
        expired = [(EXPIRED, number, "the card has expired") for number in range(1, len(RETRY_SECONDS) + 2)]
        expect(sorted(self._failed) == [(TIMED_OUT, 1, "the bank did not answer"), *expired], f"other failures: {self._failed}")
        expect([int(letter.body) for letter in letters] == [EXPIRED], f"other dead letters: {letters}")
        delays = ", then ".join(f"{seconds:g} s" for seconds in RETRY_SECONDS)
        self._stage.say(
            "Two failed, and nothing waited for them", f"a failed message comes again after {delays}, then it is a dead letter"
        )
        self._stage.show(("order", "delivery", "failed because"), sorted(self._failed))

    async def _replay(self, store: NetworkStore) -> None:
        self._card_is_renewed = True
        await store.broker.replay("billing", [0])
        await self._wait_for(ORDERS)
        self._stage.say(f"The dead letter, order {EXPIRED}, is replayed", f"all {ORDERS:,} orders are billed")

    async def _wait_for(self, count: int) -> None:
        async for _ in _attempts("the orders are billed"):
            if sum(map(len, self._billed.values())) == count:
                return


def _queues(consumer: Consumer) -> str:
    return ", ".join(str(queue) for _, queue in consumer.assigned)


async def _attempts(what: str) -> AsyncIterator[None]:
    """Yields until the caller stops or the deadline passes; as `wait_until`, while tasks run."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        yield
        expect(time.monotonic() < deadline, f"{what}: not within {DEADLINE_SECONDS:.0f} s")
        await trio.sleep(_TICK_SECONDS)
