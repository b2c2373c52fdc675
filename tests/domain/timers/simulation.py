"""Timers under everything that goes wrong, from a seed: leaders that die at any step, clocks that step, a log that is split.

The log is a list of events, committed whole. A leader follows it with a `TimerBook` of its own, which it reads from the
beginning or from a copy that an earlier leader has left; it offers commands, and records outcomes, as `Timers` does. A deposed
leader appends nothing: so much is what replication promises. The aggregates are a model: they answer a command id that they
have with its first outcome, and decide any other one, sometimes with a rejection.

A `Mistake` is planted in what `Timers` does. `check` says what a history must never show.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random
from typing import Any

from eventstore.domain.timers.timer_book import DueTimer, TimerBook
from eventstore.domain.timers.timer_clock import JUMP_US, TimerClock
from eventstore.model import Event
from eventstore.records.slots import slot_of
from eventstore.records.timer_record import (
    CANCELLED,
    ENDED,
    MOVED,
    SET,
    command_id_of,
    ended_command_id,
    id_of,
    timer_record,
    timers_id,
)

START_US = 1_800_000_000_000_000
MINUTE_US = 60_000_000


class Mistake(Enum):
    NONE = auto()
    FIRES_BEFORE_CAUGHT_UP = auto()
    NEW_ID_EACH_TIME = auto()
    FORGETS_THE_COPY_LACKS_THE_REST = auto()
    OUTCOME_BY_NAME_ALONE = auto()
    KEEPS_THE_SLOTS_IT_GAVE_AWAY = auto()
    TRUSTS_ANY_CLOCK = auto()
    RECORDS_BEFORE_THE_ANSWER = auto()


@dataclass
class Log:
    """A log, its events with the time of the leader that took them. `commands`: what was appended once is not again."""

    slots: set[int] | None = None
    events: list[Event] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    commands: set[tuple[str, str]] = field(default_factory=set)

    def append(self, aggregate_id: str, type_: str, data: dict[str, Any], command_id: str, now_us: int) -> Event | None:
        if (aggregate_id, command_id) in self.commands:
            return None
        self.commands.add((aggregate_id, command_id))
        version = self.versions[aggregate_id] = self.versions.get(aggregate_id, 0) + 1
        sequence = len(self.events) + 1
        encoded = json.dumps(data).encode()
        event = tuple.__new__(Event, (aggregate_id, version, type_, encoded, None, command_id, now_us, sequence, 1))
        self.events.append(event)
        return event

    def own(self) -> Iterable[Event]:
        return (event for event in self.events if self.slots is None or slot_of(event[0]) in self.slots)


class Leader:
    """One process that leads a log. `under_way`: commands that were sent, and not answered yet."""

    def __init__(self, log: Log, clock: TimerClock, mistake: Mistake, copy: tuple[bytes, int] | None) -> None:
        self.log, self.clock, self.mistake = log, clock, mistake
        self.book = TimerBook() if copy is None else TimerBook.of_rows(copy[0], copy[1], {})
        if copy is not None and mistake is Mistake.FORGETS_THE_COPY_LACKS_THE_REST:
            self.book.through = len(log.events)
        self.under_way: list[DueTimer] = []
        self.answered: list[tuple[DueTimer, str]] = []
        self.keep_slots()

    def keep_slots(self) -> None:
        if self.mistake is not Mistake.KEEPS_THE_SLOTS_IT_GAVE_AWAY:
            self.book.keep_slots(lambda slot: self.log.slots is None or slot in self.log.slots)

    def follow(self, most: int) -> None:
        after = self.book.through
        for event in [event for event in self.log.own() if event.sequence > after][:most]:
            if event.type in (SET, MOVED, CANCELLED, ENDED):
                record = timer_record(event)
                if self.mistake is Mistake.OUTCOME_BY_NAME_ALONE and event.type == ENDED:
                    self.book._remove(record.key)
                self.book.take(record)
            self.book.through = event.sequence
        self.book.check_invariants()

    @property
    def caught_up(self) -> bool:
        return self.mistake is Mistake.FIRES_BEFORE_CAUGHT_UP or not any(
            event.sequence > self.book.through for event in self.log.own()
        )

    def take_due(self) -> list[DueTimer]:
        now_us = self.clock.now_us()
        if not self.caught_up or (self.clock.held is not None and self.mistake is not Mistake.TRUSTS_ANY_CLOCK):
            return []
        due = self.book.due(now_us, 3)
        self.under_way += due
        return due


class World:
    """The simulation. `accepted`: the commands that took effect, by setting: how often, and when by the true time."""

    def __init__(self, seed: int, mistake: Mistake = Mistake.NONE) -> None:
        self.random = Random(seed)
        self.mistake = mistake
        self.true_us = START_US
        self.skew_us = 0
        self.logs = [Log()]
        self.copies: dict[int, tuple[bytes, int]] = {}
        self.attempts = 0
        self.found: list[str] = []
        self.effects: dict[str, list[int]] = {}
        self.stored: dict[tuple[str, str], str] = {}
        self.ended: dict[str, str] = {}
        self.has_etcd = seed % 2 == 0
        self.leaders = [self.lead(0)]
        self.number = 0

    # ---- what happens

    def wall(self) -> int:
        return self.true_us + self.skew_us

    def lead(self, number: int) -> Leader:
        """A new leader. Without etcd it cannot know that its clock is wrong as it starts, so that is right then."""
        if not self.has_etcd and self.mistake is not Mistake.TRUSTS_ANY_CLOCK:
            self.skew_us = 0
        clock = TimerClock(self.wall, lambda: self.true_us, lambda: -self.skew_us if self.has_etcd else None)
        return Leader(self.logs[number], clock, self.mistake, self.copies.get(number))

    def step(self) -> None:
        place = self.random.randrange(len(self.leaders))
        leader = self.leaders[place]
        leader.clock.now_us()
        choice = self.random.random()
        if choice < 0.16:
            self.change(leader)
        elif choice < 0.36:
            leader.follow(self.random.randint(1, 6))
        elif choice < 0.54:
            for timer in leader.take_due():
                self.begin(leader, timer)
        elif choice < 0.74:
            self.answer(leader)
        elif choice < 0.86:
            self.record(leader)
        elif choice < 0.90:
            self.copies[place] = leader.book.copied()(), leader.book.through
        elif choice < 0.94:  # it dies; what it has sent may still arrive, before the next one sends
            if self.random.random() < 0.5:
                self.answer(leader)
            self.leaders[place] = self.lead(place)
        elif choice < 0.985:
            self.true_us += self.random.choice((1, 5, 30)) * MINUTE_US
        elif choice < 0.99:
            self.skew_us += self.random.choice((-1, 1)) * self.random.choice((MINUTE_US, 48 * 60 * MINUTE_US))
            leader.clock.now_us()
        elif choice < 0.993:
            self.skew_us = 0
            for each in self.leaders:
                each.clock.now_us()
        elif len(self.logs) == 1:
            self.split()

    def change(self, leader: Leader) -> None:
        """Sets, moves or cancels a timer, by its owner or beside it."""
        owner = f"order-{self.random.randrange(8)}"
        if leader.log.slots is not None and slot_of(owner) not in leader.log.slots:
            return
        name = self.random.choice(("a", "b"))
        at = owner if self.random.random() < 0.5 else timers_id(owner)
        type_ = self.random.choice((SET, SET, MOVED, CANCELLED))
        data: dict[str, Any] = {"timer": name}
        if type_ != CANCELLED:
            data["after_us"] = self.random.choice((0, 1, 20, 90)) * MINUTE_US
        if type_ == SET:
            data |= {"type": "Do", "aggregate_id": f"target-{self.random.randrange(4)}", "payload": {}}
        self.number += 1
        leader.log.append(at, type_, data, f"c-{self.number}", self.wall())

    def setting_of(self, leader: Leader, timer: DueTimer) -> Event:
        return leader.log.events[timer.setting - 1]

    def begin(self, leader: Leader, timer: DueTimer) -> None:
        setting = self.setting_of(leader, timer)
        if timer.due_us > self.true_us + JUMP_US:
            self.found.append(f"{id_of(setting)} was sent {(timer.due_us - self.true_us) / 6e7:.0f} minutes early")
        if setting.sequence not in pending(leader.log):
            self.found.append(f"{id_of(setting)} was sent although it is not pending")
        if self.mistake is Mistake.RECORDS_BEFORE_THE_ANSWER:
            self.append_outcome(leader, timer, "accepted")

    def answer(self, leader: Leader) -> None:
        """A command that is under way reaches its aggregate."""
        if not leader.under_way:
            return
        timer = leader.under_way.pop(self.random.randrange(len(leader.under_way)))
        setting = id_of(self.setting_of(leader, timer))
        command_id = command_id_of(setting)
        if self.mistake is Mistake.NEW_ID_EACH_TIME:
            self.attempts += 1
            command_id += f"/{self.attempts}"
        target = json.loads(leader.log.events[timer.command - 1].data)["aggregate_id"]
        if (target, command_id) in self.stored:
            how = "accepted"
        elif self.random.random() < 0.3:
            how = "rejected"
        else:
            how = "accepted"
            self.stored[target, command_id] = how
            self.effects.setdefault(setting, []).append(self.true_us)
        leader.answered.append((timer, how))

    def record(self, leader: Leader) -> None:
        if leader.answered:
            self.append_outcome(leader, *leader.answered.pop(0))

    def append_outcome(self, leader: Leader, timer: DueTimer, how: str) -> None:
        setting = self.setting_of(leader, timer)
        record = timer_record(setting)
        if leader.log.slots is not None and slot_of(record.owner) not in leader.log.slots:
            return
        data = {
            **record.reference,
            "of": setting.sequence,
            "command": timer.command,
            "due_us": timer.due_us,
            "how": how,
        }
        done = leader.log.append(timers_id(record.owner), ENDED, data, ended_command_id(id_of(setting)), self.wall())
        if done is not None:
            self.ended[id_of(setting)] = how

    def split(self) -> None:
        """The slots of half of the owners go to another log, which begins with all that there is."""
        parent = self.logs[0]
        slots = sorted({slot_of(f"order-{number}") for number in range(8)})
        gone = set(slots[::2])
        child = Log(gone, list(parent.events), dict(parent.versions), set(parent.commands))
        parent.slots = set(range(4096)) - gone
        self.logs.append(child)
        self.leaders[0].keep_slots()
        self.leaders.append(self.lead(1))

    # ---- the end

    def settle(self) -> None:
        """Lets everything come to its end, with clocks that are right."""
        self.skew_us = 0
        for place in range(len(self.leaders)):
            self.leaders[place] = self.lead(place)
        for _ in range(1_000):
            if not any(pending(log) for log in self.logs):
                break
            self.true_us += 120 * MINUTE_US
            for leader in self.leaders:
                leader.follow(10_000)
                while leader.take_due():
                    while leader.under_way:
                        self.answer(leader)
                    while leader.answered:
                        self.record(leader)
                    leader.follow(10_000)

    def check(self) -> list[str]:
        """Returns what must not be: a setting that took effect twice, that is recorded as accepted and took none, that was sent
        early or after its end, or that is still pending although everything has ended.
        """
        for setting, times in self.effects.items():
            if len(times) > 1:
                self.found.append(f"{setting} took effect {len(times)} times")
        for setting, how in self.ended.items():
            if how == "accepted" and setting not in self.effects:
                self.found.append(f"{setting} is recorded as accepted, and took no effect")
        for number, log in enumerate(self.logs):
            if left := pending(log):
                self.found.append(f"log {number}: {left} are pending at the end")
        return self.found


def pending(log: Log) -> list[int]:
    """Returns the settings that are pending, found out by a plain look through the log, without a book."""
    current: dict[tuple[str, str], int] = {}
    for event in log.own():
        if event.type not in (SET, MOVED, CANCELLED, ENDED):
            continue
        data = json.loads(event.data)
        key = event.aggregate_id.removeprefix("$timers{").rstrip("}"), data["timer"]
        if event.type == SET or (event.type == MOVED and key in current):
            current[key] = event.sequence
        elif event.type == CANCELLED or (event.type == ENDED and current.get(key) == data["of"]):
            current.pop(key, None)
    return sorted(current.values())


def run(seed: int, steps: int, mistake: Mistake = Mistake.NONE) -> list[str]:
    """Returns what was found."""
    world = World(seed, mistake)
    for _ in range(steps):
        world.step()
    world.settle()
    return world.check()
