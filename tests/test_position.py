"""Positions: text that is the same for the same place, and refusals that name both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eventstore as es
from eventstore.event_identity import LogPosition
from eventstore.model import VERSION_MAX
from eventstore.position import Position, Reading, after_splits, start_of, starts_of
from eventstore.records.cluster_map import ClusterMap, Shard, even_slots
from eventstore.records.splits import Split

CLUSTER = bytes(range(16))
MAP = ClusterMap(CLUSTER, 9, 2, tuple(Shard(number, bytes([number]) * 16, slots) for number, slots in enumerate(even_slots(3))))
HERE = Position(CLUSTER.hex(), 2, {0: (120, ""), 1: (0, ""), 2: (98, "9f3a0011")})
TEXT = f"p1.{CLUSTER.hex()}.2.0-120.1-0.2-98-9f3a0011"

places = st.tuples(st.integers(1, VERSION_MAX), st.just("") | st.from_regex("[0-9a-f]{8}", fullmatch=True)) | st.just((0, ""))
positions = st.builds(
    Position, st.binary(min_size=16, max_size=16).map(bytes.hex), st.integers(1, 2**63 - 1),
    st.dictionaries(st.integers(0, 4095), places, min_size=1, max_size=20),
)  # fmt: skip


@given(positions)
def test_a_position_survives_its_text(position: Position) -> None:
    assert Position.parse(str(position)) == position
    assert hash(Position.parse(str(position))) == hash(position)
    backwards = replace(position, shards=dict(reversed(position.shards.items())))
    assert str(backwards) == str(position)


def test_the_text_of_a_position_is_stable() -> None:
    assert str(HERE) == TEXT
    assert es.Position.parse(TEXT) == HERE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        TEXT + "\n",
        TEXT + ".0-1",
        TEXT.replace("p1", "p2"),
        TEXT[:-1] + "٣",
        f"p1.{CLUSTER.hex()}.2",
        TEXT + "-1",
        TEXT[:-1],
        TEXT + "0",
        TEXT.upper(),
        TEXT.replace("1-0", "1-0-9f3a0011"),
        TEXT.replace("98", str(VERSION_MAX + 1)),
    ],
)
def test_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(es.InvalidArgument):
        Position.parse(text)


def test_a_cluster_takes_its_own_positions_and_no_others() -> None:
    assert starts_of(HERE, MAP) == {0: LogPosition(120), 1: LogPosition(0), 2: LogPosition(98, "9f3a0011")}
    assert starts_of(0, MAP) == dict.fromkeys(range(3), LogPosition(0))
    assert starts_of(es.END, MAP) == {0: None, 1: None, 2: None}
    other = Position("ff" * 16, 2, HERE.shards)
    for refused, why in [
        (other, f"cluster {'ff' * 16}, but this is {CLUSTER.hex()}"),
        (Position(CLUSTER.hex(), 3, HERE.shards), "of layout 3 of the cluster, which has layout 2"),
        (Position(CLUSTER.hex(), 2, {0: (1, ""), 7: (1, "")}), r"the shards \[0, 7\], but the cluster has \[0, 1, 2\]"),
        (5, "a sequence of one shard, but this cluster has 3"),
        (-1, "after"),
        ("p1", "after"),
    ]:
        with pytest.raises(es.InvalidArgument, match=why):
            starts_of(refused, MAP)


def test_a_single_store_and_the_only_shard_of_a_cluster_take_sequences_and_their_own_positions() -> None:
    assert (start_of(7, None), start_of(es.END, None)) == (LogPosition(7), None)
    own = Position(CLUSTER.hex(), 1, {0: (7, "00000007")})
    assert start_of(own, CLUSTER) == LogPosition(7, "00000007")
    said = (
        f"place in cluster {CLUSTER.hex()}, but this is {'77' * 16}; connect to the cluster or the store that it was taken from"
    )
    with pytest.raises(es.InvalidArgument, match=said):
        start_of(own, b"w" * 16)
    with pytest.raises(es.ConnectionLost, match="not been connected yet"):
        start_of(own, None)
    one = ClusterMap(CLUSTER, 1, 1, (Shard(0, bytes(16), ((0, 4095),)),))
    assert starts_of(own, one) == {0: LogPosition(7, "00000007")}
    assert starts_of(7, one) == {0: LogPosition(7)}


EVENTS = [es.Event(("a", number, "T", b"", None, f"c-{number}", 0, number, 0)) for number in range(1, 5)]


def test_a_reader_stands_at_the_last_event_that_was_handed_out_and_not_where_a_page_ends() -> None:
    reading = Reading(LogPosition(9, "00000009"))
    assert reading.place == LogPosition(9, "00000009")
    items = reading.turn(EVENTS[:3])
    assert reading.place == LogPosition(9, "00000009")
    next(items)
    assert reading.place == LogPosition.at(EVENTS[0])
    list(items)
    for page in ([], [es.CaughtUp(99)]):
        list(reading.turn(page))
        assert reading.place == LogPosition.at(EVENTS[2])
    list(reading.turn([EVENTS[3], es.CaughtUp(4)]))
    assert reading.place == LogPosition.at(EVENTS[3])


def test_a_reader_from_the_end_stands_where_it_caught_up_until_an_event_comes() -> None:
    reading = Reading(None)
    items = reading.turn([es.CaughtUp(4)])
    assert reading.place is None
    list(items)
    assert reading.place == LogPosition(4)
    list(reading.turn(EVENTS[:1]))
    assert reading.place == LogPosition.at(EVENTS[0])


class Log:
    """A model of a shard's log: its events, each with a slot, and where it shared them with others."""

    def __init__(self, slots: set[int], events: list[int]) -> None:
        self.slots, self.events = slots, events

    def handed_out(self, after: int, through: int, count: int) -> tuple[list[int], int]:
        """Returns what a reader gets of the next events after a place, and the place after them."""
        seen = self.events[after : after + count]
        own = [each for place, each in enumerate(seen, after + 1) if place > through or each % 8 in self.slots]
        return own, after + len(seen)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_reader_that_follows_any_splits_from_anywhere_gets_each_event_once_and_in_order(data: st.DataObject) -> None:
    """Events are numbers, whose slot is that modulo 8. The reader reads by the map that it knows until it follows a newer one.
    A shard that was split since refuses it; the others serve it.
    """
    logs, splits, written = {0: Log(set(range(8)), [])}, list[Split](), 0
    known, places, read = 1, {0: LogPosition(0)}, list[int]()

    def through(shard: int, layout: int) -> int:
        return max((each.through for each in splits if shard in (each.parent, each.child) and each.layout <= layout), default=0)

    def is_elsewhere(shard: int) -> bool:
        return any(shard in (each.parent, each.child) and each.layout > known for each in splits)

    def map_now() -> ClusterMap:
        slots = even_slots(len(logs))
        shards = tuple(Shard(number, bytes([number]) * 16, slots[number]) for number in logs)
        return ClusterMap(CLUSTER, 1, len(splits) + 1, shards, tuple(splits))

    def read_some(count: int) -> None:
        for shard, place in list(places.items()):
            if is_elsewhere(shard):  # refused before any record
                continue
            found, end = logs[shard].handed_out(place.sequence, through(shard, known), count)
            read.extend(found)
            places[shard] = LogPosition(end, f"{end:08x}") if end else place

    for _ in range(data.draw(st.integers(1, 15))):
        match data.draw(st.sampled_from(["write", "read", "split", "follow", "save"])):
            case "write":
                for _ in range(data.draw(st.integers(1, 6))):
                    slot = data.draw(st.integers(0, 7))
                    owner = next(log for log in logs.values() if slot in log.slots)
                    owner.events.append(8 * written + slot)
                    written += 1
            case "read":
                read_some(data.draw(st.integers(1, 5)))
            case "split":
                parent = data.draw(st.sampled_from(sorted(logs)))
                log = logs[parent]
                if len(log.slots) > 1:
                    leaving = set(sorted(log.slots)[len(log.slots) // 2 :])
                    splits.append(Split(len(splits) + 2, parent, len(logs), len(log.events)))
                    logs[len(logs)] = Log(leaving, list(log.events))
                    log.slots = log.slots - leaving
            case "follow":
                places = after_splits(places, known, map_now())
                known = len(splits) + 1
            case "save":
                position = Position(CLUSTER.hex(), known, dict(places.items()))
                starts = starts_of(Position.parse(str(position)), map_now())
                places = {shard: start for shard, start in starts.items() if start is not None}
                known = len(splits) + 1
    places = after_splits(places, known, map_now())
    known = len(splits) + 1
    read_some(10_000)
    assert sorted(read) == sorted({event for log in logs.values() for event in log.events})
    for slot in range(8):
        assert [each for each in read if each % 8 == slot] == sorted(each for each in read if each % 8 == slot)
