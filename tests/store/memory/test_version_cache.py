"""The version cache is bounded, and a dropped aggregate is never treated as new."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.store.append import COMMITTED, CONFLICT, DUPLICATE
from eventstore.store.memory.version_cache import ABSENT, VersionCache, may_contain, pack, version_of
from tests.store.conftest import Maker
from tests.store.stepped import raw


@pytest.mark.parametrize("count", [0, 1, 2, 512, 513, 3_000])
def test_a_value_holds_the_version_and_every_command(count: int) -> None:
    rng = random.Random(count)
    hashes = [rng.getrandbits(64) for _ in range(count)]
    value = pack(123_456_789_012, [], [b"".join(number.to_bytes(8, "little") for number in hashes)])
    assert version_of(value) == 123_456_789_012
    assert all(may_contain(value, number.to_bytes(8, "little")) for number in hashes)
    assert not any(may_contain(value, (number ^ 1).to_bytes(8, "little")) for number in hashes if number ^ 1 not in hashes)


def test_absent_is_version_0() -> None:
    assert version_of(ABSENT) == 0
    assert not may_contain(ABSENT, bytes(8))


def test_used_entries_stay_and_the_size_is_bounded() -> None:
    cache = VersionCache(100_000)
    for number in range(10_000):
        cache.put(f"a{number}", pack(number, [], []))
        cache.get("a0")
        assert len(cache) <= 100_000 // 230 + 1
    assert cache.get("a0") == pack(0, [], [])
    assert cache.get("a9999") == pack(9_999, [], [])
    assert cache.get("a17") is None


@given(st.lists(st.tuples(st.sampled_from("pgf"), st.integers(0, 12)), max_size=80), st.integers(300, 4_000))
def test_a_lookup_returns_the_latest_value_or_none(steps: list[tuple[str, int]], bytes_max: int) -> None:
    cache, model = VersionCache(bytes_max), {}
    for place, (step, number) in enumerate(steps):
        name = f"a{number}"
        if step == "p":
            model[name] = pack(place, [], [])
            cache.put(name, model[name])
        elif step == "f":
            model.pop(name, None)
            cache.forget(name)
            assert cache.get(name) is None
        else:
            assert cache.get(name) in (None, model.get(name))


def test_aggregates_dropped_from_the_cache_are_still_found(opened: Maker) -> None:
    store = opened()
    store.engine.version_cache._generation_bytes_max = 700  # three aggregates
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
        assert len(store.engine.version_cache) < 10
    assert store.engine.version_cache.misses > 50
    assert store.append(raw("order-7", "new", expected=3))[0][0] == COMMITTED


@pytest.mark.heavy
@pytest.mark.long
def test_the_garbage_collector_does_not_traverse_a_million_aggregates() -> None:
    cache = VersionCache(1 << 40)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1_000_000):
        cache.put(f"aggregate-{number}", pack(number, [], [b"12345678"]))
    gc.collect()
    assert not gc.is_tracked(cache.young)
    assert len(gc.get_objects()) - before < 10_000  # garbage of other tests is gone
    as_lists = {f"aggregate-{number}": [number] for number in range(100_000)}
    assert gc.is_tracked(as_lists), "a dict of lists would be"
    assert len(gc.get_objects()) - before > 90_000


def at_step(step: int, watched: CodeType, use: Callable[[], object]) -> Callable[..., Any]:
    """Returns a tracer that calls `use` after so many instructions of a function, as another thread could."""
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal left
        if watched not in (frame.f_code, frame.f_back.f_code if frame.f_back is not None else None):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                use()
        return trace

    return trace


@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize("watched", ["get", "peek"])
def test_another_thread_never_misses_an_entry_that_is_used_at_this_moment(watched: str, rotates: bool) -> None:
    """One that a sort misses would keep the version from before the sort."""
    value = pack(1, [], [])

    def fill(cache: VersionCache) -> None:
        cache.put("b", value)
        while cache.young:
            cache.put("b", value)

    for step in range(80):
        cache, found = VersionCache(1_000), list[bytes | None]()
        cache.put("a", value)
        fill(cache)

        def use(cache: VersionCache = cache, found: list[bytes | None] = found) -> None:
            found.append(cache.peek("a") if watched == "get" else cache.get("a"))
            if rotates and watched == "peek":
                fill(cache)

        before = sys.gettrace()
        sys.settrace(at_step(step, getattr(VersionCache, watched).__code__, use))
        try:
            found.append(getattr(cache, watched)("a"))
        finally:
            sys.settrace(before)
        assert set(found) == {value}, step
