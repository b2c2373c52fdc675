"""A worker whose machine is driven step by step: operations that take time wait in a list until a test ends them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from itertools import count
from typing import NamedTuple, cast

from eventstore_mailbox import (
    COMMITTED,
    CONFLICT,
    DUPLICATE,
    FAILED,
    OVERLOADED,
    REFUSED,
    STOPPED,
    UNCHANGED,
    Batch,
    ChangesFirst,
    Entry,
    Options,
    Ports,
)
from eventstore_mailbox.core.machine import Machine
from eventstore_mailbox.core.ports import AnyPorts
from eventstore_mailbox.core.state import (
    ENTRY_TRANSITIONS,
    HANDLING,
    IN_FLIGHT,
    LOOKING_UP,
    NEW,
    REFRESHED,
    STORED,
    WAITING,
    AggregateQueue,
    AnyEntry,
)
from tests.mailbox.history_store import Change, HistoryStore, JointChange, Outcome

ONE = Options(mailboxes=1)
"""Options with a single mailbox."""
LANE = "lane"
"""The lane of commands whose kind begins so, of whatever aggregate."""


class Rejected(Exception):
    """Raised by handlers."""


class History:
    """An aggregate: the ids of the commands that changed it."""

    def __init__(self, name: str, ids: Sequence[str]) -> None:
        self.name = name
        self.ids = list(ids)
        self.dirty = False


class Move(NamedTuple):
    """A transition of an entry, and the class whose method makes it."""

    before: int
    after: int
    cause: str


FINAL = (COMMITTED, DUPLICATE, CONFLICT, REFUSED, UNCHANGED, FAILED, STOPPED, OVERLOADED)
DOCUMENTED = {Move(row.before, row.after, row.caused_by.partition(".")[0]) for row in ENTRY_TRANSITIONS}
STATED_BELOW = {Move(WAITING, final, "InFlightDuplicates") for final in FINAL} | {
    *(Move(before, STOPPED, "Machine") for before in (WAITING, IN_FLIGHT, REFRESHED, STORED, NEW, *FINAL)),
    *(Move(before, OVERLOADED, "Machine") for before in (WAITING, STOPPED)),
    *(Move(before, WAITING, "Machine") for before in (STOPPED, OVERLOADED)),  # submitted again
}
"""What the docstring of `core.state` says besides the table."""
ALLOWED = DOCUMENTED | STATED_BELOW
moves: set[Move] = set()
"""Those that the entries of all tests have made."""


class Request(Entry["Request", Outcome]):
    """A command and its entry; `decide` defines its `kind`. `others`: more aggregates that it is about. `seen`: the state it
    was last decided on, None before; `saw`: that of each aggregate; `stored`: how many changes of each the store had when it
    was submitted. `home`: the name of its lane, and of the history that it changes.
    """

    __slots__ = ("_status", "answers", "home", "kind", "others", "saw", "seen", "stored")

    def __init__(self, aggregate_id: str, command_id: str, kind: str = "add", *others: str) -> None:
        super().__init__(aggregate_id, command_id, self)
        self.kind = kind
        self.others = others
        self.home = LANE if kind.startswith("lane") and not others else aggregate_id
        self.seen: tuple[str, ...] | None = None
        self.saw: dict[str, tuple[str, ...]] = {}
        self.stored: dict[str, int] = {}
        self.answers = 0

    @property
    def names(self) -> tuple[str, ...]:
        return (self.home, *self.others)

    @property  # type: ignore[override]
    def status(self) -> int:
        return self._status

    @status.setter
    def status(self, status: int) -> None:
        before = getattr(self, "_status", status)
        if before != status:
            moves.add(Move(before, status, sys._getframe(1).f_code.co_qualname.partition(".")[0]))
        self._status = status


class _Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


def decide(request: Request, history: History) -> Change | None:
    seen = request.saw[history.name] = tuple(history.ids)
    if history.name == request.home:
        request.seen = seen
    if request.kind.endswith("nothing"):
        return None
    if request.kind.endswith("reject"):
        raise Rejected(request.command_id)
    if request.kind.endswith("once") and request.command_id in history.ids:
        raise Rejected(request.command_id)
    history.ids.append(request.command_id)
    if request.kind.endswith("spoil"):
        history.dirty = True
        raise Rejected(request.command_id)
    return history.name, len(seen), request.command_id, seen


def decide_jointly(request: Request, histories: Sequence[History]) -> JointChange | None:
    """Decides as `decide` on each; one that fails has changed those before it."""
    changes: list[Change | None] = []
    try:
        for history in histories:
            changes.append(decide(request, history))  # those before one that fails are known
    except Rejected:
        for history, change in zip(histories, changes, strict=False):
            history.dirty = history.dirty or change is not None
        raise
    members = tuple(change for change in changes if change is not None)
    return JointChange(request.aggregate_id, members, request.command_id) if members else None


async def decide_slowly_jointly(request: Request, histories: Sequence[History]) -> JointChange | None:
    await _Pause()
    return decide_jointly(request, histories)


def handle_jointly(
    request: Request, histories: Sequence[History]
) -> JointChange | Coroutine[object, object, JointChange | None] | None:
    assert tuple(history.name for history in histories) == request.names
    return decide_slowly_jointly(request, histories) if "slow" in request.kind else decide_jointly(request, histories)


async def decide_slowly(request: Request, history: History) -> Change | None:
    await _Pause()
    return decide(request, history)


def handle(request: Request, history: History) -> Change | Coroutine[object, object, Change | None] | None:
    return decide_slowly(request, history) if "slow" in request.kind else decide(request, history)


class _Driver:
    """Starts nothing: records the machine's calls in lists."""

    def __init__(self, store: HistoryStore, shared: bool) -> None:
        self.store = store
        self.shared = shared
        self.unloaded: set[str] = set()
        self.restores: list[tuple[AggregateQueue, History]] = []
        self.handlers: dict[AggregateQueue, tuple[AnyEntry, Coroutine[object, object, object], bool]] = {}
        self.timers: list[Callable[[], None]] = []
        self.look_ups: list[tuple[AggregateQueue, Sequence[AnyEntry]]] = []
        self.woken = False

    def restore(self, lane: AggregateQueue) -> None:
        """Takes the history of now; later writes are not part of it. The store must have all that a stale aggregate knows."""
        ids = self.store.history(lane.aggregate_id)
        known, lane.stale = lane.stale, None
        if known is not None and self.shared:
            assert isinstance(known, History)
            assert not known.dirty
            assert tuple(known.ids) == ids[: len(known.ids)]
        self.restores.append((lane, History(lane.aggregate_id, ids)))

    def load(self, aggregate_ids: Collection[str], action: Callable[[], None]) -> None:
        def loaded() -> None:
            self.unloaded.difference_update(aggregate_ids)
            action()

        self.timers.append(loaded)

    def look_up(self, lane: AggregateQueue, entries: Sequence[AnyEntry]) -> None:
        self.look_ups.append((lane, entries))

    def run_handler(self, lane: AggregateQueue, entry: AnyEntry, coroutine: Coroutine[object, object, object]) -> None:
        assert lane not in self.handlers
        self.handlers[lane] = entry, coroutine, False

    def cancel_handler(self, lane: AggregateQueue) -> None:
        entry, coroutine, _ = self.handlers[lane]
        self.handlers[lane] = entry, coroutine, True

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        assert delay_s > 0
        self.timers.append(action)

    def wake(self) -> None:
        self.woken = True

    def answered(self) -> None:
        pass


class HandedOver(Exception):
    """The store is not the one that has these aggregates; another one is found by itself."""


class Stepped:
    """One set of mailboxes on a store that others may use too; if `shared`, they know that. `_check` checks each answer.

    `unloaded`: aggregates that the store must load before it checks a change.
    """

    def __init__(self, store: HistoryStore, options: Options, shared: bool = False) -> None:
        self.store = store
        self.shared = shared
        self.pending: deque[Batch[Change, Outcome]] = deque()
        self.driver = driver = _Driver(store, shared)
        self.restores, self.handlers, self.timers = driver.restores, driver.handlers, driver.timers
        self.look_ups = driver.look_ups
        self.answered: list[Request] = []
        self.errors: list[str] = []
        self.slow: list[str] = []
        self.rounds = self.handled = self.evicted = 0
        self.wrong: list[AssertionError] = []
        self.ticks = count()
        self.unloaded = driver.unloaded
        ports: Ports[Request, History, Change, Outcome] = Ports(
            handle=self._handle, restore=self._never, refresh=self._never if shared else None,
            persist=self._persist, answer=self._answer,
            clock=lambda: next(self.ticks) / 10_000, refusal=lambda error: (REFUSED, error, 0),
            unmodified=lambda history: not history.dirty, flush=self._flush, evicted=self._evicted,
            unloaded=lambda ids: ids & self.unloaded, load=self._load,
            on_error=lambda what, error: self.errors.append(what), on_slow=lambda entry, _: self.slow.append(entry.command_id),
            lane=lambda request: LANE if request.home == LANE else None, others=lambda request: request.others,
            handle_jointly=self._handle_jointly,  # type: ignore[arg-type]
            size=lambda change: len(change[2]), look_up=self._look_up, passes=lambda error: isinstance(error, HandedOver),
        )  # fmt: skip
        self.machine = Machine(cast("AnyPorts", ports), options, driver)

    # -- the ports ----------------------------------------------------------------------------------------------------

    def _handle(self, request: Request, history: History) -> Change | Coroutine[object, object, Change | None] | None:
        self.handled += 1
        if "waits" in request.kind and tuple(history.ids) != self.store.history(history.name)[: len(history.ids)]:
            raise ChangesFirst
        if request.kind.startswith("asks"):
            request.kind = request.kind.removeprefix("asks_")
            raise ChangesFirst
        return handle(request, history)

    def _evicted(self, aggregate_id: str, history: History) -> None:
        self.evicted += 1
        assert not history.dirty
        self.store.check_stored(aggregate_id, history.ids)

    def _handle_jointly(self, request: Request, histories: Sequence[History]) -> object:
        self.handled += 1
        for history in histories:
            assert tuple(history.ids) == self.store.history(history.name)[: len(history.ids)], "what it decides on is durable"
        return handle_jointly(request, histories)

    async def _never(self, *_: object) -> History:
        raise AssertionError("the driver restores")

    async def _look_up(self, _: object) -> list[Outcome | None]:
        raise AssertionError("the driver looks up")

    async def _load(self, _: str) -> None:
        raise AssertionError("the driver loads")

    def _persist(self, batch: Batch[Change, Outcome]) -> None:
        self.pending.append(batch)

    def _flush(self) -> None:
        self.rounds += 1

    def _answer(self, entries: Sequence[Entry[Request, Outcome]]) -> None:
        for entry in entries:
            assert isinstance(entry, Request)
            entry.answers += 1
            self.answered.append(entry)
            try:
                self._check(entry)
            except AssertionError as error:  # the machine would swallow it: a failing receiver must not disturb others
                self.wrong.append(error)

    def _check(self, request: Request) -> None:
        """No answer reveals state that is not durable. If others write, a refusal is based on all that the store had when its
        command was submitted; an in-flight duplicate has the answer of the first.
        """
        assert request.answers == 1
        refused = request.status == UNCHANGED or isinstance(request.error, Rejected)
        for name, seen in request.saw.items():
            if refused or request.status == COMMITTED:
                assert self.store.history(name)[: len(seen)] == seen
                assert not (refused and self.shared) or len(seen) >= request.stored[name]
        if request.status in (COMMITTED, DUPLICATE):
            assert request.outcome is not None
            version = request.outcome[1]
            assert isinstance(version, int)
            assert self.store.history(request.home)[version - 1] == request.command_id

    # -- steps of a test ----------------------------------------------------------------------------------------------

    def submit(self, *requests: Request) -> list[Request]:
        for request in requests:
            request.stored = {name: len(self.store.history(name)) for name in request.names}
        refused = self.machine.submit(cast("Sequence[AnyEntry]", requests))
        assert all(entry.status == OVERLOADED for entry in refused)
        self._pump()
        return cast("list[Request]", refused)

    def append(self, changes: Sequence[Change]) -> list[list[Outcome]]:
        delivered: list[list[Outcome]] = []
        self.machine.append(changes, lambda outcomes: delivered.append(cast("list[Outcome]", outcomes)), None)
        self._pump()
        return delivered

    def deliver(self) -> None:
        """The store commits the oldest batch."""
        batch = self.pending.popleft()
        batch.deliver(self.store.append(batch.changes, batch.dependents))
        self.check_invariants()

    def fail(self, done: int, part: int = 0) -> None:
        """The store is lost: it has stored the oldest `done` batches and `part` of the next, but all answers are lost."""
        batches = list(self.pending)
        self.pending.clear()
        for batch in batches[:done]:
            self.store.append(batch.changes, batch.dependents)
        for batch in batches[done : done + 1]:
            self.store.append(batch.changes[:part], batch.dependents)
        for batch in batches:
            batch.fail(ConnectionError("unreachable"))
        self.check_invariants()

    def restore(self, place: int = 0) -> None:
        lane, history = self.restores.pop(place)
        if lane.to_load:
            self.unloaded.discard(lane.aggregate_id)
        self.machine.restored(lane, history)
        self._pump()

    def look_up(self, place: int = 0, fails: bool = False) -> None:
        """The store says which commands it has, or cannot be asked."""
        lane, entries = self.look_ups.pop(place)
        history = () if fails else self.store.history(lane.aggregate_id)
        outcomes = [
            (DUPLICATE, history.index(entry.command_id) + 1, 0) if entry.command_id in history else None for entry in entries
        ]
        self.machine.looked_up(lane, entries, outcomes)
        self._pump()

    def restore_fails(self, place: int = 0) -> None:
        self.machine.restore_failed(self.restores.pop(place)[0], ConnectionError("unreachable"))
        self._pump()

    def unrestorable(self, place: int = 0) -> None:
        self.machine.unrestorable(self.restores.pop(place)[0], ValueError("unknown event"))
        self._pump()

    def end_handler(self, place: int = 0) -> None:
        lane = list(self.handlers)[place]
        entry, coroutine, cancelled = self.handlers.pop(lane)
        change, error = None, None
        try:
            if not cancelled:
                coroutine.send(None)
                coroutine.send(None)
        except StopIteration as stop:
            change = stop.value
        except Rejected as rejected:
            error = rejected
        coroutine.close()
        self.machine.handled(lane, entry, change, error)
        self._pump()

    def fire(self, place: int = 0) -> None:
        self.timers.pop(place)()
        self._pump()

    def pump(self) -> None:
        self.driver.woken = False
        self._pump()

    def abandon(self) -> None:
        self.machine.abandon()
        self.check_invariants()

    def _pump(self) -> None:
        self.check_invariants()
        self.machine.pump()
        self.check_invariants()

    def check_invariants(self) -> None:
        """Checks the machine against itself, the driver, and the table of the transitions of entries."""
        machine = self.machine
        machine.check_invariants()
        assert moves <= ALLOWED, f"an entry went, as its table does not say, {moves - ALLOWED}"
        if not machine.abandoned:
            assert machine.processor.restores.running == len(self.restores), "as many restores run as were begun"
            handling = {lane for lane in machine.lanes.by_id.values() if lane.state == HANDLING}
            assert handling == set(self.handlers), "lanes are HANDLING whose handlers run"
            asking = [lane for lane in machine.lanes.by_id.values() if lane.state == LOOKING_UP]
            assert len(asking) == len(self.look_ups), "lanes are LOOKING_UP whose commands are looked up"

    @property
    def quiet(self) -> bool:
        return not (self.pending or self.restores or self.look_ups or self.handlers or self.timers or self.driver.woken)

    def finish(self, rounds_max: int = 10_000) -> None:
        """Ends all operations successfully."""
        for _ in range(rounds_max):
            if self.quiet:
                break
            for waiting, end in (
                (self.driver.woken, self.pump), (self.timers, self.fire), (self.restores, self.restore),
                (self.look_ups, self.look_up),
                (self.handlers, self.end_handler), (self.pending, self.deliver),
            ):  # fmt: skip
                if waiting:
                    end()
        assert self.quiet

    def assert_right(self) -> None:
        """Asserts that no answer was wrong."""
        for error in self.wrong:
            raise error

    def assert_empty(self) -> None:
        """Asserts that no command has left any state."""
        machine = self.machine
        self.assert_right()
        assert machine.depth == 0
        assert not machine.duplicates.by_entry
        assert not machine.outcomes.answers
        assert not machine.outcomes._reruns
        joint = machine.processor.joint
        assert [*joint.parts, *joint.joined, *joint._refreshed, *joint._unrestorable] == []
        for lane in machine.lanes.by_id.values():
            assert lane.first is lane.last is lane.cursor is None
            assert lane.ids is None
            assert lane.aggregate is not None
            assert (lane.state, lane.in_flight, lane.fast_path_calls) == (0, 0, 0)
        for mailbox in machine.mailboxes:
            assert mailbox.max_offset == mailbox.consume_offset
            assert not mailbox.resumed
            assert mailbox.events.waiting == 0
            assert mailbox.events.writing is None


def warm(store: HistoryStore, *names: str, options: Options = ONE) -> Stepped:
    """Returns a worker with these aggregates in memory, one commit each."""
    worker = Stepped(store, options)
    worker.submit(*[Request(name, "first") for name in names])
    worker.finish()
    worker.answered.clear()
    return worker
