"""A broker on a simulated disk against lists in memory: any operations in any order, with crashes anywhere.

The model holds the acknowledged messages: per queue a list of bodies. After a crash a queue holds at least those, and perhaps
some that were being sent; the offsets of a group are those last saved, or those last committed if nothing crashed since.
"""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.log.queue_bounds import QueueBounds
from eventstore.broker.retention import held_back
from eventstore.errors import Rebalanced, StorageFull
from eventstore.records.message import RawMessage
from tests.broker.stepped import Stepped, raw
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk

TOPICS = {"orders": 2, "events": 1}
QUEUES = [(topic, queue) for topic, queues in TOPICS.items() for queue in range(queues)]
MEMBERS = ("m-1", "m-2", "m-3")

messages_strategy = st.lists(
    st.tuples(st.sampled_from((0, 30, 700, 3000)), st.sampled_from((None, "k1", "k2")), st.sampled_from((None, "a", "b"))),
    min_size=1, max_size=8,
)  # fmt: skip


class BrokerAgainstModel(RuleBasedStateMachine):
    """`queues`: the (body, tag) of each message, from offset 0 on. `begins`: messages before it may have been deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk(0)
        self.queues: dict[tuple[str, int], list[tuple[bytes, str | None]]] = {key: [] for key in QUEUES}
        self.offsets: dict[tuple[str, int], int] = {}
        self.saved: dict[tuple[str, int], int] = {}
        self.generations: dict[str, int] = {}
        self.last_generation = 0
        self.sent = 0

    @initialize(seed=st.integers(0, 10_000))
    def begin(self, seed: int) -> None:
        self.disk = SimulatedDisk(seed)
        self.broker = Stepped(self.disk)
        for topic, queues in TOPICS.items():
            self.broker.topic(topic, queues)
        self._groups()

    def _groups(self) -> None:
        opened = self.broker.opened
        self._bounds = bounds = QueueBounds(opened.engine, opened.topics)
        self.groups = Groups(opened.offsets_document, opened.topics, bounds, member_timeout_s=10, clock=lambda: 0.0)
        self.groups.offsets.clamp()
        self.generations = {}

    def _made(self, drawn: list[tuple[int, str | None, str | None]]) -> list[RawMessage]:
        made = []
        for size, key, tag in drawn:
            self.sent += 1
            made.append(raw(f"{self.sent}.".encode().ljust(size, b"x"), key, tag))
        return made

    # -- messages -----------------------------------------------------------------------------------------------------

    @rule(drawn=messages_strategy, topic=st.sampled_from(sorted(TOPICS)))
    def send(self, drawn: list[tuple[int, str | None, str | None]], topic: str) -> None:
        made = self._made(drawn)
        self._acknowledge(topic, made, self.broker.send(*made, topic=topic))

    def _acknowledge(self, topic: str, made: list[RawMessage], outcomes: list[object]) -> None:
        for (body, _, tag, _, _), outcome in zip(made, outcomes, strict=True):
            assert isinstance(outcome, tuple), outcome
            queue, offset, _ = outcome
            assert offset == len(self.queues[topic, queue]), "offsets follow each other"
            self.queues[topic, queue].append((body, tag))

    @rule(drawn=messages_strategy)
    def send_on_a_full_disk(self, drawn: list[tuple[int, str | None, str | None]]) -> None:
        self.disk.capacity_bytes = self.disk.allocated_bytes
        made = self._made(drawn)
        outcomes = self.broker.engine.send(self.broker.opened.topics.get("orders"), made)
        with suppress(StorageFull):
            self.broker.persist()
        self.disk.capacity_bytes = None
        visible = self.broker.engine.visible_position
        taken = [(message, outcome) for message, outcome in zip(made, outcomes, strict=True) if outcome[2] < visible]  # type: ignore[index]
        self._acknowledge("orders", [message for message, _ in taken], [outcome for _, outcome in taken])

    @rule(key=st.sampled_from(QUEUES), share=st.floats(0, 1), tags=st.sampled_from((None, "a", "a|b", "c")))
    def pull(self, key: tuple[str, int], share: float, tags: str | None) -> None:
        begin, end = self._bounds(*key)
        start = begin + int((end - begin) * share)
        wanted = None if tags is None else set(tags.split("|"))
        expected = [body for body, tag in self.queues[key][start:] if wanted is None or tag in wanted]
        assert self.broker.bodies(key[1], start, topic=key[0], tags=tags) == expected

    # -- housekeeping -------------------------------------------------------------------------------------------------

    @rule()
    def index(self) -> None:
        self.broker.index()

    @rule()
    def zero_ahead(self) -> None:
        self.broker.engine.writer.zero_ahead.step()

    @rule(regardless=st.booleans())
    def delete_the_oldest_chunk(self, regardless: bool) -> None:
        engine, opened = self.broker.engine, self.broker.opened
        through = engine.files.first
        if not through or through + 2 > engine.files.last or through > engine.indexed:
            return
        state = engine.files.state(through + 1)
        assert state is not None
        if not regardless and held_back(through, state, opened.topics, self.groups) is not None:
            return
        engine.forget_chunks(through, state)
        moved = self.groups.offsets.clamp()
        assert regardless or not moved, "messages that a group has not consumed stay"
        for _, topic, queue, _, now in moved:
            self.offsets[topic, queue] = now
        engine.delete_chunks(through)

    # -- groups -------------------------------------------------------------------------------------------------------

    @rule(member=st.sampled_from(MEMBERS))
    def join(self, member: str) -> None:
        known = bool(self.groups.offsets.document.groups.get("billing"))
        assignment = self.groups.join("billing", member, dict.fromkeys(TOPICS))
        assert assignment.generation > self.last_generation
        self.last_generation = self.generations[member] = assignment.generation
        if not known:
            self.offsets = {key: self._bounds(*key)[0] for key in QUEUES}

    @precondition(lambda self: self.generations)
    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        if member in self.generations:
            self.groups.leave("billing", member)
            del self.generations[member]
            self.last_generation = max(self.last_generation, self.groups.get("billing").generation)

    @precondition(lambda self: self.generations)
    @rule(member=st.sampled_from(MEMBERS), share=st.floats(0, 1.2), stale=st.booleans())
    def commit(self, member: str, share: float, stale: bool) -> None:
        if member not in self.generations:
            return
        if not stale:
            news = self.groups.heartbeat("billing", member, self.generations[member])
            if news is not None:
                self.generations[member] = news.generation
        group = self.groups.get("billing")
        queues = [(topic, queue) for topic, numbers in group.members[member].queues.items() for queue in numbers]
        wanted = [(topic, queue, int(self._bounds(topic, queue)[1] * share)) for topic, queue in queues]
        if self.generations[member] != group.generation:
            try:
                self.groups.commit("billing", member, self.generations[member], wanted)
            except Rebalanced:
                return
            raise AssertionError("a commit of an old generation was taken")
        for done in self.groups.commit("billing", member, group.generation, wanted):
            key = (done.topic, done.queue)
            assert done.offset >= self.offsets[key], "an offset moved back"
            assert done.offset <= self._bounds(*key)[1], "an offset beyond the log"
            self.offsets[key] = done.offset

    @precondition(lambda self: self.offsets)
    @rule(key=st.sampled_from(QUEUES), share=st.floats(0, 1.2))
    def reset(self, key: tuple[str, int], share: float) -> None:
        begin, end = self._bounds(*key)
        (done,) = self.groups.reset("billing", [(*key, int(end * share))])
        assert done.offset == min(max(int(end * share), begin), end)
        self.offsets[key] = done.offset
        self.last_generation = self.groups.get("billing").generation
        self._save()

    @rule()
    def save(self) -> None:
        self._save()

    def _save(self) -> None:
        progress = self.groups.offsets.document
        progress.write(progress.tree())
        self.saved = dict(self.offsets)

    # -- stops and starts ---------------------------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self._save()
        self.broker = self.broker.reopen()
        self._groups()

    @rule(
        mode=st.sampled_from(CRASH_MODES), nth=st.integers(1, 40), drawn=messages_strategy,
        topic=st.sampled_from(sorted(TOPICS)), saving=st.booleans(),
    )  # fmt: skip
    def crash(
        self, mode: CrashMode, nth: int, drawn: list[tuple[int, str | None, str | None]], topic: str, saving: bool
    ) -> None:
        made = self._made(drawn)
        before, saved = dict(self.offsets), self.saved
        self.disk.crash_at(nth)
        outcomes: list[object] = []
        with suppress(SimulatedCrash):
            outcomes = list(self.broker.send(*made, topic=topic))
            self.broker.index()
            if saving:
                self._save()
        if outcomes:
            self._acknowledge(topic, made, outcomes)
        self.disk = self.disk.crash(mode)
        self.broker = Stepped(self.disk)
        self._groups()
        self._take_what_survived(topic, {message[0]: message[2] for message in made})
        found = self.groups.offsets.document.groups.get("billing", {})
        for key in QUEUES:
            offset = found.get(key[0], {}).get(key[1])
            if offset is None:
                assert key not in saved
                continue
            assert offset in (before.get(key), saved.get(key), self._bounds(*key)[0])
            self.offsets[key] = self.saved[key] = offset
        if not found:
            self.offsets, self.saved = {}, {}

    def _take_what_survived(self, topic: str, sent: dict[bytes, str | None]) -> None:
        for key in QUEUES:
            _, end = self._bounds(*key)
            known = self.queues[key]
            assert end >= len(known), "acknowledged messages were lost"
            for body in self.broker.bodies(key[1], len(known), topic=key[0]):
                assert key[0] == topic
                known.append((body, sent[body]))

    @invariant()
    def everything_is_there(self) -> None:
        if not hasattr(self, "broker"):
            return
        for key in QUEUES:
            begin, end = self._bounds(*key)
            assert end == len(self.queues[key])
            assert self.broker.bodies(key[1], begin, topic=key[0]) == [body for body, _ in self.queues[key][begin:]]
        found = self.groups.offsets.document.groups.get("billing", {})
        assert {(topic, queue): offset for topic, queues in found.items() for queue, offset in queues.items()} == self.offsets


BrokerAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBrokerAgainstModel = BrokerAgainstModel.TestCase


def test_a_queue_chunk_that_is_lost_is_made_again_though_its_first_messages_are_deleted() -> None:
    """The process dies before the name of the file is durable, then the power fails."""
    broker = BrokerAgainstModel()
    broker.begin(seed=0)
    broker.send(drawn=[(3000, None, None)], topic="events")
    broker.crash(drawn=[(3000, None, None), *[(0, None, None)] * 6], mode="kept", nth=26, saving=False, topic="events")
    broker.index()
    broker.send(drawn=[(0, None, None)] * 4, topic="events")
    broker.delete_the_oldest_chunk(regardless=False)
    broker.crash(drawn=[(0, None, None)], mode="lost", nth=1, saving=False, topic="events")
    broker.index()
    broker.everything_is_there()
    broker.teardown()


def test_a_first_batch_that_is_torn_is_cut_off_with_the_state_before_it() -> None:
    broker = BrokerAgainstModel()
    broker.begin(seed=0)
    for _ in range(4):
        broker.reopen()
    broker.crash(drawn=[(0, None, None)] * 2, mode="kept", nth=16, saving=False, topic="events")
    broker.everything_is_there()
    broker.teardown()
