"""Several sets of mailboxes on one store, under random sequences of events, against their invariants.

Every change has the history it was decided on, so the store alone shows a command that was decided on the wrong state, applied
twice or out of order. Answers are checked as they arrive (`Stepped._check`).

Hypothesis shrinks failures to the smallest example but spends most of its time on that; the plain random runs below are longer
and take a fraction of the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from eventstore_mailbox import COMMITTED, CONFLICT, DUPLICATE, FAILED, REFUSED, UNCHANGED, MailboxFull, Options
from tests.mailbox.history_store import Change, HistoryStore, Outcome
from tests.mailbox.stepped import Request, Stepped

NAMES = ["a", "b", "c", "d"]
KINDS = [
    "add",
    "add",
    "once",
    "nothing",
    "reject",
    "spoil",
    "slow_add",
    "slow_once",
    "slow_spoil",
    "slow_nothing",
    "waits_add",
    "lane_add",
    "lane_waits_once",
    "lane_slow_add",
]


class Mailboxes(RuleBasedStateMachine):
    @initialize(
        workers=st.integers(1, 3), mailboxes=st.integers(1, 2), batch=st.integers(1, 4),
        aggregates=st.integers(1, 3), reruns=st.sampled_from([1, 100]), capacity=st.sampled_from([3, 50]),
        restores=st.integers(1, 3), size=st.sampled_from([4, 1000]), turn=st.sampled_from([0.0, 0.0005, 1.0]),
        at_once=st.sampled_from([1, 32]), shared=st.booleans(),
    )  # fmt: skip
    def begin(
        self, workers: int, mailboxes: int, batch: int, aggregates: int, reruns: int, capacity: int,
        restores: int, size: int, turn: float, at_once: int, shared: bool,
    ) -> None:  # fmt: skip
        self.store = HistoryStore()
        options = Options(
            mailboxes=mailboxes, batch_changes_max=batch, batch_bytes_max=size, aggregates_max=aggregates, reruns_max=reruns,
            capacity=capacity, restores_max=restores, turn_s=turn, apply_at_once_max=at_once,
        )  # fmt: skip
        self.workers = [Stepped(self.store, options, shared) for _ in range(workers)]
        self.accepted: list[list[Request]] = [[] for _ in self.workers]
        self.plain: list[tuple[list[Change], list[list[Outcome]]]] = []
        self.order: dict[tuple[int, str], list[str]] = {}
        self.sent: dict[str, int] = {}
        self.number = 0

    @rule(number=st.integers(0, 2), name=st.sampled_from(NAMES))
    def forget(self, number: int, name: str) -> None:
        """The worker's store has to load the aggregate before the next plain append."""
        self._worker(number).unloaded.add(name)

    def _new_id(self) -> str:
        self.number += 1
        return f"{self.number}"

    def _worker(self, number: int) -> Stepped:
        return self.workers[number % len(self.workers)]

    @rule(
        number=st.integers(0, 2),
        picks=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(KINDS)), min_size=1, max_size=5),
    )
    def submit(self, number: int, picks: list[tuple[str, str]]) -> None:
        self._submit(number, [Request(name, self._new_id(), kind) for name, kind in picks])

    @rule(
        number=st.integers(0, 2),
        picks=st.lists(st.tuples(st.permutations(NAMES), st.integers(2, 3), st.sampled_from(KINDS)), min_size=1, max_size=3),
    )
    def submit_jointly(self, number: int, picks: list[tuple[list[str], int, str]]) -> None:
        """Sends commands about several aggregates."""
        self._submit(number, [Request(names[0], self._new_id(), kind, *names[1:count]) for names, count, kind in picks])

    @rule(number=st.integers(0, 2), name=st.sampled_from(NAMES), back=st.integers(0, 5), kind=st.sampled_from(KINDS))
    def repeat(self, number: int, name: str, back: int, kind: str) -> None:
        """Sends a command id that was sent before, perhaps to another worker."""
        self._submit(number, [Request(name, f"{max(self.number - back, 1)}", kind)])

    @rule(
        number=st.integers(0, 2), name=st.sampled_from(NAMES), count=st.integers(1, 4),
        kinds=st.lists(st.sampled_from(KINDS), max_size=3),
    )  # fmt: skip
    def repeat_stored(self, number: int, name: str, count: int, kinds: list[str]) -> None:
        """Sends the last commands that the store has of an aggregate again, and some new ones after them."""
        again = [Request(name, command_id) for command_id in self.store.history(name)[-count:]]
        self._submit(number, [*again, *[Request(name, self._new_id(), kind) for kind in kinds]])

    def _submit(self, number: int, requests: list[Request]) -> None:
        number %= len(self.workers)
        for request in requests:
            for name in request.names:
                self._count(number, name, request.command_id)
        refused = self.workers[number].submit(*requests)
        self.accepted[number] += [request for request in requests if request not in refused]

    def _count(self, number: int, aggregate_id: str, command_id: str) -> None:
        self.sent[f"{aggregate_id} {command_id}"] = self.sent.get(f"{aggregate_id} {command_id}", 0) + 1
        if number >= 0:
            self.order.setdefault((number, aggregate_id), []).append(command_id)

    @rule(
        number=st.integers(0, 2),
        picks=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([None, None, 0, 1, 2, 5])), min_size=1, max_size=5),
    )
    def append(self, number: int, picks: list[tuple[str, int | None]]) -> None:
        number %= len(self.workers)
        worker = self.workers[number]
        changes: list[Change] = [(name, expected, self._new_id(), None) for name, expected in picks]
        try:
            delivered = worker.append(changes)
        except MailboxFull:
            return
        for aggregate_id, expected, command_id, _ in changes:
            # one that expects a future version may match later, if the answer to its conflict was lost: not in order
            self._count(number if expected is None else -1, aggregate_id, command_id)
        self.plain.append((changes, delivered))

    @rule(name=st.sampled_from(NAMES))
    def foreign(self, name: str) -> None:
        """Another writer appends directly to the store."""
        self.store.append([(name, None, command_id := self._new_id(), None)])
        self._count(-1, name, command_id)

    @rule(number=st.integers(0, 2), fails=st.booleans(), done=st.integers(0, 3), part=st.integers(0, 3))
    def store_answers(self, number: int, fails: bool, done: int, part: int) -> None:
        worker = self._worker(number)
        if worker.pending and fails:
            worker.fail(done, part)
        elif worker.pending:
            worker.deliver()

    @rule(number=st.integers(0, 2), place=st.integers(0, 3), how=st.sampled_from(["well", "well", "badly", "never"]))
    def restore_ends(self, number: int, place: int, how: str) -> None:
        worker = self._worker(number)
        if worker.restores:
            end = {"well": worker.restore, "badly": worker.restore_fails, "never": worker.unrestorable}[how]
            end(place % len(worker.restores))

    @rule(number=st.integers(0, 2), place=st.integers(0, 3), fails=st.booleans())
    def look_up_ends(self, number: int, place: int, fails: bool) -> None:
        worker = self._worker(number)
        if worker.look_ups:
            worker.look_up(place % len(worker.look_ups), fails)

    @rule(number=st.integers(0, 2), place=st.integers(0, 3))
    def handler_ends(self, number: int, place: int) -> None:
        worker = self._worker(number)
        if worker.handlers:
            worker.end_handler(place % len(worker.handlers))

    @rule(number=st.integers(0, 2), place=st.integers(0, 3))
    def time_passes(self, number: int, place: int) -> None:
        worker = self._worker(number)
        if worker.timers:
            worker.fire(place % len(worker.timers))
        elif worker.driver.woken:
            worker.pump()

    @precondition(lambda self: self.number > 10)
    @rule(number=st.integers(0, 2), deliver=st.booleans())
    def killed(self, number: int, deliver: bool) -> None:
        """Kills and restarts a worker; its commands are answered, and sent to it again with the same ids."""
        number %= len(self.workers)
        old = self.workers[number]
        old.abandon()
        pending = list(old.pending)
        for batch in pending:
            outcomes = self.store.append(batch.changes, batch.dependents) if deliver else []
            batch.deliver(outcomes)
        for _, coroutine, _ in old.handlers.values():
            coroutine.close()
        self._check_answers(number)
        self.workers[number] = Stepped(self.store, old.machine.options, old.shared)
        again = [request for request in self.accepted[number] if request.status > UNCHANGED]
        self.accepted[number] = []
        for key in [key for key in self.order if key[0] == number]:
            del self.order[key]
        self._submit(
            number, [Request(request.aggregate_id, request.command_id, request.kind, *request.others) for request in again]
        )

    def _check_answers(self, number: int) -> None:
        self.workers[number].assert_right()
        assert all(request.answers == 1 for request in self.accepted[number])
        assert len(self.workers[number].answered) == len(self.accepted[number])

    def teardown(self) -> None:
        if not hasattr(self, "workers"):
            return
        for _ in range(1_000):
            if all(worker.quiet for worker in self.workers):
                break
            for worker in self.workers:
                worker.finish()
        for number, worker in enumerate(self.workers):
            worker.assert_empty()
            self._check_answers(number)
        self._check_plain()
        self._check_history()
        self._check_order()

    def _check_plain(self) -> None:
        for changes, delivered in self.plain:
            assert len(delivered) == 1
            for (name, _, command_id, _), outcome in zip(changes, delivered[0], strict=True):
                assert outcome[0] in (COMMITTED, DUPLICATE, CONFLICT, REFUSED)
                if outcome[0] in (COMMITTED, DUPLICATE):
                    assert isinstance(outcome[1], int)
                    assert self.store.history(name)[outcome[1] - 1] == command_id

    def _check_history(self) -> None:
        """Each command is stored once, decided on exactly the commits before it; each one answered as done is stored."""
        for name, commits in self.store.commits.items():
            ids = self.store.history(name)
            assert len(set(ids)) == len(ids)
            for place, commit in enumerate(commits):
                assert commit.basis is None or commit.basis == ids[:place]
        for requests in self.accepted:
            for request in requests:
                done = request.command_id in self.store.history(request.home)
                if all(self.sent[f"{name} {request.command_id}"] == 1 for name in request.names):
                    assert all(done == (request.command_id in self.store.history(name)) for name in request.others)
                if request.status in (COMMITTED, DUPLICATE):
                    assert done
                elif request.status in (CONFLICT, FAILED, UNCHANGED) and self.sent[f"{request.home} {request.command_id}"] == 1:
                    assert not done

    def _sent_once(self, request: Request) -> bool:
        return self.sent[f"{request.home} {request.command_id}"] == 1

    def _check_order(self) -> None:
        """Commands sent once are stored in each worker's order, for each aggregate."""
        for (_, name), sent in self.order.items():
            once = [command_id for command_id in sent if self.sent[f"{name} {command_id}"] == 1]
            history = self.store.history(name)
            places = [history.index(command_id) for command_id in once if command_id in history]
            assert places == sorted(places)


TestMailboxes = Mailboxes.TestCase
TestMailboxes.settings = settings(max_examples=60, stateful_step_count=60, deadline=None, report_multiple_bugs=False)


def _begun(dice: random.Random) -> Mailboxes:
    mailboxes = Mailboxes()
    mailboxes.begin(
        workers=dice.randint(1, 3), mailboxes=dice.randint(1, 2), batch=dice.randint(1, 4),
        aggregates=dice.randint(1, 3), reruns=dice.choice([1, 100]), capacity=dice.choice([3, 50]),
        restores=dice.randint(1, 3), size=dice.choice([4, 1000]), turn=dice.choice([0.0, 0.0005, 1.0]),
        at_once=dice.choice([1, 32]), shared=dice.random() < 0.5,
    )  # fmt: skip
    return mailboxes


STEPS: list[Callable[[Mailboxes, random.Random], None]] = [
    lambda mailboxes, dice: mailboxes.submit(
        dice.randrange(3), [(dice.choice(NAMES), dice.choice(KINDS)) for _ in range(dice.randint(1, 5))]
    ),
    lambda mailboxes, dice: mailboxes.submit_jointly(
        dice.randrange(3),
        [(dice.sample(NAMES, 4), dice.randint(2, 3), dice.choice(KINDS)) for _ in range(dice.randint(1, 3))],
    ),
    lambda mailboxes, dice: mailboxes.repeat(dice.randrange(3), dice.choice(NAMES), dice.randrange(6), dice.choice(KINDS)),
    lambda mailboxes, dice: mailboxes.repeat_stored(
        dice.randrange(3), dice.choice(NAMES), dice.randint(1, 4), [dice.choice(KINDS) for _ in range(dice.randint(0, 3))]
    ),
    lambda mailboxes, dice: mailboxes.append(
        dice.randrange(3), [(dice.choice(NAMES), dice.choice([None, None, 0, 1, 2, 5])) for _ in range(dice.randint(1, 5))]
    ),
    lambda mailboxes, dice: mailboxes.foreign(dice.choice(NAMES)),
    lambda mailboxes, dice: mailboxes.store_answers(
        dice.randrange(3), dice.random() < 0.5, dice.randrange(4), dice.randrange(4)
    ),
    lambda mailboxes, dice: mailboxes.restore_ends(
        dice.randrange(3), dice.randrange(4), dice.choice(["well", "well", "badly", "never"])
    ),
    lambda mailboxes, dice: mailboxes.look_up_ends(dice.randrange(3), dice.randrange(4), dice.random() < 0.2),
    lambda mailboxes, dice: mailboxes.handler_ends(dice.randrange(3), dice.randrange(4)),
    lambda mailboxes, dice: mailboxes.time_passes(dice.randrange(3), dice.randrange(4)),
    lambda mailboxes, dice: mailboxes.killed(dice.randrange(3), dice.random() < 0.5),
]


def run_seed(seed: int, steps: int = 120) -> None:
    """Takes random steps, finishes everything and checks the result."""
    dice = random.Random(seed)
    weights = [dice.choice([1, 1, 3, 10]) for _ in STEPS[:-1]] + [dice.choice([0, 0.3])]
    mailboxes = _begun(dice)
    try:
        for step in dice.choices(STEPS, weights, k=steps):
            step(mailboxes, dice)
        mailboxes.teardown()
    except BaseException as error:
        for worker in mailboxes.workers:
            for _, coroutine, _ in worker.handlers.values():
                coroutine.close()
        error.add_note(f"seed {seed}")
        raise


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 400), marks=pytest.mark.long)], ids=str)
def test_in_random_runs_every_command_takes_effect_once_and_nothing_is_left(seeds: range) -> None:
    for seed in seeds:
        run_seed(seed)
