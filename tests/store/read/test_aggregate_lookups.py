"""Point lookups of versions and commands: on any thread, and from memory alone on an event loop."""

from __future__ import annotations

import threading

import pytest

from eventstore.chunks.files import NotCached
from eventstore.model import NewEvent
from tests.store.conftest import Maker, fill
from tests.store.stepped import Stepped, raw
from tests.waiting import DEADLINE_SECONDS

NAMES = [f"order-{number}" for number in range(5)]


def test_readers_get_the_same_answers_as_the_owner(filled: Stepped) -> None:
    engine = filled.engine
    last = {event.aggregate_id: event.version for event in filled.state()}
    assert {name: engine.look_up_version(name) for name in NAMES} == last
    assert {name: engine.version(name) for name in NAMES} == last
    for number in range(100):
        found = engine.look_up_command(f"order-{number % 5}", f"command-{number}")
        assert found is not None
        assert found == engine.find_command(f"order-{number % 5}", f"command-{number}")
        assert engine.look_up_command(f"order-{(number + 1) % 5}", f"command-{number}") is None
    assert engine.look_up_version("nobody") == 0
    assert engine.look_up_command("nobody", "command-1") is None


def test_on_an_event_loop_lookups_answer_from_memory_or_raise(opened: Maker) -> None:
    store = fill(opened())
    for number in range(2):  # each begins a file
        store.append(raw("large", f"large-{number}", NewEvent("Large", bytes(6_000))))
    store.sort()
    store.engine.version_cache.clear()
    engine = store.engine
    for name in (*NAMES, "nobody"):
        with pytest.raises(NotCached):
            engine.look_up_version(name, cached_only=True)
        with pytest.raises(NotCached):
            engine.look_up_command(name, "command-1", cached_only=True)
    versions = {name: engine.version(name) for name in (*NAMES, "nobody")}
    assert {name: engine.look_up_version(name, cached_only=True) for name in versions} == versions
    for name in versions:
        assert engine.look_up_command(name, "no such command", cached_only=True) is None
    with pytest.raises(NotCached):
        engine.look_up_command("order-1", "command-1", cached_only=True)
    store.append(raw("order-9", "new"))
    assert engine.look_up_version("order-9", cached_only=True) == 1
    view = engine.look_up_command("order-9", "new", cached_only=True)
    assert view is not None
    assert view.last_version == 1


@pytest.mark.parametrize("cached_only", [False, True])
def test_lookups_do_not_see_unwritten_commits(opened: Maker, cached_only: bool) -> None:
    store = opened()
    engine = store.engine
    store.append(raw("a", "c-1"))
    engine.append_batch([raw("a", "c-2"), raw("b", "c-1")])
    engine.version("b")
    assert engine.look_up_version("a", cached_only) == 1
    assert engine.look_up_version("b", cached_only) == 0
    assert engine.look_up_command("a", "c-2", cached_only) is None
    store.persist()
    assert engine.look_up_version("a", cached_only) == 2
    assert engine.look_up_version("b", cached_only) == 1
    assert engine.look_up_command("a", "c-2", cached_only) is not None


def test_lookups_on_threads_are_right_while_files_are_written_and_sorted(opened: Maker) -> None:
    store = opened()
    engine, done, wrong = store.engine, threading.Event(), list[object]()
    store.append(raw("a", "c-0"))

    def read() -> None:
        before = 1
        while not done.is_set():
            version = engine.look_up_version("a")
            found = engine.look_up_command("a", f"c-{version - 1}")
            if version < before or found is None or found.last_version != version:
                wrong.append((before, version, found))
            before = version

    threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 300):
            store.append(raw("a", f"c-{number}"))
            if number % 20 == 0:
                store.sort()
    finally:
        done.set()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()
    assert wrong == []
