"""A commit that rests on one before it in its batch fails with that one, even where the version would fit by accident."""

from __future__ import annotations

import pytest

from eventstore.model import NewEvent
from eventstore.store.appending import COMMITTED, CONFLICT, DUPLICATE, REFUSED, RawCommit
from tests.store.conftest import Maker
from tests.store.stepped import raw


def follower(command_id: str, aggregate_id: str = "a") -> RawCommit:
    return raw(aggregate_id, command_id, expected=False)


def statuses(outcomes: list[tuple[int, object, int]]) -> list[int]:
    return [outcome[0] for outcome in outcomes]


def test_followers_of_a_good_commit_are_committed(opened: Maker) -> None:
    store = opened()
    outcomes = store.append(raw("a", "1", NewEvent("T"), NewEvent("T"), expected=0), follower("2"), follower("3"))
    assert outcomes == [(COMMITTED, 2, 2), (COMMITTED, 3, 3), (COMMITTED, 4, 4)]


def test_the_version_that_a_rival_left_does_not_fit_a_follower(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "rival", expected=0))
    # "1" was decided on version 0, and "2" on what "1" would have left: version 1, where the rival's commit is now.
    outcomes = store.append(raw("a", "1", expected=0), follower("2"), raw("b", "3", expected=0), follower("4", "b"))
    assert statuses(outcomes) == [CONFLICT, CONFLICT, COMMITTED, COMMITTED]
    assert outcomes[1] == (CONFLICT, 1, 0)
    assert store.engine.version("a") == 1


def test_the_aggregate_does_not_exist_for_the_follower_of_a_conflict(opened: Maker) -> None:
    store = opened()
    assert statuses(store.append(raw("a", "1", expected=7), follower("2"))) == [CONFLICT, CONFLICT]
    assert store.engine.version("a") == 0


def test_a_follower_of_a_refused_commit_is_a_conflict(opened: Maker) -> None:
    store = opened()
    bad = ("a", 0, "1", None, b"no events")
    assert statuses(store.append(bad, follower("2"))) == [REFUSED, CONFLICT]


def test_a_batch_sent_again_is_answered_with_duplicates(opened: Maker) -> None:
    store = opened()
    batch = [raw("a", "1", expected=0), follower("2"), follower("3")]
    store.append(*batch)
    assert store.append(*batch) == [(DUPLICATE, 1, 1), (DUPLICATE, 2, 2), (DUPLICATE, 3, 3)]


def test_a_follower_of_a_duplicate_is_a_conflict(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0))
    assert statuses(store.append(raw("a", "1", expected=0), follower("2"))) == [DUPLICATE, CONFLICT]
    store.append(raw("a", "rival", expected=1))
    assert statuses(store.append(raw("a", "1", expected=0), follower("2"))) == [DUPLICATE, CONFLICT]


def test_a_conflict_reaches_no_further_than_its_batch(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0))
    store.append(raw("a", "2", expected=0), follower("3"))
    assert statuses(store.append(raw("a", "4", expected=1), follower("5"))) == [COMMITTED, COMMITTED]


@pytest.mark.parametrize("rival", [False, True])
@pytest.mark.parametrize("commits", [1, 2, 50])
def test_a_batch_of_followers_is_committed_whole_or_not_at_all(opened: Maker, rival: bool, commits: int) -> None:
    store = opened()
    known = 0
    for turn in range(20):
        late = rival and turn % 3 == 1
        if late:
            store.append(*[raw("a", f"rival-{turn}-{place}") for place in range(1 + turn % 4)])
        batch = [raw("a", f"{turn}-{place}", expected=False if place else known) for place in range(commits)]
        assert statuses(store.append(*batch)) == [CONFLICT if late else COMMITTED] * commits
        known = store.engine.version("a")
