"""The checkpoint of a new shard begins where its parent stands, and whoever still reads the parent as before is fenced."""

from __future__ import annotations

from typing import ClassVar

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.projections.targets.base import ParkedKey, TableCheckpoint
from eventstore.following.checkpoint import Origin
from tests.domain.projections.conftest import Place


class Counts(d.Projection[int]):
    name = "counts"
    columns: ClassVar = {"events": int}
    on_failure = "park"

    def apply(self, state: int | None, event: es.Event) -> int:
        return (state or 0) + 1

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"events": state}


def test_a_projector_that_still_reads_the_parent_as_it_was_is_fenced(place: Place) -> None:
    target = place.target()
    old = target.of_shard(0)
    assert old.open(Counts(), store="s-0") == TableCheckpoint(0)
    parked = [ParkedKey("b", 20, "early"), ParkedKey("c", 35, "late")]
    old.write([("a", 1, "1")], [], 0, TableCheckpoint(40, "x" * 32), parked)
    new = place.target()
    parent = new.of_shard(0)
    assert parent.open(Counts(), store="s-0") == TableCheckpoint(40, "x" * 32)
    early = parent.of_shard(1, Origin(0, 50))
    assert early.open(Counts(), store="s-1") == TableCheckpoint(40, "x" * 32)
    late = early.of_shard(2, Origin(0, 30))
    assert late.open(Counts(), store="s-2") == TableCheckpoint(30)
    assert early.parked(None) == {each.key: each for each in parked}
    assert late.parked(None) == {"b": parked[0]}
    with pytest.raises(es.Fenced):
        old.write([("a", 2, "2")], [], 40, TableCheckpoint(41))
    parent.write([("a", 2, "2")], [], 40, TableCheckpoint(41))
    again = parent.of_shard(1, Origin(0, 50))
    assert again.open(Counts(), store="s-1") == TableCheckpoint(40, "x" * 32)
    old.close()
    parent.close()


def test_the_checkpoint_of_what_was_the_only_shard_becomes_that_of_this_shard(place: Place) -> None:
    single = place.target()
    single.open(Counts(), store="s-0")
    single.write([("a", 1, "1")], [], 0, TableCheckpoint(40, "x" * 32), [ParkedKey("b", 20, "early")])
    parent = place.target().of_shard(0)
    assert parent.open(Counts(), store="s-0") == TableCheckpoint(40, "x" * 32)
    child = parent.of_shard(1, Origin(0, 40))
    assert child.open(Counts(), store="s-1") == TableCheckpoint(40, "x" * 32)
    assert [each.parked(None).keys() for each in (parent, child)] == [{"b"}, {"b"}]
    with pytest.raises(es.Fenced):
        single.write([("a", 2, "2")], [], 40, TableCheckpoint(41))
    single.close()
    parent.close()
