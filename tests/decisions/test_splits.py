"""Decisions that were made before a split of their shard hold after it, whatever map the client knows."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

import eventstore as es
from eventstore.records.slots import slot_of
from tests.cluster.led_shards import LedShards
from tests.server.commands.enrolments import Enrol, Offer
from tests.server.work.worker_thread import WorkerThread

COURSE = es.Query(tags=["course:c1"])


def tagged(*tags: str) -> list[es.NewEvent]:
    return [es.NewEvent("Subscribed", b"", tags=tags)]


def test_a_place_of_before_a_split_is_led_through_it(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1) as shards, ExitStack() as stack:
        knowing, late = (stack.enter_context(es.blocking.connect(shards.address)) for _ in range(2))
        leaving = shards.leaving_id(0)
        staying = next(name for name in map("s-{}".format, range(100)) if slot_of(name) < slot_of(leaving))
        for scope in (staying, leaving):
            knowing.append(f"x-{{{scope}}}", tagged("course:c0"), 0)
        names = {f"x-{{{scope}}}": scope for scope in (staying, leaving)}
        assert [slot_of(name) for name in names] == [slot_of(staying), slot_of(leaving)]
        _, before = knowing.query(COURSE)
        write = {scope: [es.Write(f"d-{{{scope}}}", tagged("course:c1"), 0)] for scope in (staying, leaving)}
        first = {
            scope: knowing.commit(write[scope], unless=COURSE, after=before, command_id="c-1") for scope in (staying, leaving)
        }
        shards.split(0)
        assert shards.owner(staying) != shards.owner(leaving)
        for store in (late, knowing, stack.enter_context(es.blocking.connect(shards.address))):
            for scope in (staying, leaving):
                again = store.commit(write[scope], unless=COURSE, after=before, command_id="c-1")
                assert again == [each._replace(duplicate=True) for each in first[scope]]
                with pytest.raises(es.ConditionFailed) as error:
                    store.commit(write[scope], unless=COURSE, after=before, command_id="c-2")
                assert error.value.fields["aggregate_id"] == f"d-{{{scope}}}"
                other = es.Write(f"e-{{{scope}}}", tagged("course:c2"), es.ANY)
                assert store.commit([other], unless=es.Query(tags=["course:c3"]), after=before)[0].version > 0
        events, now = late.query(COURSE)
        assert sorted(event.aggregate_id for event in events) == sorted(f"d-{{{scope}}}" for scope in (staying, leaving))
        for scope in (staying, leaving):
            (done,) = late.commit([es.Write(f"d-{{{scope}}}", tagged("course:c1"), 1)], unless=COURSE, after=now)
            assert done.version == 2
            with pytest.raises(es.ConditionFailed):
                knowing.commit([es.Write(f"d-{{{scope}}}", tagged("course:c1"), 2)], unless=COURSE, after=now)
        with pytest.raises(es.CrossShard):
            late.commit([es.Write(f"d-{{{staying}}}", tagged(), es.ANY)], unless=COURSE, scope=f"{{{leaving}}}")
        assert [len(late.query(COURSE, place)[0]) for place in (before, now)] == [4, 2]


def test_a_worker_decides_on_models_of_before_a_split(tmp_path: Path) -> None:
    domain = "tests.server.commands.enrolments:app"
    with LedShards(tmp_path, 1) as shards, WorkerThread(shards.address, None, domain=domain) as worker:
        leaving = shards.leaving_id(0)
        staying = next(name for name in map("s-{}".format, range(100)) if slot_of(name) < slot_of(leaving))
        with es.blocking.connect(worker.address) as store, es.blocking.connect(shards.address) as other:
            for scope in (staying, leaving):
                store.send(Offer(f"o-{{{scope}}}", scope, 3))
                store.send(Enrol(f"e-{{{scope}}}-1", scope, "s1"), f"k-{scope}")
            shards.split(0)
            for scope in (staying, leaving):
                assert store.send(Enrol(f"e-{{{scope}}}-1", scope, "s1"), f"k-{scope}").duplicate
                with pytest.raises(es.Rejected, match="enrolled"):
                    store.send(Enrol(f"e-{{{scope}}}-2", scope, "s1"))
                event = es.NewEvent("Enrolled", {"course": scope, "student": "s2"}, tags=[f"course:{scope}", "student:s2"])
                other.append(f"theirs-{{{scope}}}", [event], 0)
                assert store.send(Enrol(f"e-{{{scope}}}-3", scope, "s3")).version == 1
                with pytest.raises(es.Rejected, match="full"):
                    store.send(Enrol(f"e-{{{scope}}}-4", scope, "s4"))
