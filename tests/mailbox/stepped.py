"""A worker whose machine is driven by hand: whatever takes time waits in a list until a test has it end, well or badly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from itertools import count
from typing import cast

from eventstore_mailbox import OVERLOADED, REFUSED, UNCHANGED, Batch, Entry, Options, Ports, Publication
from eventstore_mailbox.entry import COMMITTED, DUPLICATE, AnyEntry
from eventstore_mailbox.lane import Lane
from eventstore_mailbox.machine import Machine
from eventstore_mailbox.ports import AnyPorts
from eventstore_mailbox.publisher import Publications
from tests.mailbox.history_store import Change, HistoryStore, Outcome


class Rejected(Exception):
    """What a handler raises."""


class History:
    """An aggregate: the ids of the commands that changed it."""

    def __init__(self, name: str, ids: Sequence[str]) -> None:
        self.name = name
        self.ids = list(ids)
        self.dirty = False


class Request(Entry["Request", Outcome]):
    """A command, its own entry; what its `kind` means, `decide` says. `seen`: the state it was last decided on, None before;
    `stored`: how many changes of its aggregate the store had when it was submitted.
    """

    __slots__ = ("answers", "kind", "seen", "stored")

    def __init__(self, aggregate_id: str, command_id: str, kind: str = "add") -> None:
        super().__init__(aggregate_id, command_id, self)
        self.kind = kind
        self.seen: tuple[str, ...] | None = None
        self.answers = self.stored = 0


class _Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


def decide(request: Request, history: History) -> Change | None:
    seen = request.seen = tuple(history.ids)
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
    return request.aggregate_id, len(seen), request.command_id, seen


async def decide_slowly(request: Request, history: History) -> Change | None:
    await _Pause()
    return decide(request, history)


def handle(request: Request, history: History) -> Change | Coroutine[object, object, Change | None] | None:
    return decide_slowly(request, history) if request.kind.startswith("slow") else decide(request, history)


class _Driver:
    """Begins nothing: what the machine asks for waits in its lists."""

    def __init__(self, store: HistoryStore, shared: bool) -> None:
        self.store = store
        self.shared = shared
        self.restores: list[tuple[Lane, History]] = []
        self.handlers: dict[Lane, tuple[AnyEntry, Coroutine[object, object, object], bool]] = {}
        self.publishing: list[Publications] = []
        self.timers: list[Callable[[], None]] = []
        self.woken = False

    def restore(self, lane: Lane) -> None:
        """What is written from now on, the restored aggregate does not know of. One that is in doubt is brought up to the
        store, which must have everything that it knows.
        """
        ids = self.store.history(lane.aggregate_id)
        known, lane.doubted = lane.doubted, None
        if known is not None and self.shared:
            assert isinstance(known, History)
            assert not known.dirty
            assert tuple(known.ids) == ids[: len(known.ids)]
        self.restores.append((lane, History(lane.aggregate_id, ids)))

    def handle(self, lane: Lane, entry: AnyEntry, coroutine: Coroutine[object, object, object]) -> None:
        assert lane not in self.handlers
        self.handlers[lane] = entry, coroutine, False

    def cancel(self, lane: Lane) -> None:
        entry, coroutine, _ = self.handlers[lane]
        self.handlers[lane] = entry, coroutine, True

    def publish(self, publications: Publications) -> None:
        self.publishing.append(publications)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        assert delay_s > 0
        self.timers.append(action)

    def wake(self) -> None:
        self.woken = True

    def left(self) -> None:
        pass


class Stepped:
    """One set of mailboxes on a store that others may use too; `shared`: and they know that. `check` is what must hold of every
    answer.
    """

    def __init__(self, store: HistoryStore, options: Options, publishes: bool = False, shared: bool = False) -> None:
        self.store = store
        self.shared = shared
        self.pending: deque[Batch[Change, Outcome]] = deque()
        self.driver = driver = _Driver(store, shared)
        self.restores, self.handlers, self.publishing, self.timers = (
            driver.restores,
            driver.handlers,
            driver.publishing,
            driver.timers,
        )
        self.answered: list[Request] = []
        self.published: dict[str, list[int]] = {}
        self.errors: list[str] = []
        self.slow: list[str] = []
        self.rounds = self.handled = 0
        self.wrong: list[AssertionError] = []
        self.ticks = count()
        ports: Ports[Request, History, Change, Outcome] = Ports(
            handle=self._handle, restore=self._never, refresh=self._never if shared else None,
            persist=self._persist, answer=self._answer,
            clock=lambda: next(self.ticks) / 10_000, refusal=lambda error: (REFUSED, error, 0),
            untouched=lambda history: not history.dirty, publish=self._publish if publishes else None, flush=self._flush,
            on_error=lambda what, error: self.errors.append(what), on_slow=lambda entry, _: self.slow.append(entry.command_id),
            size=lambda change: len(change[2]),
        )  # fmt: skip
        self.machine = Machine(cast("AnyPorts", ports), options, driver)

    # -- the ports ----------------------------------------------------------------------------------------------------

    def _handle(self, request: Request, history: History) -> Change | Coroutine[object, object, Change | None] | None:
        self.handled += 1
        return handle(request, history)

    async def _never(self, *_: object) -> History:
        raise AssertionError("the driver restores")

    async def _publish(self, publications: Sequence[Publication[Change, Outcome]]) -> None:
        raise AssertionError("the driver publishes")

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
            except AssertionError as error:  # the machine takes care that a failing receiver harms nobody
                self.wrong.append(error)

    def _check(self, request: Request) -> None:
        """No answer tells of anything that is not durable; what is answered has been published. Where others write, a refusal
        knows of all that the store had when its command came; but one that came again has the answer of the first.
        """
        assert request.answers == 1
        history, seen = self.store.history(request.aggregate_id), request.seen
        refused = request.status == UNCHANGED or isinstance(request.error, Rejected)
        if seen is not None and (refused or request.status == COMMITTED):
            assert history[: len(seen)] == seen
            assert not (refused and self.shared) or len(seen) >= request.stored
        if request.status in (COMMITTED, DUPLICATE):
            assert request.outcome is not None
            version = request.outcome[1]
            assert isinstance(version, int)
            assert history[version - 1] == request.command_id
            if self.machine.publisher is not None:
                assert version in self.published[request.aggregate_id]

    # -- what a test does ---------------------------------------------------------------------------------------------

    def submit(self, *requests: Request) -> list[Request]:
        for request in requests:
            request.stored = len(self.store.history(request.aggregate_id))
        refused = self.machine.submit(cast("Sequence[AnyEntry]", requests))
        assert all(entry.status == OVERLOADED for entry in refused)
        self.machine.pump()
        return cast("list[Request]", refused)

    def append(self, changes: Sequence[Change]) -> list[list[Outcome]]:
        told: list[list[Outcome]] = []
        self.machine.append(changes, lambda outcomes: told.append(cast("list[Outcome]", outcomes)), None)
        self.machine.pump()
        return told

    def deliver(self) -> None:
        """The store does the oldest batch."""
        batch = self.pending.popleft()
        batch.deliver(self.store.append(batch.changes, batch.followers))

    def fail(self, done: int, part: int = 0) -> None:
        """The store cannot be reached: it did the oldest few batches and `part` of the next one, and nobody hears of any."""
        batches = list(self.pending)
        self.pending.clear()
        for batch in batches[:done]:
            self.store.append(batch.changes, batch.followers)
        for batch in batches[done : done + 1]:
            self.store.append(batch.changes[:part], batch.followers)
        for batch in batches:
            batch.fail(ConnectionError("unreachable"))

    def restore(self, place: int = 0) -> None:
        self.machine.restored(*self.restores.pop(place))
        self.machine.pump()

    def restore_fails(self, place: int = 0) -> None:
        self.machine.restore_failed(self.restores.pop(place)[0], ConnectionError("unreachable"))
        self.machine.pump()

    def unrestorable(self, place: int = 0) -> None:
        self.machine.unrestorable(self.restores.pop(place)[0], ValueError("unknown event"))
        self.machine.pump()

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
        self.machine.pump()

    def publish_ends(self, place: int = 0, fails: bool = False, done: int = 0) -> None:
        publications = self.publishing.pop(place)
        values = cast("list[Publication[Change, Outcome]]", publications.values())
        for aggregate_id, _, outcome in values[:done] if fails else values:
            assert isinstance(outcome[1], int)
            self.published.setdefault(aggregate_id, []).append(outcome[1])
        if fails:
            self.machine.publish_failed(publications, ConnectionError("unreachable"))
        else:
            self.machine.published(publications)
        self.machine.pump()

    def fire(self, place: int = 0) -> None:
        self.timers.pop(place)()
        self.machine.pump()

    def pump(self) -> None:
        self.driver.woken = False
        self.machine.pump()

    @property
    def quiet(self) -> bool:
        return not (self.pending or self.restores or self.handlers or self.publishing or self.timers or self.driver.woken)

    def finish(self, rounds_max: int = 10_000) -> None:
        """Everything ends well from now on."""
        for _ in range(rounds_max):
            if self.quiet:
                break
            for waiting, end in (
                (self.driver.woken, self.pump), (self.timers, self.fire), (self.restores, self.restore),
                (self.handlers, self.end_handler), (self.publishing, self.publish_ends), (self.pending, self.deliver),
            ):  # fmt: skip
                if waiting:
                    end()
        assert self.quiet

    def assert_right(self) -> None:
        """No answer was wrong."""
        for error in self.wrong:
            raise error

    def assert_empty(self) -> None:
        """Nothing is left of any command anywhere."""
        machine = self.machine
        self.assert_right()
        assert machine.depth == 0
        assert not machine.repeats.by_entry
        assert not machine.settlement.answers
        assert not machine.settlement._reruns
        for lane in machine.lanes.by_id.values():
            assert lane.first is lane.last is lane.cursor is None
            assert lane.ids is None
            assert lane.backlog is None
            assert lane.aggregate is not None
            assert (lane.hold, lane.flying, lane.passing) == (0, 0, 0)
        for mailbox in machine.mailboxes:
            assert mailbox.max_offset == mailbox.consume_offset
            assert not mailbox.resumed
            assert mailbox.events.waiting == 0
            assert mailbox.events.writing is None
