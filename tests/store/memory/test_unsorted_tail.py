"""The tail: adding, undoing, and finding commits even if hashes collide."""

from __future__ import annotations

import gc
import random
import threading
from array import array
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventstore.store.memory.unsorted_tail import TailFile, UnsortedTail, command_key

Added = tuple[str, int, int, int]  # aggregate, key, length, events


def state(file: TailFile) -> tuple[object, ...]:
    """Returns everything in a tail file."""
    return (
        file.end, file.next_sequence, list(file.offsets), list(file.sequences), list(file.versions), list(file.previous),
        dict(file.heads), dict(file.commands), {key: list(found) for key, found in file.collided.items()},
    )  # fmt: skip


def add(file: TailFile, commit: Added) -> None:
    aggregate_id, _, _, count = commit
    add_at(file, commit, (file.version(aggregate_id) or 0) + count)


def add_at(file: TailFile, commit: Added, version: int) -> None:
    aggregate_id, key, length, count = commit
    file.add_heads([aggregate_id], [key], [version])
    file.add_places(file.end, [length], [file.next_sequence], count)


def ordinals(file: TailFile, aggregate_id: str, visible: int) -> list[int]:
    found = file.commits_of(aggregate_id, visible)
    assert found is not None
    chain, count = found
    return chain[:count].tolist()


commits = st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(80, 300), st.integers(1, 4))


@given(st.lists(commits, max_size=30), st.integers(0, 30))
def test_undoing_is_the_inverse_of_adding_even_if_keys_collide(added: list[Added], kept: int) -> None:
    file = TailFile(1, 1)
    states = [state(file)]
    for commit in added:
        add(file, commit)
        states.append(state(file))
    for place in reversed(range(min(kept, len(added)), len(added))):
        aggregate_id, key, *_ = added[place]
        file.undo_last(aggregate_id, key)
        assert state(file) == states[place]


@given(st.lists(commits, max_size=30))
def test_adding_in_two_halves_is_the_same_as_adding(added: list[Added]) -> None:
    whole, halves = TailFile(1, 1), TailFile(1, 1)
    offset, sequence, lengths, sequences = halves.end, 1, [], []
    for commit in added:
        add(whole, commit)
        aggregate_id, key, length, count = commit
        halves.add_heads([aggregate_id], [key], [(halves.version(aggregate_id) or 0) + count])
        lengths.append(length)
        sequences.append(sequence)
        sequence += count
    if added:
        halves.add_places(offset, lengths, sequences, added[-1][3])
    assert state(halves) == state(whole)


@given(st.lists(st.lists(commits, min_size=1, max_size=10), max_size=4))
def test_adding_many_at_once_is_the_same_as_adding_one_by_one(added: list[list[Added]]) -> None:
    single, many = TailFile(1, 1), TailFile(1, 1)
    for batch in added:
        offset, first, before = single.end, len(single.versions), dict(single.heads)
        for commit in batch:
            add(single, commit)
        ids, keys, lengths, counts = zip(*batch, strict=True)
        assert many.heads == before
        assert many.add_heads(ids, keys, single.versions[first:]) == list(single.previous[first:])
        many.add_places(offset, lengths, single.sequences[first:], counts[-1])
        assert state(many) == state(single)


@pytest.fixture(params=[1, 64])
def kept_from(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the test once more with chains of a single commit kept as well."""
    monkeypatch.setattr("eventstore.store.memory.unsorted_tail._KEPT_COMMITS_MIN", request.param)
    monkeypatch.setattr("eventstore.store.memory.unsorted_tail._KEPT_CHAINS_MAX", 2)


@pytest.mark.usefixtures("kept_from")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(commits, min_size=1, max_size=40), st.integers(1, 60))
def test_an_aggregates_commits_are_found_in_order_and_only_as_far_as_they_are_visible(added: list[Added], visible: int) -> None:
    file = TailFile(1, 1)
    for commit in added:
        add(file, commit)
        file.commits_of(commit[0], 1_000)  # keeps the chain, as paging does
    for aggregate_id in "abcd":
        due = [place for place, commit in enumerate(added) if commit[0] == aggregate_id and place < visible]
        assert ordinals(file, aggregate_id, visible) == due
        version = 0
        for ordinal in due:
            assert file.first_version(ordinal) == version + 1
            version = file.versions[ordinal]
            assert version == file.first_version(ordinal) + added[ordinal][3] - 1


@pytest.mark.usefixtures("kept_from")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(commits, min_size=1, max_size=30))
def test_a_kept_chain_is_dropped_after_a_rollback(added: list[Added]) -> None:
    file = TailFile(1, 1)
    for commit in added:
        add(file, commit)
    last = added[-1]
    assert ordinals(file, last[0], 1_000)
    file.undo_last(last[0], last[1])
    add(file, ("z", 77, 100, 1))
    due = [place for place, commit in enumerate(added[:-1]) if commit[0] == last[0]]
    assert ordinals(file, last[0], 1_000) == due
    assert ordinals(file, "z", 1_000) == [len(added) - 1]


class Steps(array):  # type: ignore[type-arg] # not subscriptable while it runs
    """`previous`, counting its reads."""

    taken = 0

    def __getitem__(self, ordinal: int) -> int:  # type: ignore[override] # a walk asks for nothing else
        Steps.taken += 1
        before: int = super().__getitem__(ordinal)
        return before


def two_hot_aggregates(commits_each: int) -> TailFile:
    file = TailFile(1, 1)
    for number in range(2 * commits_each):
        add(file, ("ab"[number % 2], number, 100, 1))
    file.previous = Steps("I", file.previous)
    Steps.taken = 0
    return file


def test_long_chains_are_walked_once_even_if_several_are_read_in_turn() -> None:
    file = two_hot_aggregates(5_000)
    for _ in range(20):
        assert ordinals(file, "a", 10_000) == list(range(0, 10_000, 2))
        assert ordinals(file, "b", 10_000) == list(range(1, 10_000, 2))
    assert Steps.taken == 10_000
    for number in range(10_000, 10_010):
        add(file, ("a", number, 100, 1))
        assert ordinals(file, "a", number) == [*range(0, 10_000, 2), *range(10_000, number)]
    assert Steps.taken < 10_040


def test_a_walk_that_is_too_long_is_given_up_unless_its_chain_is_kept() -> None:
    file = two_hot_aggregates(5_000)
    assert file.commits_of("a", 10_000, steps_max=2_000) is None
    assert Steps.taken < 2_010
    assert len(ordinals(file, "a", 10_000)) == 5_000
    found = file.commits_of("a", 9_999, steps_max=2_000)
    assert found is not None
    assert found[1] == 5_000
    assert file.commits_of("b", 10_000, steps_max=2_000) is None


def test_invisible_commits_are_not_kept_in_chains() -> None:
    file = two_hot_aggregates(500)
    assert ordinals(file, "a", 600) == list(range(0, 600, 2))
    for number in reversed(range(600, 1_000)):
        file.undo_last("ab"[number % 2], number)
    add(file, ("a", 5_000, 100, 1))
    assert ordinals(file, "a", 601) == [*range(0, 600, 2), 600]


def test_readers_on_threads_keep_one_whole_chain() -> None:
    file = two_hot_aggregates(3_000)
    wrong: list[int] = []

    def read(visible: int) -> None:
        for step in range(0, 3_000, 100):
            seen = min(visible + step, 6_000)
            if ordinals(file, "a", seen) != list(range(0, seen, 2)):
                wrong.append(seen)

    threads = [threading.Thread(target=read, args=(visible,)) for visible in (500, 1_000, 3_000, 3_500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Interrupted(array):  # type: ignore[type-arg] # not subscriptable while it runs
    """`previous`; calls `meanwhile` at its first read, as another thread would run in the middle of a walk."""

    meanwhile: Callable[[], object] | None = None

    def __getitem__(self, ordinal: int) -> int:  # type: ignore[override] # a walk asks for nothing else
        before: int = super().__getitem__(ordinal)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return before


def test_a_chain_that_was_evicted_and_begun_again_during_a_walk_has_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventstore.store.memory.unsorted_tail._KEPT_CHAINS_MAX", 1)
    file = two_hot_aggregates(500)
    file.previous = previous = Interrupted("I", file.previous)
    assert ordinals(file, "a", 600) == list(range(0, 600, 2))

    def evict_and_begin_again() -> None:
        assert len(ordinals(file, "b", 1_000)) == 500
        assert ordinals(file, "a", 200) == list(range(0, 200, 2))

    previous.meanwhile = evict_and_begin_again
    assert ordinals(file, "a", 1_000) == list(range(0, 1_000, 2))
    assert ordinals(file, "a", 1_000) == list(range(0, 1_000, 2)), "the next reader as well"


def test_a_chain_that_grew_during_a_walk_and_a_rollback_is_not_returned_twice() -> None:
    file = two_hot_aggregates(500)
    file.previous = previous = Interrupted("I", file.previous)
    assert ordinals(file, "a", 600) == list(range(0, 600, 2))

    def grow_and_roll_back() -> None:
        assert len(ordinals(file, "a", 999)) == 500
        file.undo_last("b", 999)

    previous.meanwhile = grow_and_roll_back
    assert ordinals(file, "a", 999) == list(range(0, 999, 2))


def test_extents_and_sequences_lead_to_records() -> None:
    file = TailFile(4, 100)
    for commit in (("a", 1, 90, 3), ("b", 2, 80, 1), ("a", 3, 100, 2)):
        add(file, commit)
    assert [file.extent(ordinal) for ordinal in range(3)] == [(4096, 4186), (4186, 4266), (4266, 4366)]
    assert [file.ordinal_at(sequence) for sequence in range(100, 106)] == [0, 0, 0, 1, 2, 2]
    assert [file.written_commits(sequence) for sequence in (99, 102, 103, 105)] == [0, 1, 2, 3]


def test_commands_with_colliding_keys_are_distinguished_by_their_records() -> None:
    tail = UnsortedTail()
    first, second = tail.begin(1, 1), tail.begin(2, 10)
    for file in (first, second):
        for aggregate_id in ("a", "b", "c"):
            add(file, (aggregate_id, 7, 100, 1))
    assert first.candidates(7) == [0, 1, 2]
    assert first.candidates(8) == []
    looked_at = []

    def matches(file: TailFile, ordinal: int) -> bool:
        looked_at.append((file.number, ordinal))
        return (file.number, ordinal) == (2, 1)

    assert tail.find(7, matches) == (second, 1)
    assert looked_at == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert tail.find(8, matches) is None


def test_the_newest_file_knows_the_version() -> None:
    tail = UnsortedTail()
    for number in (1, 2, 3):
        file = tail.begin(number, number * 10)
        if number != 3:
            add_at(file, ("a", number, 100, 1), number * 5)
    assert tail.version("a") == 10
    assert tail.version("b") is None
    assert [file.number for file in tail.before(tail.files[2])] == [2, 1]
    tail.drop(tail.files[1])
    assert tail.version("a") == 5
    assert tail.current.number == 3


def test_keys_differ_with_aggregate_and_command() -> None:
    keys = {command_key(aggregate, command) for aggregate in ("a", "b", "ab") for command in ("a", "b", "ab", "")}
    assert len(keys) == 12


@pytest.mark.heavy
def test_the_garbage_collector_does_not_traverse_a_million_aggregates() -> None:
    file = TailFile(1, 1)
    gc.collect()
    before = len(gc.get_objects())
    rng, batch = random.Random(1), 10_000
    for first in range(0, 1_000_000, batch):
        names = [f"aggregate-{number}" for number in range(first, first + batch)]
        file.add_heads(names, [rng.getrandbits(60) for _ in names], [1] * batch)
        file.add_places(file.end, [100] * batch, range(first + 1, first + batch + 1), 1)
    del names
    gc.collect()
    assert not gc.is_tracked(file.heads)
    assert not gc.is_tracked(file.commands)
    assert len(gc.get_objects()) - before < 100
