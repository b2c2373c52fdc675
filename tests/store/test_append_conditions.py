"""A commit that names the version and command it follows fails with that command, even if the version matches by accident."""

from __future__ import annotations

import pytest

from eventstore.model import NewEvent
from eventstore.protocol.frames import LENGTH_BYTES, encode_frame
from eventstore.protocol.request_codec import RequestDecoder
from eventstore.protocol.request_declaration import code_of
from eventstore.protocol.requests import Append
from eventstore.records.raw_commit import AfterCommand
from eventstore.store.append import COMMITTED, CONFLICT, DUPLICATE, REFUSED, NewCommit
from tests.store.conftest import Maker, fill
from tests.store.stepped import events_bytes, raw


def after(leader: str, command_id: str, aggregate_id: str = "a") -> NewCommit:
    """Returns a commit that follows another; `leader` names it as errors and the wire do: "VERSION/COMMAND"."""
    version, _, leading_command = leader.partition("/")
    return raw(aggregate_id, command_id, expected=AfterCommand(int(version), leading_command))


def received(condition: str) -> NewCommit:
    """Returns a commit as a server decodes it from an APPEND."""
    payload = encode_frame(1, code_of(Append), ("a", condition, "2", None, events_bytes([NewEvent("T")])))[LENGTH_BYTES:]
    request = RequestDecoder().decode(payload)[1]
    assert isinstance(request, Append)
    return request.commits[0]


def statuses(outcomes: list[tuple[int, object, int]]) -> list[int]:
    return [outcome[0] for outcome in outcomes]


def test_a_commit_after_an_accepted_one_is_committed(opened: Maker) -> None:
    store = opened()
    outcomes = store.append(raw("a", "1", NewEvent("T"), NewEvent("T"), expected=0), after("2/1", "2"), after("3/2", "3"))
    assert outcomes == [(COMMITTED, 2, 2), (COMMITTED, 3, 3), (COMMITTED, 4, 4)]


def test_a_version_reached_by_a_rival_commit_does_not_satisfy_the_condition(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "rival", expected=0))
    # "1" was decided on version 0, and "2" on the result of "1": version 1, which the rival's commit has now.
    outcomes = store.append(raw("a", "1", expected=0), after("1/1", "2"), raw("b", "3", expected=0), after("1/3", "4", "b"))
    assert outcomes[:2] == [(CONFLICT, 1, 0), (CONFLICT, 1, 0)]
    assert statuses(outcomes[2:]) == [COMMITTED, COMMITTED]
    assert store.engine.version("a") == 1


def test_the_preceding_commit_may_be_in_an_earlier_batch(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0))
    assert statuses(store.append(after("1/1", "2"))) == [COMMITTED]
    assert statuses(store.append(after("1/1", "3"), after("2/2", "4"))) == [CONFLICT, COMMITTED]
    store.append(*[raw("filler", f"{place}", NewEvent("T", bytes(1000))) for place in range(20)])
    assert len(store.engine.tail.files) > 1
    assert statuses(store.append(after("2/2", "5"), after("3/4", "6"))) == [CONFLICT, COMMITTED]


def test_a_commit_after_a_conflict_is_a_conflict(opened: Maker) -> None:
    store = opened()
    assert statuses(store.append(raw("a", "1", expected=7), after("8/1", "2"))) == [CONFLICT, CONFLICT]
    assert store.engine.version("a") == 0


def test_a_commit_after_a_refused_one_is_a_conflict(opened: Maker) -> None:
    store = opened()
    bad = ("a", 0, "1", None, b"no events")
    assert statuses(store.append(bad, after("1/1", "2"))) == [REFUSED, CONFLICT]


def test_resent_commits_are_duplicates_and_a_new_one_follows_the_last(opened: Maker) -> None:
    store = opened()
    batch = [raw("a", "1", expected=0), after("1/1", "2"), after("2/2", "3")]
    store.append(*batch)
    again = store.append(*batch, after("3/3", "4"))
    assert again == [(DUPLICATE, 1, 1), (DUPLICATE, 2, 2), (DUPLICATE, 3, 3), (COMMITTED, 4, 4)]


def test_a_commit_after_the_second_decision_of_a_repeated_command_is_a_conflict(opened: Maker) -> None:
    """The command was handled again, on version 1: the next commit was decided on a state that never existed."""
    store = opened()
    store.append(raw("a", "1", expected=0))
    assert statuses(store.append(raw("a", "1", expected=1), after("2/1", "2"))) == [DUPLICATE, CONFLICT]
    assert statuses(store.append(raw("a", "1", NewEvent("Other"), expected=1), after("2/1", "2"))) == [REFUSED, CONFLICT]


@pytest.mark.parametrize("wire", ["/1", "1/", "x/1", "01/1", "1/1/"])
def test_a_wire_condition_that_names_no_commit_is_a_conflict(opened: Maker, wire: str) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0))
    assert statuses(store.append(received(wire))) == [CONFLICT]


@pytest.mark.parametrize("wire", ["", "1"])
def test_a_wire_condition_of_no_known_form_is_refused(opened: Maker, wire: str) -> None:
    assert statuses(opened().append(received(wire))) == [REFUSED]


def test_a_commit_after_one_that_is_no_longer_the_latest_is_a_conflict(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0), raw("a", "rival", expected=1))
    assert statuses(store.append(raw("a", "1", expected=0), after("1/1", "2"))) == [DUPLICATE, CONFLICT]


def test_a_command_of_another_aggregate_does_not_satisfy_the_condition(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0), raw("b", "2", expected=0))
    assert statuses(store.append(after("1/2", "3", "a"))) == [CONFLICT]


def test_a_sorted_commit_does_not_satisfy_the_condition(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", expected=0))
    fill(store)
    store.sort()
    assert store.engine.tail.version("a") is None
    assert statuses(store.append(after("1/1", "2"), raw("a", "2", expected=1))) == [CONFLICT, COMMITTED]
