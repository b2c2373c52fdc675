"""Who waits for projections: a wait ends exactly when all projectors have said, after it began, that its events are there."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

import pytest

from eventstore.errors import EventStoreError, Overloaded
from eventstore.store import projection_waits
from eventstore.store.projection_waits import ProjectionWaits, Wait


@dataclass
class Waiting:
    """A wait, and the projectors that it waits for: they have said nothing sufficient since it began."""

    sequence: int
    wait: Wait | None = None
    ended: list[EventStoreError | None] = field(default_factory=list)
    satisfied: set[str] = field(default_factory=set)


class Model:
    """Projectors of one projection, and waits for it, in a random order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.waits = ProjectionWaits()
        self.waiting: list[Waiting] = []
        self.known: dict[str, int] = {}  # the number of the newest wait that each projector knows
        self.gone: set[str] = set()

    def begin(self) -> None:
        waiting = Waiting(self.random.randrange(10))
        waiting.wait = self.waits.begin("balances", waiting.sequence, waiting.ended.append)
        self.waiting.append(waiting)

    def cancel(self) -> None:
        if self.waiting:
            waiting = self.random.choice(self.waiting)
            assert waiting.wait is not None
            self.waits.cancel(waiting.wait)
            self.waiting.remove(waiting)

    def ask(self) -> None:
        name = self.random.choice("abc")
        self.gone.discard(name)

        def answer(number: int, sequence: int) -> None:
            assert sequence == max(each.sequence for each in self.waiting_now())
            self.known[name] = number

        self.waits.ask("balances", name, self.known.setdefault(name, 0), answer, lambda: name in self.gone)

    def waiting_now(self) -> list[Waiting]:
        """Those that have not ended: one that begins is told before it is in the list."""
        now = [Waiting(wait.sequence) for each in self.waits._by_name.values() for wait in each.waits.values()]
        assert len(now) >= len(self.waiting)
        return now

    def tell(self) -> None:
        if self.known:
            name = self.random.choice(list(self.known))
            number, position = self.known[name], self.random.randrange(10)
            for each in self.waiting:
                assert each.wait is not None
                enough = each.wait.number <= number and each.sequence <= position
                (each.satisfied.add if enough else each.satisfied.discard)(name)
            self.waits.tell("balances", name, number, position)
            if name not in self.gone:
                self.check()

    def leave(self) -> None:
        if self.known:
            name = self.random.choice(list(self.known))
            del self.known[name]
            for each in self.waiting:
                each.satisfied.discard(name)
            self.waits.leave("balances", name)
            self.check()

    def check(self) -> None:
        """Those that all projectors have satisfied have ended, no others."""
        for each in list(self.waiting):
            if each.ended:
                assert each.ended == [None]
                assert each.satisfied >= self.known.keys(), f"{each} has ended, and is not there for all of {self.known}"
                self.waiting.remove(each)
            else:
                assert not self.known or not each.satisfied >= self.known.keys(), f"{each} has not ended"


def run(seed: int) -> None:
    model = Model(seed)
    for _ in range(300):
        model.random.choice([model.begin, model.begin, model.ask, model.tell, model.tell, model.cancel, model.leave])()
        model.waits.check_invariants()
    for each in "abc":
        model.waits.leave("balances", each)
    for waiting in model.waiting:
        assert waiting.wait is not None
        model.waits.cancel(waiting.wait)
    assert model.waits._by_name == {}


@pytest.mark.parametrize("seed", range(30))
def test_a_wait_ends_exactly_when_all_projectors_have_said_so_since(seed: int) -> None:
    run(seed)


def test_one_that_is_gone_without_a_word_is_not_waited_for() -> None:
    waits, gone, ended, numbers = ProjectionWaits(), list[str](), list[EventStoreError | None](), list[int]()
    for name in ("a", "b"):
        waits.ask("balances", name, 0, lambda number, _: numbers.append(number), partial(gone.__contains__, name))
    waits.begin("balances", 5, ended.append)
    waits.tell("balances", "a", numbers[0], 5)
    assert ended == []
    gone.append("b")
    waits.tell("balances", "a", numbers[0], 5)
    assert ended == [None]


def test_what_was_said_to_an_earlier_process_ends_nothing() -> None:
    waits, ended, numbers = ProjectionWaits(), list[EventStoreError | None](), list[int]()
    waits.ask("balances", "a", 7, lambda number, _: numbers.append(number), lambda: False)
    waits.begin("balances", 5, ended.append)
    for number in (7, 2**62 + 1_000):
        waits.tell("balances", "a", number, 9)
    assert ended == []
    waits.tell("balances", "a", numbers[0], 9)
    assert ended == [None]


def test_projectors_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection_waits, "PROJECTORS_MAX", 2)
    waits = ProjectionWaits()
    for name in ("a", "b", "a"):
        waits.ask(f"of-{name}", name, 0, lambda *_: None, lambda: False)
    with pytest.raises(Overloaded, match="2 projectors are connected, the limit"):
        waits.ask("of-c", "c", 0, lambda *_: None, lambda: False)
    waits.check_invariants()
