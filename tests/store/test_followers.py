"""A commit that names the version and the command it rests on fails with that one, even where the version fits by accident."""

from __future__ import annotations

import pytest

from eventstore.model import NewEvent
from eventstore.store.appending import COMMITTED, CONFLICT, DUPLICATE, REFUSED, RawCommit
from tests.store.conftest import Maker, fill
from tests.store.stepped import raw


def after(leader: str, command_id: str, aggregate_id: str = "a") -> RawCommit:
    """A commit that rests on that of a command; `leader` is the version this led to, a slash, and the command's id."""
    return raw(aggregate_id, command_id, expected=leader)


def statuses(outcomes: list[tuple[int, object, int]]) -> list[int]:
    return [outcome[0] for outcome in outcomes]


def test_what_rests_on_a_good_commit_is_committed(opened: Maker) -> None:
    store = opened()
    outcomes = store.append(raw("a", "1", NewEvent("T"), NewEvent("T"), expected=0), after("2/1", "2"), after("3/2", "3"))
    assert outcomes == [(COMMITTED, 2, 2), (COMMITTED, 3, 3), (COMMITTED, 4, 4)]


def test_the_version_that_a_rival_left_does_not_fit_what_rests_on_another_commit(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "rival", expected=0))
    # "1" was decided on version 0, and "2" on what "1" would have left: version 1, where the rival's commit is now.
    outcomes = store.append(raw("a", "1", expected=0), after("1/1", "2"), raw("b", "3", expected=0), after("1/3", "4", "b"))
    assert outcomes[:2] == [(CONFLICT, 1, 0), (CONFLICT, 1, 0)]
    assert statuses(outcomes[2:]) == [COMMITTED, COMMITTED]
    assert store.engine.version("a") == 1


def test_it_does_not_matter_in_which_batch_the_other_commit_was(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0))
    assert statuses(store.append(after("1/1", "2"))) == [COMMITTED]
    assert statuses(store.append(after("1/1", "3"), after("2/2", "4"))) == [CONFLICT, COMMITTED]
    store.append(*[raw("filler", f"{place}", NewEvent("T", bytes(1000))) for place in range(20)])
    assert len(store.engine.tail.files) > 1
    assert statuses(store.append(after("2/2", "5"), after("3/4", "6"))) == [CONFLICT, COMMITTED]


def test_the_aggregate_does_not_exist_for_what_rests_on_a_conflict(opened: Maker) -> None:
    store = opened()
    assert statuses(store.append(raw("a", "1", expected=7), after("8/1", "2"))) == [CONFLICT, CONFLICT]
    assert store.engine.version("a") == 0


def test_what_rests_on_a_refused_commit_is_a_conflict(opened: Maker) -> None:
    store = opened()
    bad = ("a", 0, "1", None, b"no events")
    assert statuses(store.append(bad, after("1/1", "2"))) == [REFUSED, CONFLICT]


def test_commits_sent_again_are_duplicates_and_what_is_new_goes_on_from_the_last(opened: Maker) -> None:
    store = opened()
    batch = [raw("a", "1", expected=0), after("1/1", "2"), after("2/2", "3")]
    store.append(*batch)
    again = store.append(*batch, after("3/3", "4"))
    assert again == [(DUPLICATE, 1, 1), (DUPLICATE, 2, 2), (DUPLICATE, 3, 3), (COMMITTED, 4, 4)]


def test_what_rests_on_a_command_that_was_carried_out_twice_in_memory_is_a_conflict(opened: Maker) -> None:
    """The command came again and was handled again, on version 1: what follows was decided on a state that never was."""
    store = opened()
    store.append(raw("a", "1", expected=0))
    assert statuses(store.append(raw("a", "1", expected=1), after("2/1", "2"))) == [DUPLICATE, CONFLICT]
    assert statuses(store.append(raw("a", "1", NewEvent("Other"), expected=1), after("2/1", "2"))) == [REFUSED, CONFLICT]


@pytest.mark.parametrize("malformed", ["/1", "1/", "x/1", "01/1", "1/1/"])
def test_what_names_nothing_is_a_conflict(opened: Maker, malformed: str) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0))
    assert statuses(store.append(after(malformed, "2"))) == [CONFLICT]


@pytest.mark.parametrize("senseless", ["", "1"])
def test_what_is_no_form_of_an_expected_version_is_refused(opened: Maker, senseless: str) -> None:
    assert statuses(opened().append(after(senseless, "2"))) == [REFUSED]


def test_what_rests_on_a_commit_that_is_not_the_latest_any_more_is_a_conflict(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0), raw("a", "rival", expected=1))
    assert statuses(store.append(raw("a", "1", expected=0), after("1/1", "2"))) == [DUPLICATE, CONFLICT]


def test_a_command_of_another_aggregate_is_not_meant(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0), raw("b", "2", expected=0))
    assert statuses(store.append(after("1/2", "3", "a"))) == [CONFLICT]


def test_what_was_sorted_is_nothing_to_go_on_from(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0))
    fill(store)
    store.sort()
    assert store.engine.tail.version("a") is None
    assert statuses(store.append(after("1/1", "2"), raw("a", "2", expected=1))) == [CONFLICT, COMMITTED]
