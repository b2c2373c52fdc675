"""Planted mistakes: each leaves out one rule. A simulator that does not find them proves nothing."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any
from unittest import mock

from eventstore.broker.groups.offsets_document import OffsetsDocument
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.record import Framing, Walk
from eventstore.errors import EventStoreError
from eventstore.event_identity import LogPosition as ReaderPlace
from eventstore.records.cluster_map import ALL_SLOTS, SlotRange
from eventstore.server.requests.owned_slots import OwnedSlots
from eventstore.store.memory.unsorted_tail import TailFile
from eventstore.store.read.conditions import Conditions
from eventstore_cluster.nodes.rebuilding import choice
from eventstore_cluster.nodes.splitting import asking
from eventstore_cluster.registry.kept_keys import KeptShard
from eventstore_cluster.registry.replica_keys import ReplicaKey
from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replica import leading
from eventstore_cluster.replica.actions import Action, CutTo, Transact
from eventstore_cluster.replica.epochs import LastEpoch, LogTail
from eventstore_cluster.replica.following import Following
from eventstore_cluster.replica.frames import Fetch, FetchAhead, Frame, FromSession, Joined
from eventstore_cluster.replica.leading import FollowerSession, Leading, Sessions, Splitting, next_state
from eventstore_cluster.replica.places import LogEnd, LogEnds
from eventstore_cluster.replica.registrar import Registrar
from eventstore_cluster.replica.registry_state import Known, Seat, Seen, ShardState, Swap
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replication import follower_sorting
from eventstore_cluster.replication.logs import cutting
from eventstore_cluster.replication.logs.follower_log import FollowerLog
from eventstore_cluster.replication.logs.pieces import Piece
from tests.cluster.simulation import readers
from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.clone import Clone
from tests.cluster.simulation.decisions import LogMemory
from tests.cluster.simulation.disk import IN_A_CHUNK, KINDS, Disk, Document, Record
from tests.cluster.simulation.generations import OFFSETS
from tests.cluster.simulation.history import world
from tests.cluster.simulation.moves import Moves
from tests.cluster.simulation.process import Process
from tests.cluster.simulation.world import Machine, World


@dataclass(frozen=True)
class Mistake:
    """`seeds`: the simulator must find it within this many, from `first` on, which saves long searches: it was chosen near a
    seed that finds it, and one from 0 finds it too, later. `python -m tests.cluster.simulate --mistakes` says where each is
    found; after a change of the histories that is elsewhere. `registry`: in histories in which it is lost; `loss`: in those in
    which a person accepts loss; `logs`: in those that write real logs; `splits`: in those with splits; otherwise in those of
    every run of the tests.
    """

    rule: str
    what: str
    owner: type | ModuleType
    method: str
    wrong: Any
    seeds: int = 400
    first: int = 0
    registry: bool = False
    loss: bool = False
    logs: bool = False
    splits: bool = False

    def world(self, seed: int) -> World:
        return world(seed, loses_registry=self.registry, accepts_loss=self.loss, real_logs=self.logs, splits=self.splits)

    def planted(self) -> Any:
        return mock.patch.object(self.owner, self.method, self.wrong)

    def found_at(self) -> int | None:
        """Returns the first of its seeds whose history breaks; None: none does."""
        return next(filter(self._breaks, range(self.first, self.first + self.seeds)), None)

    def _breaks(self, seed: int) -> bool:
        with self.planted():
            try:
                self.world(seed).run()
            except (Broken, EventStoreError, AssertionError, ValueError):
                return True
        return False


def _counts_what_is_seen(registrar: Registrar) -> frozenset[Seat]:
    return registrar.state.in_sync


def _read_settles(registrar: Registrar, swap: Swap, seen: Seen) -> bool:
    return seen.revision >= swap.revision


_answered = Registrar.answered


def _lost_is_refused(registrar: Registrar, number: int, applied: int | None) -> None:
    _answered(registrar, number, applied or 0)


_still = Replica._decide


def _resumes(replica: Replica, now: float) -> list[Action]:
    seen = replica.registrar.seen
    if seen is not None and seen.leader is not None and seen.leader.member.node == replica.me.member.node:
        replica.registrar.seen = replace(seen, leader=replica.me)
    return _still(replica, now)


def _takes_back(process: Process) -> None:
    disk = process.machine.disk
    disk.cut(disk.synced_ends)
    leading = process.replica.leading
    assert leading is not None
    leading.written = (*disk.ends, process.document_end)


def _own_end(tail: LogTail, epoch: int) -> LastEpoch:
    return LastEpoch(epoch, tail.end)


def _any_session(sessions: Sessions, number: int, connection: int) -> FollowerSession | None:
    """Counts a Fetch of an earlier connection for the node's latest session."""
    known: dict[int, str] = sessions.__dict__.setdefault("known", {})
    for session in sessions:
        known[session.number] = session.member.node
    return next((session for session in sessions if session.member.node == known.get(number)), None)


def _drops_all(leading: Leading) -> bool:
    return len(leading._registrar.state.in_sync) > 1


def _adds_at_once(leading: Leading, session: FollowerSession) -> list[Action]:
    state = leading._registrar.state
    if leading._registrar.unanswered is not None or session.member in state.in_sync or session.acked is None:
        return []
    return leading._propose(frozenset(each for each in state.in_sync if each.node != session.member.node) | {session.member})


def _wiped_under_its_name(disk: Disk) -> None:
    disk.records = tuple([] for _ in range(KINDS))
    disk.synced = [0] * KINDS
    disk.documents = {}


def _reads_before_open(replica: Replica, now: float) -> bool:
    return replica.leading is not None and not replica.ended and now < replica._lease_until


def _reads_without_lease(replica: Replica, now: float) -> bool:
    return replica.leading is not None and replica.leading.committed is not None and not replica.ended


def _goes_back(following: Following, connection: int, frame: Frame, now: float) -> list[Action]:
    """Listens to a leader of an older epoch again, whose answer to a join comes late."""
    if not isinstance(frame, Joined) or frame.epoch >= following._epoch or following.busy:
        return _received(following, connection, frame, now)
    following._connection, following._session = connection, None
    ends = tuple(log.common_end(other) for log, other in zip(following.logs, frame.logs, strict=True))
    following.busy = ends != following.ends
    return [CutTo(ends)] if following.busy else []


_received = Following.received


def _reads_while_yielding(replica: Replica, now: float) -> bool:
    return _reads_without_lease(replica, now) and now < replica._lease_until


def _hands_over_unheard(leading: Leading, now: float) -> list[Action]:
    """Is content with a Fetch of a moment before the successor was named."""
    for session in leading.sessions:
        session.follows = now
    return _hand_over(leading, now)


_hand_over = Leading._hand_over


def _any_fetch_follows(session: FollowerSession, frame: Fetch | FetchAhead, now: float) -> None:
    """Is content with a Fetch that was on its way when the successor was named."""
    session.held, session.held_since, session.heard_at, session.follows = frame, now, now, now


def _anyone_competes(replica: Replica, now: float) -> list[Action]:
    """Elects a replica that is not in the set."""
    seen = replica.registrar.seen
    if seen is None or seen.leader is not None or replica.registrar.unanswered is not None or now >= replica._lease_until:
        return []
    elected = replace(seen.state, epoch=seen.state.epoch + 1, in_sync=seen.state.in_sync | {replica.me.member})
    return [Transact(replica.registrar.propose(elected, 0, leads=replica.me))]


_heard = Leading.heard


def _counts_what_is_asked_for(leading: Leading, connection: int, frame: FromSession, now: float) -> list[Action]:
    """Takes what a follower asks for ahead for durable there."""
    if isinstance(frame, FetchAhead):
        frame = Fetch(frame.session, frame.epoch, frame.ends, frame.last_crcs)
    return _heard(leading, connection, frame, now)


def _commits_own_sync(leading: Leading, member: Seat) -> LogEnds:
    return leading.synced


_durable_at = Leading._durable_at


def _documents_are_not_waited_for(leading: Leading, member: Seat) -> LogEnds:
    return (*_durable_at(leading, member)[:KINDS], leading.synced[KINDS])


def _leaves_at_once(state: ShardState, leader: Seat, level: Collection[Seat]) -> ShardState | None:
    """Takes the others out before all that are wanted are in the set."""
    if state.wanted is None or not set(state.wanted).intersection(state.replicas):
        return next_state(state, leader, level)
    in_sync = frozenset(member for member in state.in_sync if member.node in state.wanted)
    return replace(state, replicas=state.wanted, in_sync=in_sync or state.in_sync, wanted=None, before=None)


def _what_was_seen(moves: Moves, machine: Machine) -> bool:
    return True


def _does_not_count(document: OffsetsDocument) -> None:
    document.write(document.tree())


_documents_after = Disk.documents_after


def _keeps_starts_to_itself(disk: Disk, version: LogEnd) -> dict[str, Document]:
    return {name: document for name, document in _documents_after(disk, version).items() if name != OFFSETS}


def _any_place(scan: Any, place: ReaderPlace) -> None:
    return None


_all_there_should_be = property(lambda replica: len(replica.registrar.state.replicas))


def _takes_any(replica: Replica, now: float) -> bool:
    return True


def _nothing(replica: Replica, seen: Seen) -> None:
    return None


def _never(known: Known, state: ShardState, revision: int) -> bool:
    return False


_choose = choice.choose
Copies = Mapping[str, KeptShard]


def _without_risks(
    shard: int, copies: Mapping[str, KeptShard], running: Mapping[str, ReplicaKey], generation: int
) -> choice.Choice:
    return replace(_choose(shard, copies, running, generation), risks=())


def _longest(shard: int, copies: Copies, running: Mapping[str, ReplicaKey], generation: int) -> choice.Choice:
    found = _choose(shard, copies, running, generation)
    strangers = {node: replace(key, led=False) for node, key in running.items()}
    return replace(_choose(shard, copies, strangers, generation), risks=found.risks)


def _may_always_sort(committed: LogEnds, number: int) -> bool:
    return True


def _counts_all(framing: Framing, data: bytes | memoryview, base: int, found: Walk) -> int:
    return len(found.offsets)


def _all_at_once(log: FollowerLog, piece: Piece, found: Walk) -> Iterator[tuple[int, int]]:
    yield 0, len(found.offsets)


def _cuts_without_a_note(folder: ChunkFolder, end: LogEnd) -> None:
    cutting._finish(folder, end, folder.read_header(end[0]).reopened().encode() if end[0] else b"")


def _held_anyway(slots: OwnedSlots, given: Iterable[SlotRange]) -> None:
    """Takes appends of what was given away."""


def _gives_before_committed(splitting: Splitting, committed: LogEnds | None, held_at: float, now: float) -> list[Action]:
    return _give(splitting, ((1 << 20, 0), *(committed or ())[1:]), held_at, now)


_give = Splitting._give


def _takes_slots_again(splitting: Splitting, committed: LogEnds | None, held_at: float, now: float) -> list[Action]:
    """Begins anew when the split was called off that it holds slots back for."""
    state = splitting._registrar.state
    if state.split == splitting._held_for or state.splits > splitting._splits_before:
        return _give(splitting, committed, held_at, now)
    splitting._held_at = splitting._last_file = None
    splitting._files.reset()
    return []


def _gives_to_later(splitting: Splitting, committed: LogEnds | None, held_at: float, now: float) -> list[Action]:
    """Gives slots to whichever shards are to get some now, though others were held back."""
    splitting._held_for = splitting._registrar.state.split or splitting._held_for
    return _give(splitting, committed, held_at, now)


def _all_clones(splitting: Splitting, shard: int) -> frozenset[Seat]:
    """Counts clones whose parents are not in sync."""
    seen = splitting._registrar.seen
    assert seen is not None
    return frozenset(each.member for each in seen.clones if each.shard == shard)


def _what_it_saw_first(process: Process) -> tuple[SlotRange, ...]:
    return ALL_SLOTS if process.world.parent is None else process.world.registry.key.lineage.birth.slots  # type: ignore[union-attr]


_written = asking._written


async def _whatever_changed(registry: Any, compared: dict[str, int], changes: Any, shard: int) -> None:
    """Calls a split off though its slots were given away meanwhile."""
    await _written(registry, {}, changes, shard)


def _without_the_last_file(clone: Clone, key: ShardKey) -> bool:
    """Takes the sorted files only."""
    if not _takes_over(clone, key):
        return False
    clone.machine.disk.link(clone.machine.parent_disk, max(clone.machine.disk.linked, 1) * IN_A_CHUNK)
    return True


_takes_over = Clone.takes_over


def _forgets(memory: LogMemory, records: Sequence[Record]) -> None:
    """Knows the tags of what it appends itself alone."""
    facts, memory._facts = memory._facts, {}
    _recovered(memory, records)
    memory._facts = facts


_recovered = LogMemory.recover


def _one_too_low(file: TailFile, tags: Sequence[str], first: int) -> list[array[int]] | None:
    """Takes the last commit of a tag for one that came before it."""
    found = [known for tag in tags if (known := file.tags.get(tag)) is not None and known[-1] > first]
    return sorted(found, key=len) if len(found) == len(tags) else None


def _of_any_history(conditions: Conditions, place: ReaderPlace) -> None:
    """Goes by the sequence of a place alone."""


MISTAKES = (
    Mistake("R1", "a member that is being added does not count before the answer", Registrar, "counting", _counts_what_is_seen),
    Mistake("R1", "a member is added before it has what is committed", Leading, "_maybe_add", _adds_at_once),
    Mistake("R2", "a read that shows the old state settles a transaction", Registrar, "_settled", _read_settles),
    Mistake("R2", "a lost answer is taken for a refusal", Registrar, "answered", _lost_is_refused, first=8),
    Mistake("R3", "a new run resumes the leadership of its node", Replica, "_decide", _resumes),
    Mistake("R3", "a leader with a full disk takes back what was not synced", Process, "disk_full", _takes_back, first=308),
    Mistake("R4", "the leader answers its own end for an epoch it does not have", LogTail, "at_most", _own_end),
    Mistake("R4", "a Fetch of an earlier connection counts", Sessions, "find", _any_session, first=185),
    Mistake("R5", "the set shrinks below its least size", Leading, "_may_drop", _drops_all),
    Mistake(
        "R6",
        "a file is sorted before the next one is committed",
        follower_sorting,
        "may_sort",
        _may_always_sort,
        60,
        54,
        logs=True,
    ),
    Mistake("R7", "a cut is not noted before it begins", cutting, "cut", _cuts_without_a_note, 150, 82, logs=True),
    Mistake("R8", "a follower syncs several batches at once", FollowerLog, "_batches", _all_at_once, 400, 116, logs=True),
    Mistake("G2", "a log ends anywhere within a joint commit", Framing, "whole", _counts_all, 100, logs=True),
    Mistake("R9", "a wiped folder keeps its place in the set", Disk, "wipe", _wiped_under_its_name),
    Mistake("R10", "a leader reads before its epoch's record is committed", Replica, "may_read", _reads_before_open),
    Mistake("R11", "a leader reads without looking at its lease", Replica, "may_read", _reads_without_lease, first=30),
    Mistake("R11", "a leader reads while it hands over", Replica, "may_read", _reads_while_yielding, first=106),
    Mistake("R11", "a follower goes back to a leader of an older epoch", Following, "received", _goes_back, first=314),
    Mistake(
        "R12",
        "a replica goes on with a registry that was restored",
        Replica,
        "_later_than",
        _nothing,
        100,
        registry=True,
    ),
    Mistake("R12", "a node forgets what it has heard of the registry", Known, "is_later_than", _never, 200, 109, registry=True),
    Mistake("R13", "a reader continues by its sequence alone", readers, "check_place", _any_place, 50, loss=True),
    Mistake(
        "R14", "a leader answers for documents that others do not have", Leading, "_durable_at", _documents_are_not_waited_for
    ),
    Mistake("moving", "replicas leave before those that are wanted are in sync", leading, "next_state", _leaves_at_once),
    Mistake(
        "moving", "a folder is put away though the registry names it again", Moves, "may_put_away", _what_was_seen, first=690
    ),
    Mistake("R15", "a leader does not count its start", OffsetsDocument, "begin", _does_not_count),
    Mistake("R15", "the number of starts is not replicated", Disk, "documents_after", _keeps_starts_to_itself),
    Mistake(
        "rebuild", "the longest log is chosen, not the last leader's", choice, "choose", _longest, first=707, registry=True
    ),
    Mistake("rebuild", "replicas that are not seen are not waited for", choice, "choose", _without_risks, 50, registry=True),
    Mistake("receipts", "a receipt counts the replicas that there should be", Replica, "durability", _all_there_should_be),
    Mistake(
        "receipts", "an append for all is taken without looking who keeps up", Replica, "takes_appends_for_all", _takes_any
    ),
    Mistake("handing over", "a replica that hangs is handed leadership", Leading, "_hand_over", _hands_over_unheard, first=6),
    Mistake("handing over", "a Fetch that was on its way counts", FollowerSession, "asked", _any_fetch_follows, first=512),
    Mistake("election", "a replica outside the set is elected", Replica, "_compete", _anyone_competes),
    Mistake("split", "slots that are to be given away are not held back", OwnedSlots, "give_up", _held_anyway, 60, splits=True),
    Mistake(
        "split", "a new shard begins with what is not committed", Splitting, "_give", _gives_before_committed, 60, splits=True
    ),
    Mistake("split", "a leader goes on after a split was called off", Splitting, "_give", _takes_slots_again, 60, splits=True),
    Mistake(
        "split", "a leader gives slots to the shards of a later split", Splitting, "_give", _gives_to_later, 60, 86, splits=True
    ),
    Mistake("split", "clones count whose parent is not in sync", Splitting, "_members", _all_clones, 60, 20, splits=True),
    Mistake("split", "a leader owns what its shard owned before", Process, "own_slots", _what_it_saw_first, 60, splits=True),
    Mistake(
        "split", "it is called off after the slots were given away", asking, "_written", _whatever_changed, 200, 11, splits=True
    ),
    Mistake("split", "a clone ends with the last sorted file", Clone, "takes_over", _without_the_last_file, 60, splits=True),
    Mistake("T1", "a new leader does not know the tags of the tail", LogMemory, "recover", _forgets, 60),
    Mistake("T1", "the remembered place of a tag is too low", TailFile, "_of", _one_too_low, 60),
    Mistake(
        "T3", "a condition goes by the sequence of its place", Conditions, "_check_identity", _of_any_history, 60, loss=True
    ),
    Mistake("acknowledged", "what is asked for ahead counts as durable", Leading, "heard", _counts_what_is_asked_for),
    Mistake("acknowledged", "the leader counts its own sync for everyone", Leading, "_durable_at", _commits_own_sync),
)
