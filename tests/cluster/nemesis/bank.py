"""A bank: accounts of one slot, transfers between two of them by one commit, and statements of all of them at one position.

The accounts of a bank begin with the same balance, so that the sum is the same at each position. Beside transfers, tellers make
commits on a condition: claims of a seat, which nobody may have claimed before, and audits, of which none may have come up since
the statement that they were decided on. What is not answered is asked again under the same command id.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import eventstore as es
from eventstore.errors import ConditionFailed, ConnectionLost, EventStoreError, TimedOut, VersionConflict
from eventstore.records.slots import SLOTS, slot_of
from tests.cluster.nemesis.linearizability import Append, Conflict, Stored, VersionRead
from tests.cluster.nemesis.records import OPENED_WITH, Joint, Records, Statement

ACCOUNTS: Final = 8
_BANKS: Final = 8
"""So many that nearly every shard has one, also of those that splits make."""
_VERSIONS_MAX: Final = 60
"""A bank with a longer account gives way to a new one."""
_IN_SYNC_MIN: Final = 2
_CENTS_MAX: Final = 100
_HASTY: Final = 0.1
"""Of the commits, so many are given up while they are under way, so that it is not known whether they were stored."""
_HASTY_S: Final = 0.003


@dataclass
class Bank:
    """`tag`: in braces, so that its aggregates are in one slot. `generation`: of its accounts; `seat`: the next to claim."""

    tag: str
    generation: int = 0
    seat: int = 0

    @property
    def accounts(self) -> tuple[str, ...]:
        return tuple(f"account-{self.generation}-{number}-{self.tag}" for number in range(ACCOUNTS))


def banks() -> list[Bank]:
    """Returns banks in slots that are far apart."""
    found: dict[int, Bank] = {}
    for tag in (f"{{b{number}}}" for number in range(10_000)):
        found.setdefault(slot_of(tag) * _BANKS // SLOTS, Bank(tag))
    assert len(found) == _BANKS
    return [found[part] for part in range(_BANKS)]


@dataclass(frozen=True, slots=True)
class _Asked:
    command: str
    writes: tuple[es.Write, ...]


class Teller:
    """Makes transfers, claims and audits. `now`: the clock of the history. `failed`: told each error."""

    def __init__(
        self,
        name: str,
        banks: Sequence[Bank],
        records: Records,
        now: Callable[[], float],
        failed: Callable[[EventStoreError], None],
        seed: str,
    ) -> None:
        self._name, self._banks, self._records, self._now, self._failed = name, banks, records, now, failed
        self._chance = random.Random(seed)
        self._unknown: deque[_Asked] = deque()
        self._commands = 0
        self._since, self._about = 0.0, ""

    def __str__(self) -> str:
        waits = self._now() - self._since
        return f"{self._name} waits for {waits:.1f} s about {self._about}; {len(self._unknown)} have no answer"

    async def step(self, store: es.NetworkStore) -> bool:
        """Does one thing. Returns False if the connection is of no use any more."""
        bank, what, asks_again = self._chance.choice(self._banks), self._chance.random(), self._chance.random() < 0.3
        self._since, self._about = self._now(), bank.tag
        try:
            if self._unknown and asks_again:
                return await self._commit(store, self._unknown.popleft())
            statement = await state(store, bank, self._records, self._now)
            if not any(statement.counts):
                return await self._commit(store, self._opening(bank))
            if max(statement.counts) > _VERSIONS_MAX and bank.accounts == statement.accounts:
                bank.generation += 1
            elif what < 0.15:
                return await self._commit(store, self._claim(bank))
            elif what < 0.3:
                return await self._commit(store, self._audit(bank, statement))
            else:
                return await self._commit(store, self._transfer(statement))
        except EventStoreError as error:
            self._failed(error)
            return not isinstance(error, ConnectionLost)
        return True

    # ---- what it asks for

    def _new(self, kind: str) -> str:
        self._commands += 1
        return f"{kind} {self._name}.{self._commands}"

    def _asked(self, command: str, writes: Iterable[es.Write], tag: str = "", after: es.Position | None = None) -> _Asked:
        made = tuple(writes)
        self._records.joint.setdefault(command, Joint(tuple(each.aggregate_id for each in made), tag, after))
        return _Asked(command, made)

    def _opening(self, bank: Bank) -> _Asked:
        """All tellers make the same commit."""
        events = [es.NewEvent("Opened", {"cents": OPENED_WITH})]
        return self._asked(f"open {bank.generation} {bank.tag}", (es.Write(each, events, 0) for each in bank.accounts))

    def _transfer(self, statement: Statement) -> _Asked:
        command, cents = self._new("move"), self._chance.randrange(1, _CENTS_MAX)
        source, target = self._chance.sample(range(ACCOUNTS), 2)
        tags = ["moved"] if self._chance.random() < 0.3 else []
        writes = (
            es.Write(statement.accounts[each], [es.NewEvent("Moved", {"cents": moved}, tags=tags)], statement.counts[each])
            for each, moved in ((source, -cents), (target, cents))
        )
        return self._asked(command, writes)

    def _claim(self, bank: Bank) -> _Asked:
        command, tag = self._new("claim"), f"seat:{bank.tag}:{bank.seat}"
        bank.seat += self._chance.random() < 0.5  # the others may want it as well
        write = es.Write(f"claims-{bank.generation}-{bank.tag}", [es.NewEvent("Claimed", {}, tags=[tag, "claim"])], es.ANY)
        return self._asked(command, [write], tag)

    def _audit(self, bank: Bank, statement: Statement) -> _Asked:
        command, tag = self._new("audit"), f"audit:{bank.tag}"
        write = es.Write(f"audits-{bank.generation}-{bank.tag}", [es.NewEvent("Audited", {}, tags=[tag])], es.ANY)
        return self._asked(command, [write], tag, statement.position)

    # ---- how it asks

    async def _commit(self, store: es.NetworkStore, asked: _Asked) -> bool:
        began, counts, joint = self._now(), self._records.counts, self._records.joint[asked.command]
        kind = asked.command.partition(" ")[0]
        unless = es.Query(tags=[joint.tag]) if joint.tag else None
        timeout = _HASTY_S if self._chance.random() < _HASTY else None
        try:
            done = await store.commit(
                asked.writes, unless=unless, after=joint.after, command_id=asked.command, timeout=timeout
            )  # fmt: skip
        except VersionConflict as conflict:
            joint.refused()
            refused = next(each for each in asked.writes if each.aggregate_id == conflict.aggregate_id)
            self._note(asked.command, refused, began, self._now(), Conflict(int(str(conflict.actual))))
            counts[f"{kind} conflicts"] += 1
        except ConditionFailed:
            joint.refused()
            counts[f"{kind} refused"] += 1
        except EventStoreError as error:
            self._is_unknown(asked, began)
            self._unknown.append(asked)
            if timeout is None or not isinstance(error, TimedOut):
                self._failed(error)
            counts[f"{kind} unknown"] += 1
            return not isinstance(error, ConnectionLost)
        except BaseException:
            self._is_unknown(asked, began)
            raise
        else:
            ended = self._now()
            joint.stored()
            self._records.acknowledged.append((ended, self._records.shard_of(asked.writes[0].aggregate_id)))
            for write, found in zip(asked.writes, done, strict=True):
                assert found.durability is not None, found
                assert found.durability >= _IN_SYNC_MIN, found
                self._note(asked.command, write, began, ended, Stored(found.version, found.duplicate))
            counts[f"{kind} duplicates" if done[0].duplicate else kind] += 1
        return True

    def _is_unknown(self, asked: _Asked, began: float) -> None:
        for write in asked.writes:
            self._note(asked.command, write, began, inf, None)

    def _note(self, command: str, write: es.Write, began: float, ended: float, outcome: Stored | Conflict | None) -> None:
        expected = write.expected_version if isinstance(write.expected_version, int) else None
        self._records.history[write.aggregate_id].append(Append(began, ended, command, expected, len(write.events), outcome))


async def state(
    store: es.NetworkStore, bank: Bank, records: Records, now: Callable[[], float], at: Statement | None = None
) -> Statement:
    """Reads all accounts of a bank at one position, and notes what they had. `at`: an earlier statement, read once more."""
    began, accounts = now(), bank.accounts if at is None else at.accounts
    found, position = await store.replay_many(accounts, None if at is None else at.position)
    made = statement_of(accounts, found, position, began, now(), is_newest=at is None)
    records.statements.append(made)
    records.counts["statements"] += 1
    if at is None:
        for account, version in zip(accounts, made.counts, strict=True):
            records.history[account].append(VersionRead(began, made.ended, version))
    return made


def statement_of(
    accounts: tuple[str, ...],
    found: dict[str, list[es.Event]],
    position: es.Position,
    began: float,
    ended: float,
    *,
    is_newest: bool,
) -> Statement:
    """Returns what was read. Versions with a gap are an assertion that fails."""
    for events in found.values():
        assert [event.version for event in events] == list(range(1, len(events) + 1)), events
    return Statement(
        accounts,
        position,
        began,
        ended,
        sum(event.json()["cents"] for events in found.values() for event in events),
        tuple(len(found[each]) for each in accounts),
        tuple(found[each][-1].command_id if found[each] else "" for each in accounts),
        is_newest,
    )
