"""Aggregates that are held back, because a split gives them to another shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import eventstore as es
from eventstore.errors import Elsewhere, EventStoreError


async def test_a_commit_is_held_back_with_what_it_writes_or_asserts(tmp_path: Path) -> None:
    """The shard that gets the aggregate may have another version of it already."""

    def held_back(names: Sequence[str]) -> Mapping[int, EventStoreError]:
        return {place: Elsewhere(7, 1) for place, name in enumerate(names) if name == "given"}

    one = [es.NewEvent("A", {})]
    async with es.open_store(tmp_path) as store:
        first = await store.commit([es.Write("kept", one, 0), es.Write("given", one, 0)], command_id="c-1")
        store.committer.held_back = held_back
        for writes, only_if in (
            ([es.Write("kept", one, 1), es.Write("given", one, 1)], []),
            ([es.Write("kept", one, 1), es.Write("other", one, 0)], [es.At("given", 1)]),
            ([es.Write("kept", one, 1)], [es.At("given", 1)]),
        ):
            with pytest.raises(Elsewhere):
                await store.commit(writes, only_if=only_if)
        again = await store.commit([es.Write("kept", one, 0), es.Write("given", one, 0)], command_id="c-1")
        assert [each._replace(duplicate=False) for each in again] == first
        assert await store.version("kept") == 1
