"""Judges a round: what clients were told against what is stored, and the replicas against each other."""

from __future__ import annotations

import bisect
import operator
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from eventstore.position import Position, starts_of
from eventstore.records.cluster_map import ClusterMap
from tests.cluster.nemesis.linearizability import Violation, check
from tests.cluster.nemesis.records import OPENED_WITH, Joint, Progress, Records, Seen, Statement
from tests.cluster.nemesis.timeline import Timeline

_SHOWN: Final = 5
_IN_FLIGHT_S: Final = 0.05
"""An answer may be on its way when the process that sent it is killed."""


def judge_events(records: Records, stored: Sequence[Seen], timeline: Timeline) -> None:
    """`stored`: all events, read after everything. Notes what is wrong as an anomaly."""
    stored = _placed(records, stored)
    events: dict[str, list[Seen]] = defaultdict(list)
    for each in sorted(stored, key=lambda each: each.version):
        events[each.aggregate_id].append(each)
    for aggregate_id in sorted(events.keys() | records.history.keys()):
        found = events[aggregate_id]
        if [each.version for each in found] != list(range(1, len(found) + 1)):
            timeline.anomaly(f"{aggregate_id}: the versions are {[each.version for each in found]}")
        if aggregate_id.startswith("$"):
            continue
        try:
            check(records.history[aggregate_id], [each.command_id for each in found])
        except Violation as violation:
            timeline.anomaly(f"{aggregate_id}: {violation}")
    for name, seen in records.readers.items():
        _judge_reader(name, _placed(records, seen), stored, timeline)


def _placed(records: Records, seen: Iterable[Seen]) -> list[Seen]:
    """Returns the events with the shards that own them now."""
    return [each._replace(shard=records.shard_of(each.aggregate_id)) for each in seen]


def _judge_reader(name: str, seen: Sequence[Seen], stored: Sequence[Seen], timeline: Timeline) -> None:
    """A reader has seen every event of each shard that there is now, once and in order, whichever handed it out."""
    for shard, wanted in by_shard(stored).items():
        found = [each for each in seen if each.shard == shard]
        if found == wanted:
            continue
        at = next((at for at, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), None)
        if at is not None:
            timeline.anomaly(f"the {name} saw {found[at]} as event {at} of shard {shard}, which is {wanted[at]}")
        elif len(found) > len(wanted):
            said = f"as event {len(wanted)} of shard {shard}, of which there are {len(wanted)}"
            timeline.anomaly(f"the {name} saw {found[len(wanted)]} {said}")
        else:
            timeline.anomaly(f"the {name} saw {len(found)} of {len(wanted)} events of shard {shard}: the beginning of all")


def by_shard(events: Iterable[Seen]) -> dict[int, list[Seen]]:
    found: dict[int, list[Seen]] = defaultdict(list)
    for each in events:
        found[each.shard].append(each)
    return {shard: sorted(found[shard], key=lambda each: each.sequence) for shard in sorted(found)}


def judge_banks(records: Records, stored: Sequence[Seen], known: ClusterMap, timeline: Timeline) -> None:
    """As `judge_events`, about what holds over several aggregates. `known`: the map by which positions are understood."""
    by_command: dict[str, list[Seen]] = defaultdict(list)
    by_aggregate: dict[str, list[Seen]] = defaultdict(list)
    for each in sorted(_placed(records, stored), key=lambda each: each.sequence):
        by_command[each.command_id].append(each)
        by_aggregate[each.aggregate_id].append(each)

    def place_of(position: Position | None, aggregate_id: str) -> int:
        shard = known.owner_of(aggregate_id)
        place = None if position is None else starts_of(position, known, only=shard)[shard]
        return 0 if place is None else place.sequence

    wrong = [
        *_judge_joint(records.joint, by_command),
        *_judge_decisions(records.joint, by_command, place_of),
        *_judge_statements(records.statements, by_aggregate, place_of),
        *_judge_recency(records.statements),
    ]
    for each in wrong[:_SHOWN]:
        timeline.anomaly(each)


_PlaceOf: TypeAlias = "Callable[[Position | None, str], int]"


def _judge_joint(joint: Mapping[str, Joint], stored: Mapping[str, Sequence[Seen]]) -> Iterator[str]:
    """A commit is there whole and once, one event after the other, or not at all; as its teller was told."""
    for command, asked in joint.items():
        found = stored.get(command, [])
        if found and sorted(each.aggregate_id for each in found) != sorted(asked.names):
            yield f"half a commit: {command} writes {asked.names}, stored is {found}"
        elif found and found[-1].sequence - found[0].sequence != len(found) - 1:
            yield f"the events of {command} do not follow each other: {found}"
        if not found and asked.outcome is True:
            yield f"lost: {command} was acknowledged, and is not stored"
        if found and asked.outcome is False:
            yield f"{command} was refused, and is stored: {found}"


def _judge_decisions(joint: Mapping[str, Joint], stored: Mapping[str, Sequence[Seen]], place_of: _PlaceOf) -> Iterator[str]:
    """Between the place that a commit was decided at and itself there is no event that excludes it; one that was refused, and
    could have been stored, was excluded by another one.
    """
    by_tag: dict[str, list[str]] = defaultdict(list)
    for command, asked in joint.items():
        if asked.tag:
            by_tag[asked.tag].append(command)
    for tag, commands in by_tag.items():
        won = sorted((stored[command][0].sequence, command) for command in commands if stored.get(command))
        for command in commands:
            asked = joint[command]
            after = place_of(asked.after, asked.names[0])
            own = stored[command][0].sequence if stored.get(command) else None
            excluding = [each for each in won if after < each[0] and (own is None or each[0] < own)]
            if own is not None and excluding:
                yield f"two commits that exclude each other by {tag}: {excluding[-1]} and {(own, command)}, decided at {after}"
            if own is None and asked.outcome is False and not excluding:
                yield f"{command} was refused, and no event with {tag} is stored after {after}"


def _judge_statements(
    statements: Iterable[Statement], stored: Mapping[str, Sequence[Seen]], place_of: _PlaceOf
) -> Iterator[str]:
    """At each position the sum is the same, and an account has exactly the events that are stored up to there."""
    sequences = {name: [each.sequence for each in events] for name, events in stored.items()}
    for each in statements:
        if each.cents != (len(each.accounts) * OPENED_WITH if any(each.counts) else 0):
            yield f"the sum is {each.cents}: {each}"
        place = place_of(each.position, each.accounts[0])
        for account, count, last in zip(each.accounts, each.counts, each.last, strict=True):
            wanted = bisect.bisect_right(sequences.get(account, []), place)
            if count != wanted or (count and stored[account][count - 1].command_id != last):
                yield f"{account} had {count} events, the last by {last!r}; stored are {wanted} up to {place}: {each}"


def _judge_recency(statements: Iterable[Statement]) -> Iterator[str]:
    """A statement has everything that an earlier one had. Single accounts are judged by their histories as well."""
    newest = [each for each in statements if each.is_newest]
    ended = deque(sorted(newest, key=lambda each: each.ended))
    latest: dict[tuple[str, ...], Statement] = {}
    for each in sorted(newest, key=lambda each: each.began):
        while ended[0].ended < each.began:
            before = ended.popleft()
            if before.accounts not in latest or sum(before.counts) > sum(latest[before.accounts].counts):
                latest[before.accounts] = before
        known = latest.get(each.accounts)
        if known is not None and any(map(operator.lt, each.counts, known.counts)):
            yield f"a statement goes back: {each} after {known}"


def judge_messages(records: Records, stored: Iterable[str], timeline: Timeline) -> None:
    """`stored`: the bodies in the topic."""
    kept, acknowledged = set(stored), {body for body, known in records.sent.items() if known}
    for what, missing in (
        ("acknowledged messages are not in the topic", acknowledged - kept),
        ("messages of the topic were not consumed", kept - records.consumed),
        ("messages of the topic were sent by nobody", kept - records.sent.keys()),
        ("messages were delivered that the topic does not have", records.consumed - kept),
    ):
        if missing:
            timeline.anomaly(f"{len(missing)} {what}: {sorted(missing)[:_SHOWN]}")
    for wrong in (_judge_deliveries(records), _judge_progress(records.progress)):
        for each in wrong[:_SHOWN]:
            timeline.anomaly(each)


def _judge_deliveries(records: Records) -> list[str]:
    """No message of a queue is delivered for the first time before those in front of it, and a place has one message."""
    found: list[str] = []
    queues: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    for each in records.delivered:
        known = queues[each.shard, each.queue]
        if each.offset > len(known):
            found.append(f"{each} was delivered before offset {len(known)} of its queue")
        if known.setdefault(each.offset, each.body) != each.body:
            found.append(f"{each} was delivered where {known[each.offset]!r} had been")
    return found


def _judge_progress(progress: Sequence[Progress]) -> list[str]:
    """A group's generation never goes back, nor is its offset beyond a queue's end; at one leader its offset never goes back: a
    new one may know an offset of a second ago.
    """
    found: list[str] = []
    last: dict[int, Progress] = {}
    generations: dict[int, int] = defaultdict(int)
    for each in progress:
        before = last.get(each.shard)
        last[each.shard] = each
        if any(offset > end for offset, end in each.queues.values()):
            found.append(f"an offset is beyond the end of its queue: {each}")
        if 0 < each.generation < generations[each.shard]:
            found.append(f"a generation came back: {each} after {generations[each.shard]}")
        generations[each.shard] = max(each.generation, generations[each.shard])
        if before is None:
            continue
        ends = [each.queues.get(queue, (0, 0))[1] < end for queue, (_, end) in before.queues.items()]
        offsets = [each.queues.get(queue, (0, 0))[0] < offset for queue, (offset, _) in before.queues.items()]
        if any(ends) or (each.link == before.link and any(offsets)):
            found.append(f"a queue or its offset went back: {each} after {before}")
    return found


def failovers(records: Records, timeline: Timeline) -> dict[str, list[float]]:
    """Returns by kind of fault how long each shard without its leader took to acknowledge an append."""
    times = _times(records)
    found: dict[str, list[float]] = defaultdict(list)
    for fall in timeline.falls:
        own = times.get(fall.shard, [])
        at = bisect.bisect(own, fall.at + _IN_FLIGHT_S)
        if at < len(own):
            found[fall.how].append(own[at] - fall.at)
    return found


def _times(records: Records) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for at, shard in records.acknowledged:
        found[shard].append(at)
    return {shard: sorted(times) for shard, times in sorted(found.items())}


def summary(times: Sequence[float]) -> str:
    return f"{min(times):.2f} / {statistics.median(times):.2f} / {max(times):.2f} s ({len(times)})"
