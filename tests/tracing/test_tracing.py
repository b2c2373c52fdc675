"""Single promises of tracing: what is stored, what begins a trace of its own, what fails, what leaks nowhere."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    get_current_span,
    get_tracer,
    set_span_in_context,
    use_span,
)

import eventstore as es
import eventstore.domain as d
from eventstore import tracing
from eventstore.model import Write
from eventstore.tracing.points import POINTS, start, stop
from tests.ports import free_port
from tests.server_thread import ServerThread
from tests.tracing.kept_spans import KeptSpans, is_child, is_linked
from tests.waiting import wait_until

tracer = get_tracer("test")
LONG_AGO = 1_600_000_000_000_000


def _unsampled() -> NonRecordingSpan:
    return NonRecordingSpan(SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(0)))


async def test_an_append_is_a_child_of_what_is_current_and_leaves_it_so(tmp_path: Path, spans: KeptSpans) -> None:
    async with es.open_store(tmp_path / "data") as store:
        with tracer.start_as_current_span("request") as request:
            await store.append("a", [es.NewEvent("T", {"n": 1}), es.NewEvent("T", b"raw", b"metadata")], 0)
            assert get_current_span() is request
        first, second = [event async for event in store.read("a")]
        assert first.metadata_json()["traceparent"].split("-")[2] == f"{spans.only('append').context.span_id:016x}"
        assert second.metadata == b"metadata"
        assert is_child(spans.only("append"), spans.only("request"))
        assert is_child(spans.only("commit"), spans.only("append"))
        context = get_current_span(tracing.context_of(first)).get_span_context()
        assert context.span_id == spans.only("append").context.span_id


async def test_what_is_not_sampled_is_stored_as_without_tracing(tmp_path: Path, spans: KeptSpans) -> None:
    async with es.open_store(tmp_path / "data") as store:
        with use_span(_unsampled()):
            await store.append("a", [es.NewEvent("T", {"n": 1})], 0)
        (event,) = [event async for event in store.read("a")]
        assert event.metadata is None
        assert spans.all == ()


@pytest.mark.parametrize("metadata", [None, {}, {"by": "me"}])
async def test_a_repetition_in_another_trace_is_the_same_command(tmp_path: Path, spans: KeptSpans, metadata: Any) -> None:
    async with es.open_store(tmp_path / "data") as store:
        events, writes = [es.NewEvent("T", {}, metadata)], [Write(name, [es.NewEvent("T", {}, metadata)], 0) for name in "cd"]
        for tracing_now in (True, True, False):
            with use_span(_unsampled() if not tracing_now else tracer.start_span("request"), end_on_exit=tracing_now):
                done = await store.append("a", events, 0, "command")
                joint = await store.commit(writes, command_id="joint")
                alone = await store.commit([Write("e", events, 0)], command_id="alone")
        assert done.duplicate
        assert all(each.duplicate for each in (*joint, *alone))
        for other in ([es.NewEvent("T", {"n": 2}, metadata)], [es.NewEvent("T", {}, {"other": 1})]):
            with pytest.raises(es.CommandIdReused):
                await store.append("a", other, 0, "command")
            with pytest.raises(es.CommandIdReused):
                await store.commit([Write(name, other, 0) for name in "cd"], command_id="joint")


async def test_commits_of_one_batch_are_one_span_linked_to_each(tmp_path: Path, spans: KeptSpans) -> None:
    async with es.open_store(tmp_path / "data") as store:
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(store.append, f"a-{number}", [es.NewEvent("T")], 0)
        appends = spans.named("append", 8)
        batches = spans.named("commit")
        causes = [sum(is_child(batch, each) or is_linked(batch, each) for batch in batches) for each in appends]
        assert causes == [1] * 8
        assert len(batches) < 8


async def test_a_conflict_is_noted_by_its_type(tmp_path: Path, spans: KeptSpans) -> None:
    async with es.open_store(tmp_path / "data") as store:
        with pytest.raises(es.VersionConflict):
            await store.append("a", [es.NewEvent("T")], 7)
    span = spans.only("append")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "VersionConflict"
    assert not span.events  # whose text could quote data


def test_a_blocking_client_within_its_own_timeout_is_one_span(tmp_path: Path, spans: KeptSpans) -> None:
    with ServerThread(tmp_path / "data") as server, es.blocking.connect(server.address, timeout=30) as store:
        store.append("a", [es.NewEvent("T")], 0)
        store.append_many([es.Commit(f"b-{number}", [es.NewEvent("T")], 0) for number in range(3)])
        assert len(spans.named("append", 2)) == 2
        (event,) = store.read("b-2")
        assert event.metadata_json()["traceparent"].split("-")[2] == f"{spans.named('append', 2)[1].context.span_id:016x}"


def test_a_message_that_is_delivered_again_is_a_trace_of_its_own(tmp_path: Path, spans: KeptSpans) -> None:
    attempts: list[int] = []
    with ServerThread(tmp_path / "data") as server, es.blocking.connect(server.address) as store:
        store.broker.create_topic("orders")
        store.topic("orders").send(b"one", key="k", properties={"kind": "x"})
        with store.consumer("g", "orders", retries=es.Retries(delays=[0.001])) as consumer:

            def handle(message: es.Delivery) -> None:
                assert message.properties["kind"] == "x"
                attempts.append(message.times_failed)
                if len(attempts) == 1:
                    raise ValueError("not yet")
                consumer.stop()

            consumer.run(handle)
        sent = spans.only("send orders")
        first, again = spans.named("process orders", 2)
        assert is_child(first, sent)
        assert first.status.status_code is StatusCode.ERROR
        assert again.parent is None
        assert is_linked(again, sent)
        assert again.context.trace_id != sent.context.trace_id
        assert sent.kind is SpanKind.PRODUCER
        assert first.kind is SpanKind.CONSUMER


def test_the_messaging_conventions_are_opted_into(tmp_path: Path, spans: KeptSpans, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerThread(tmp_path / "data") as server, es.blocking.connect(server.address) as store:
        store.broker.create_topic("orders")
        for wanted, expected in (
            ("", {"eventstore.topic"}),
            (
                "http,messaging",
                {"messaging.system", "messaging.operation.name", "messaging.operation.type", "messaging.destination.name"},
            ),
        ):
            monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", wanted)
            store.topic("orders").send_many([b"one", es.NewMessage(b"two", tag="t")])
            assert set(spans.all[-1].attributes or ()) == expected


async def test_no_span_is_current_across_a_yield(tmp_path: Path, spans: KeptSpans) -> None:
    with ServerThread(tmp_path / "data") as server:
        async with es.connect(server.address) as store:
            await store.broker.create_topic("orders")
            for number in range(3):
                await store.append("a", [es.NewEvent("T")], number)
                await store.topic("orders").send(b"")
            with use_span(_unsampled()) as mine:
                async for _ in store.read("a"):
                    assert get_current_span() is mine
                async for _ in store.read_all():
                    assert get_current_span() is mine
                async for item in store.subscribe():
                    assert get_current_span() is mine
                    if isinstance(item, es.CaughtUp):
                        break
                count = 0
                async with store.consumer("g", "orders") as consumer:
                    async for message in consumer:
                        assert get_current_span() is mine
                        message.done()
                        count += 1
                        if count == 3:
                            break
                assert get_current_span() is mine


def test_every_point_is_there_and_is_put_back() -> None:
    import importlib

    def found() -> list[Any]:
        there = []
        for point in POINTS:
            owner: Any = importlib.import_module(point.module)
            for name in point.path.split("."):
                owner = getattr(owner, name)
            there.append(owner)
        return there

    before = found()
    start()
    start()
    during = found()
    stop()
    assert all(one is not other for one, other in zip(before, during, strict=True))
    assert all(one is other for one, other in zip(before, found(), strict=True))


def test_nothing_of_it_is_loaded_where_it_is_not_started() -> None:
    program = (
        "import sys, eventstore as es, eventstore.domain, eventstore.server.serve\n"
        "es.connect, es.open_store, es.blocking\n"
        "assert not [name for name in sys.modules if name.startswith(('opentelemetry', 'wrapt', 'eventstore.tracing'))]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_module_that_is_imported_later_is_traced() -> None:
    program = (
        "import sys\n"
        "from eventstore import tracing\n"
        "tracing.start()\n"
        "assert 'eventstore.store.engine' not in sys.modules\n"
        "import eventstore.store.engine as engine\n"
        "assert hasattr(engine.StoreEngine.take, '__wrapped__')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_what_is_handled_late_is_linked(tmp_path: Path, spans: KeptSpans) -> None:
    import bank

    async with es.open_store(tmp_path / "data") as store:
        opened = es.NewEvent("Opened", {"owner": "Ada"})
        await store.append("a", [opened], 0, timestamp=LONG_AGO)
        await d.project(store, bank.Balances(), d.SQLiteTarget(tmp_path / "rows.db"), until_caught_up=True)
        (projected,) = spans.named("project balances")
        assert projected.parent is None
        assert is_linked(projected, spans.only("append"))


def test_the_context_of_what_has_none_is_empty() -> None:
    event = tuple.__new__(es.Event, ("a", 1, "T", b"", None, "c", 0, 1, 0))
    assert tracing.context_of(event) == Context()
    assert not get_current_span(set_span_in_context(_unsampled(), Context())).is_recording()


async def test_where_no_trace_is_to_begin_only_what_is_inside_one_is_traced(tmp_path: Path, spans: KeptSpans) -> None:
    stop()
    start(begin=False)
    async with es.open_store(tmp_path / "data") as store:
        await store.append("a", [es.NewEvent("T")], 0)
        assert spans.all == ()
        with tracer.start_as_current_span("job"):
            await store.append("a", [es.NewEvent("T")], 1)
        assert is_child(spans.only("append"), spans.only("job"))


def test_a_server_is_traced_by_the_program_of_opentelemetry(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("opentelemetry-instrument")
    if not any(each.name == "eventstore" for each in entry_points(group="opentelemetry_instrumentor")):
        pytest.skip("the package was installed before it had this entry point")
    port, log = free_port(), tmp_path / "log"
    with log.open("wb") as out:
        command = [program, "--traces_exporter", "console", "--metrics_exporter", "none", "--logs_exporter", "none"]
        command.append(program.with_name("eventstore"))
        server = subprocess.Popen(
            [*command, "serve", "--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}"], stdout=out, stderr=out
        )
        try:
            wait_until(lambda: b"serving" in log.read_bytes() or server.poll() is not None, "it serves")
            parent = f"00-{'1' * 32}-{'2' * 16}-01"
            with es.blocking.connect(f"tcp://127.0.0.1:{port}") as store:
                store.append("a", [es.NewEvent("T", {}, {"traceparent": parent})], 0)
        finally:
            server.terminate()
            server.wait(60)
    printed = log.read_text()
    assert '"name": "commit"' in printed
    assert f'"parent_id": "0x{"2" * 16}"' in printed
