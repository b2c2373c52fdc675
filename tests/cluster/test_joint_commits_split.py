"""Commits of several aggregates that a split has separated."""

from __future__ import annotations

from pathlib import Path

import pytest

import eventstore as es
from eventstore.records.slots import slot_of
from tests.cluster.led_shards import LedShards


def test_a_repeated_commit_has_its_first_outcome_though_a_split_has_separated_its_aggregates(tmp_path: Path) -> None:
    one = [es.NewEvent("A", {})]
    with LedShards(tmp_path, 1) as shards, es.blocking.connect(shards.address) as store:
        leaving = shards.leaving_id(0)
        staying = next(name for name in map("s-{}".format, range(100)) if slot_of(name) < slot_of(leaving))
        both = [es.Write(staying, one, 0), es.Write(leaving, one, 0)]
        first = [each._replace(duplicate=True) for each in store.commit(both, command_id="c-1")]
        shards.split(0)
        assert shards.owner(staying) != shards.owner(leaving)
        for at in (store, es.blocking.connect(shards.address)):  # one knows the map of before
            with at:
                assert at.commit(both, command_id="c-1") == first
                assert at.commit(both[::-1], command_id="c-1") == first[::-1]
                with pytest.raises(es.CommandIdReused):
                    at.commit([*both, es.Write("z", one, 0)], command_id="c-1")
                with pytest.raises(es.CrossShard):
                    at.commit([es.Write(name, one, 1) for name in (staying, leaving)])
