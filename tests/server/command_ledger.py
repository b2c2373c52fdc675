"""What senders of commands were told, against what is in the store afterwards.

Many tasks send random commands of `tests.server.tallies` on a few aggregates that all of them share, to one or several
addresses, while a test kills and restarts what is behind these. `check` has a domain without mailboxes, without memory and
without a second thread execute the commands that took effect, one after the other: it must come to the same events.
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
from eventstore.client.store import NetworkStore
from eventstore.domain.aggregate import new
from eventstore.model import Unchanged
from tests.server.tallies import Add, AddBelow, AddOften, Raise, Rename, Tally, app
from tests.waiting import DEADLINE_SECONDS

Key: TypeAlias = tuple[str, str]
Outcome: TypeAlias = es.Committed | Unchanged | es.Rejected
Disturb: TypeAlias = Callable[["CommandLedger"], Awaitable[None]]


@dataclass
class CommandLedger:
    """Everything that was sent over the life of one store."""

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
        """Sends so many commands, and goes on until `disturb` is through; then every one of them is answered."""
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
        if isinstance(outcome, es.Committed) and chance.random() < 0.1:  # whoever is not sure asks again, perhaps elsewhere
            assert await chance.choice(stores).send(command, command_id) == outcome._replace(duplicate=True)

    def _command(self, chance: random.Random) -> object:
        name = f"a-{chance.randrange(self.aggregates)}"
        return chance.choice([
            Add(name, chance.randrange(1, 5)), Add(name), AddOften(name, 3), AddBelow(name, 2, chance.randrange(3_000)),
            Raise(name, chance.randrange(3_000)), Rename(name, f"n-{chance.randrange(3)}"),
        ])  # fmt: skip

    async def until(self, told: int) -> None:
        """Returns when so many more commands have been answered."""
        self._reached = trio.Event()
        self._awaited = len(self.told) + told
        await self._reached.wait()

    # -- afterwards -----------------------------------------------------------------------------------------------------

    def check(self, store_address: str) -> None:
        """Every command took effect once or not at all, as its sender was told, on the state that those before it left."""
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
        assert not effective, "commands that nobody sent took effect"

    def _replayed(self, name: str, events: list[es.Event]) -> dict[Key, int]:
        """Executes the commands that took effect in the order of their events; the version each led to."""
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
