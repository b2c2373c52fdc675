"""Checks the outcomes that senders of commands got against the store.

Many tasks send random commands of `tests.server.commands.tallies` to a few shared aggregates, at one or several addresses,
while a test kills and restarts the servers there. `check` executes the commands that took effect again, one after the other,
in a domain without mailboxes, memory and threads: the events must be the same.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import trio

import eventstore as es
import eventstore.domain as d
from eventstore import flat
from eventstore.client.aio.store import NetworkStore
from eventstore.domain.aggregate import new
from eventstore.model import Unchanged
from tests.server.commands.tallies import Add, AddBelow, AddOften, Raise, Rename, Tally, app
from tests.waiting import DEADLINE_SECONDS

Key: TypeAlias = tuple[str, str]
Outcome: TypeAlias = es.Committed | Unchanged | es.Rejected
Disturb: TypeAlias = Callable[["CommandLedger"], Awaitable[None]]


@dataclass
class CommandLedger:
    """All commands sent to one store."""

    seed: str
    aggregates: int = 5
    senders: int = 12
    sent: dict[Key, object] = field(default_factory=dict)
    told: dict[Key, Outcome] = field(default_factory=dict)
    overloaded: int = 0
    _awaited: int = 0
    _reached: trio.Event = field(default_factory=trio.Event)

    # -- the workload ---------------------------------------------------------------------------------------------------

    def run(self, addresses: Sequence[str], commands: int, disturb: Disturb) -> None:
        """Sends this many commands, and more until `disturb` returns; waits until all are answered."""
        trio.run(self._run, addresses, commands, disturb)

    async def _run(self, addresses: Sequence[str], commands: int, disturb: Disturb) -> None:
        disturbing = True
        target = len(self.told) + commands

        async def send(sender: int) -> None:
            chance = random.Random(f"{self.seed}/{len(self.sent)}/{sender}")
            while disturbing or len(self.told) < target:
                await self._send(stores, chance, sender)

        with trio.fail_after(2 * DEADLINE_SECONDS):
            stores: list[NetworkStore] = []
            async with trio.open_nursery() as connections:
                for address in addresses:
                    stores.append(await connections.start(_hold, address))
                async with trio.open_nursery() as senders:
                    for sender in range(self.senders):
                        senders.start_soon(send, sender)
                    await disturb(self)
                    disturbing = False
                connections.cancel_scope.cancel()

    async def _send(self, stores: Sequence[NetworkStore], chance: random.Random, sender: int) -> None:
        store = chance.choice(stores)
        command_id = f"{sender}-{len(self.sent)}"
        command = self._command(chance)
        key = d.encode_command(command).aggregate_id, command_id
        self.sent[key] = command
        try:
            outcome: Outcome = await store.send(command, command_id)
        except es.Rejected as rejected:
            outcome = rejected
        except es.Overloaded:
            self.overloaded += 1
            del self.sent[key]
            return
        self.told[key] = outcome
        if len(self.told) >= self._awaited:
            self._reached.set()
        if (
            isinstance(outcome, es.Committed) and chance.random() < 0.1
        ):  # without an answer it retries, perhaps at another address
            again = await chance.choice(stores).send(command, command_id)
            assert isinstance(again, es.Committed)
            told = outcome._replace(duplicate=True, durability=again.durability)  # a worker that has just started knows of none
            assert again == told

    def _command(self, chance: random.Random) -> object:
        name = f"a-{chance.randrange(self.aggregates)}"
        return chance.choice([
            Add(name, chance.randrange(1, 5)), Add(name), AddOften(name, 3), AddBelow(name, 2, chance.randrange(3_000)),
            Raise(name, chance.randrange(3_000)), Rename(name, f"n-{chance.randrange(3)}"),
        ])  # fmt: skip

    async def until(self, told: int) -> None:
        """Waits until this many more commands have been answered."""
        self._reached = trio.Event()
        self._awaited = len(self.told) + told
        await self._reached.wait()

    # -- afterwards -----------------------------------------------------------------------------------------------------

    def check(self, store_address: str) -> None:
        """Checks that each command took effect once or not at all, as answered, on the state left by those before it."""
        assert self.sent.keys() == self.told.keys()
        with es.blocking.connect(store_address) as store:
            histories = {f"a-{number}": list(store.read(f"a-{number}")) for number in range(self.aggregates)}
        effective: dict[Key, int] = {}
        for name, events in histories.items():
            effective |= self._replayed(name, events)
        for key, outcome in self.told.items():
            if isinstance(outcome, es.Committed):
                assert effective.pop(key, None) == outcome.version, f"{key} was acknowledged: {outcome}"
            else:
                assert key not in effective, f"{key} was answered {outcome}, and took effect"
        assert not effective, "commands that were never sent took effect"

    def _replayed(self, name: str, events: list[es.Event]) -> dict[Key, int]:
        """Executes the commands that took effect in the order of their events; returns the version after each."""
        tally, done, place = new(Tally, name), dict[Key, int](), 0
        assert [event.version for event in events] == list(range(1, len(events) + 1))
        while place < len(events):
            key = name, events[place].command_id
            assert key not in done, f"{key} took effect twice"
            raw = d.encode_command(self.sent[key])
            handler, command = app.decode(raw.type, raw.payload, raw.aggregate_id)
            handled = handler.run(command, tally)
            own = events[place : place + max(handled.event_count, 1)]
            assert handled.error is None
            assert {event.command_id for event in own} == {key[1]}
            values = flat.decode_trusted(handled.events, 4 * handled.event_count)
            decided = [values[at + 1 : at + 4] for at in range(0, len(values), 4)]
            assert decided == _values(own), f"{key} was decided on another state: {events[max(place - 4, 0) : place + 4]}"
            place += len(own)
            done[key] = place
        return done


async def _hold(address: str, *, task_status: trio.TaskStatus[NetworkStore]) -> None:
    async with es.connect(address) as store:
        task_status.started(store)
        await trio.sleep_forever()


def _values(events: list[es.Event]) -> list[tuple[object, ...]]:
    return [(event.type, event.data, event.metadata) for event in events]
