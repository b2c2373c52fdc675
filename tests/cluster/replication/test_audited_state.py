"""What is done to a shard through etcd is in its audit trail, with who asked for it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

import eventstore as es
from eventstore.chunks.documents import Tree
from eventstore.security.access_list import AccessList
from eventstore.security.audit import AUDIT, AuditRecord, Details, verified
from eventstore.server.access.auditor import Auditor
from eventstore.server.access.security import Security
from eventstore.settings.server import ServerSettings
from eventstore_cluster.registry.cluster_requests import REQUESTS_MAX, read_requests, requests_with
from eventstore_cluster.replica.actions import Transact
from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.registry_state import ClusterRequest, Leader, Pause, Seat, Seen, ShardState
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replication.audited_state import CHANGED, ELECTED, REQUESTED, audit_until, changes, elected, requested
from tests.waiting import eventually

STATE = ShardState(3, frozenset(), ("n1", "n2"), 2, leader=Seat("n1", "a"), by="ann", leader_by="ben")
SEEN = Seen(9, STATE, 8)


def changed(before: ShardState, after: ShardState) -> list[tuple[str, Details]]:
    """Returns who has changed what."""
    found = changes(replace(SEEN, state=before), replace(SEEN, state=after))
    assert {(each.what, each.origin) for each in found} <= {(CHANGED, "etcd")}
    return [(each.who, each.details) for each in found]


def test_what_a_person_asked_for_is_a_change_and_what_happens_by_itself_is_none() -> None:
    assert changed(STATE, replace(STATE, epoch=4, nonce="x", history=("y",))) == []
    assert changed(STATE, replace(STATE, successor="n2")) == [("ben", {"successor": "n2"})]
    assert changed(STATE, replace(STATE, wanted=("n1", "n3"))) == [("ann", {"replicas_wanted": "n1, n3"})]
    assert changed(STATE, replace(STATE, replicas=("n1", "n3"))) == [("ann", {"replicas": "n1, n3"})]
    assert changed(STATE, replace(STATE, generation=2)) == [("ben", {"generation": 2})]
    assert changed(STATE, replace(STATE, split=(7, 8))) == [("ann", {"split": "7, 8"})]
    assert changed(replace(STATE, split=(7,)), replace(STATE, splits=1)) == [("ann", {"split": "", "splits": 1})]


def test_each_who_asked_for_something_has_a_record_of_that() -> None:
    named = replace(STATE, wanted=("n2",), successor="n2", pause=Pause(True, "cara"))
    assert changed(STATE, named) == [
        ("ann", {"replicas_wanted": "n2"}),
        ("ben", {"successor": "n2"}),
        ("cara", {"paused": True}),
    ]
    (paused,) = changes(SEEN, replace(SEEN, pause_all=Pause(True, "dora")))
    assert (paused.who, paused.details) == ("dora", {"moves_paused": True})


def test_an_election_names_who_asked_for_it_and_who_for_what_is_not_done() -> None:
    led = elected(SEEN, "n1")
    assert (led.what, led.who, led.details["node"], led.details["epoch"]) == (ELECTED, "ben", "n1", 3)
    assert led.details["asked_by"] is None, "nothing is wanted that is not done"
    assert elected(replace(SEEN, state=replace(STATE, wanted=("n2",))), "n1").details["asked_by"] == "ann"
    assert elected(replace(SEEN, state=replace(STATE, split=(7,))), "n1").details["asked_by"] == "ann"


def test_an_election_that_was_not_asked_for_names_no_one() -> None:
    one, two = Seat("n1", "a"), Seat("n2", "b")
    both = frozenset({one, two})
    asked = replace(STATE, successor="n2", leader_by="ben")
    assert asked.elected(two, both).leader_by == "ben"
    assert asked.elected(one, both).leader_by == "", "another one than was asked for"
    assert STATE.elected(two, both).leader_by == "", "whoever asked for the leader before"
    forced = replace(STATE, leader=None, leader_by="cara")
    assert (after := forced.elected(one, both)).leader_by == "cara"
    assert (after.epoch, after.leader, after.in_sync, after.successor) == (4, one, both, None)
    assert replace(forced, successor="n2").elected(one, both).leader_by == "cara", "whoever is asked for before that"


@pytest.mark.parametrize("answered", [True, False])
def test_what_is_asked_for_before_the_log_is_open_is_not_the_election_but_a_change_since(answered: bool) -> None:
    me, nonces = Leader(Seat("n1", "a"), "run1", "127.0.0.1:1"), count()
    own = Replica(me, (), (LogTail(),), (0,), limits=Limits(), new_nonce=lambda: str(next(nonces)), now=0.0)  # fmt: skip
    own.tick(0.0, 10.0)
    (elect,) = own.saw(replace(SEEN, state=replace(STATE, in_sync=frozenset({me.member}), in_sync_min=1)), 0.0)
    assert isinstance(elect, Transact)
    own.answered(elect.swap.number, 10 if answered else None, 0.1)
    asked = replace(elect.swap.state.asked_by("dora"), wanted=("n1", "n3"), successor="n2", leader_by="dora")
    own.saw(Seen(11, asked, 11, me, 10, pause_all=Pause(True, "emil")), 0.2)
    own.begun((LogTail(),), ((1, 100),), 0.3)
    assert own.leading is not None
    began_with, seen = own.leading.began_with, own.registrar.seen
    assert began_with is not None
    assert seen is not None
    record = elected(began_with, "n1")
    assert (record.who, record.details["epoch"], record.details["replicas_wanted"], record.details["asked_by"]) == (
        "", 4, None, None,
    )  # fmt: skip
    assert [(each.who, each.details) for each in changes(began_with, seen)] == [
        ("dora", {"replicas_wanted": "n1, n3", "successor": "n2"}),
        ("emil", {"moves_paused": True}),
    ]


def test_the_first_leader_of_a_new_shard_began_with_what_the_gift_of_its_slots_left() -> None:
    """It proposed nothing: its parent's leader made it lead."""
    me = Leader(Seat("n1", "a"), "run1", "127.0.0.1:1")
    own = Replica(me, (), (LogTail(),), (0,), limits=Limits(), new_nonce=lambda: "0", now=0.0)
    own.tick(0.0, 10.0)
    given = Seen(7, replace(STATE, in_sync=frozenset({me.member}), in_sync_min=1, leader=me.member), 7, me, 7)
    own.saw(given, 0.1)
    own.begun((LogTail(),), ((1, 100),), 0.2)
    assert own.leading is not None
    assert own.leading.began_with == given


REQUEST = ClusterRequest(7, "a7", "ann", 1_700_000_000, {"node": "n2", "draining": True})


def leading(began_with: Seen) -> Replica:
    """Returns the one replica of a shard, which leads since it has seen this."""
    me = Leader(Seat("n1", "a"), "run1", "127.0.0.1:1")
    own = Replica(me, (), (LogTail(),), (0,), limits=Limits(), new_nonce=lambda: "0", now=0.0)
    own.tick(0.0, 10.0)
    state = replace(STATE, in_sync=frozenset({me.member}), in_sync_min=1, leader=me.member)
    own.saw(replace(began_with, state=state, leader=me, leader_revision=7), 0.1)
    own.begun((LogTail(),), ((1, 100),), 0.2)
    return own


def test_what_is_asked_of_the_whole_cluster_is_recorded_with_who_asked_and_when() -> None:
    record = requested(REQUEST)
    assert record == AuditRecord(
        REQUESTED, "ann", "etcd",
        {"node": "n2", "draining": True, "request": 7, "asked_at": "2023-11-14T22:13:20Z"}, "a7",
    )  # fmt: skip


def test_each_request_is_recorded_once_also_by_a_leader_that_comes_after_one_which_recorded_some(tmp_path: Path) -> None:
    one, two, three = (replace(REQUEST, number=n, id=f"a{n}") for n in (1, 2, 3))
    told: list[tuple[str, object]] = []

    async def lives() -> None:
        async with es.open_store(tmp_path / "data") as store:

            async def led(own: Replica, *told_then: tuple[str, object], asked: ClusterRequest | None = None) -> None:
                """Has the replica lead until the trail has these records. `asked`: is asked then, and recorded, too."""
                security, stopping = Security(ServerSettings(data=tmp_path / "data")), trio.Event()
                security._audit = audit = Auditor(store, AccessList({}))

                async def has(*expected: tuple[str, object]) -> bool:
                    data = [(each.version, each.data) async for each in store.read(AUDIT)]
                    told[:] = [(each["what"], each["details"].get("request")) for _, each in verified(data)]
                    return told == [*expected] and not audit.waiting

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(audit.run)
                    nursery.start_soon(audit_until, stopping, security, own, "n1")
                    await eventually(lambda: has(*told_then), f"the trail has {told_then}")
                    if asked is not None:
                        seen = own.registrar.seen
                        assert seen is not None
                        own.saw(replace(seen, at=10, requests=(*seen.requests, asked)), 0.3)
                        await eventually(lambda: has(*told_then, (REQUESTED, asked.number)), "it is recorded")
                    stopping.set()
                    nursery.cancel_scope.cancel()

            first = ((ELECTED, None), (REQUESTED, 1), (REQUESTED, 2))
            await led(leading(replace(SEEN, requests=(one, two))), *first, asked=three)
            await led(leading(replace(SEEN, requests=(one, two, three))), *first, (REQUESTED, 3), (ELECTED, None))

    trio.run(lives)
    assert [number for what, number in told if what == REQUESTED] == [1, 2, 3]


def test_the_latest_requests_are_kept_and_numbered_and_what_something_else_wrote_is_left_out() -> None:
    value: Tree | None = None
    for number in range(1, REQUESTS_MAX + 10):
        value = json.loads(json.dumps(requests_with(value, f"a{number}", "x" * 10_000, 9, {"node": "n" * 10_000})))
    assert value is not None
    assert len(value["latest"]) == REQUESTS_MAX  # type: ignore[arg-type] # it is a list
    kept = read_requests(value)
    assert [each.number for each in kept] == list(range(10, REQUESTS_MAX + 10))
    assert {(len(each.by), len(str(each.details["node"]))) for each in kept} == {(128, 200)}
    (own,) = read_requests(requests_with(None, "a1", "ann", 9, {"moves_paused": True, "rate": None}))
    assert own == ClusterRequest(1, "a1", "ann", 9, {"moves_paused": True, "rate": None})
    good: dict[str, Any] = {"number": 1, "id": "a1", "by": "ann", "at": 9, "details": {}}
    others: list[dict[str, Any]] = [{"id": ""}, {"id": "a/b"}, {"id": "x" * 65}, {"at": -1}, {"at": 10**12}, {"number": "1"}]
    strange: list[Any] = [None, 7, {}, {**good, "details": None}, *({**good, **each} for each in others)]
    assert read_requests({"latest": strange}) == ()
    assert [each.id for each in read_requests({"latest": [*strange, {**good, "by": 7}]})] == ["a1"]
    assert {read_requests(each) for each in (None, {}, {"latest": 7})} == {()}
