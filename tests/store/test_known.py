"""The version cache: bounded, and what it forgot is never taken for new."""

from __future__ import annotations

import gc
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.store.appending import COMMITTED, CONFLICT, DUPLICATE
from eventstore.store.known import ABSENT, KnownAggregates, may_hold, pack, version_of
from tests.store.conftest import Maker
from tests.store.stepped import raw


@pytest.mark.parametrize("count", [0, 1, 2, 512, 513, 3_000])
def test_a_value_holds_the_version_and_every_command(count: int) -> None:
    rng = random.Random(count)
    hashes = [rng.getrandbits(64) for _ in range(count)]
    value = pack(123_456_789_012, b"".join(number.to_bytes(8, "little") for number in hashes))
    assert version_of(value) == 123_456_789_012
    assert all(may_hold(value, number) for number in hashes)
    assert not any(may_hold(value, number ^ 1) for number in hashes if number ^ 1 not in hashes)


def test_absent_is_version_nought() -> None:
    assert version_of(ABSENT) == 0
    assert not may_hold(ABSENT, 7)


def test_what_is_used_stays_and_the_whole_stays_within_its_bound() -> None:
    known = KnownAggregates(100_000)
    for number in range(10_000):
        known.put(f"a{number}", pack(number, b""))
        known.get("a0")
        assert len(known) <= 100_000 // 230 + 1
    assert known.get("a0") == pack(0, b"")
    assert known.get("a9999") == pack(9_999, b"")
    assert known.get("a17") is None


@given(st.lists(st.tuples(st.sampled_from("pgf"), st.integers(0, 12)), max_size=80), st.integers(300, 4_000))
def test_it_answers_with_the_latest_value_or_with_none(steps: list[tuple[str, int]], bytes_max: int) -> None:
    known, model = KnownAggregates(bytes_max), {}
    for place, (step, number) in enumerate(steps):
        name = f"a{number}"
        if step == "p":
            model[name] = pack(place, b"")
            known.put(name, model[name])
        elif step == "f":
            model.pop(name, None)
            known.forget(name)
            assert known.get(name) is None
        else:
            assert known.get(name) in (None, model.get(name))


def test_the_most_recently_used_come_last() -> None:
    known = KnownAggregates(4_800)
    for number in range(15):
        known.put(f"a{number}", ABSENT)
    known.get("a3")
    assert known.recent(0) == []
    assert known.recent(2) == ["a14", "a3"]
    everything = known.recent(100)
    assert len(everything) == len(set(everything)) == len(known)
    assert known.recent(4) == everything[-4:]
    known.clear()
    assert known.recent(4) == []


def test_what_fell_out_of_the_cache_is_known_all_the_same(opened: Maker) -> None:
    store = opened()
    store.engine.known._generation_bytes_max = 700  # three aggregates
    for number in range(60):
        store.append(raw(f"order-{number % 20}", f"command-{number}", expected=number // 20))
    store.append(raw("last", "last"))
    while store.sort():
        pass
    for number in range(60):
        name = f"order-{number % 20}"
        assert store.append(raw(name, f"command-{number}", expected=0))[0][0] == DUPLICATE
        assert store.append(raw(name, "new", expected=0))[0][:2] == (CONFLICT, 3)
        assert store.engine.version(name) == 3
        assert len(store.engine.known) < 10
    assert store.engine.known.misses > 50
    assert store.append(raw("order-7", "new", expected=3))[0][0] == COMMITTED


@pytest.mark.heavy
def test_a_million_aggregates_are_nothing_the_garbage_collector_looks_at() -> None:
    known = KnownAggregates(1 << 40)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1_000_000):
        known.put(f"aggregate-{number}", pack(number, b"12345678"))
    gc.collect()
    assert not gc.is_tracked(known.young)
    assert len(gc.get_objects()) - before < 10_000  # what threads of other tests left behind is no more
    as_lists = {f"aggregate-{number}": [number] for number in range(100_000)}
    assert gc.is_tracked(as_lists), "a dict of lists would be"
    assert len(gc.get_objects()) - before > 90_000
