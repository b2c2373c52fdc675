"""Judges a round: what clients were told against what is stored, and the replicas against each other."""

from __future__ import annotations

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from tests.cluster.nemesis.linearizability import Violation, check
from tests.cluster.nemesis.records import Progress, Records, Seen
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
