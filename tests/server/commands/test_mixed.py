"""Commands and plain appends on the same aggregates, and async handlers."""

from __future__ import annotations

import random
import threading

import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore import flat
from eventstore.domain.encoding.event_type import event_type
from eventstore.model import NewEvent, Unchanged
from eventstore.protocol.request_codec import encode_send
from eventstore.protocol.requests import WireCommand
from tests.server.commands.domain_hosts import DomainHost
from tests.server.commands.tallies import Add, AddBelow, Added, Raise, Wait, gates
from tests.server.commands.test_commands import amounts
from tests.server.conftest import Begin
from tests.server.raw import RawClient, append_frame, outcomes_of
from tests.server.test_metrics import metrics
from tests.waiting import wait_until


def added(amount: int, before: int) -> NewEvent:
    return event_type(Added).encode(Added(amount, before))


def row(command: object, command_id: str) -> WireCommand:
    raw = d.encode_command(command)
    return raw.type, raw.aggregate_id, command_id, raw.payload, None


def append(request_id: int, aggregate_id: str, expected: int | bool | None, event: NewEvent) -> bytes:
    return append_frame(request_id, (aggregate_id, expected, f"append-{request_id}", None, flat.encode(event)))


def send(request_id: int, *commands: object) -> bytes:
    rows = [row(command, f"send-{request_id}-{place}") for place, command in enumerate(commands)]
    return encode_send(request_id, [value for each in rows for value in each])


# -- plain appends --------------------------------------------------------------------------------------------------------


def test_the_next_command_sees_events_appended_by_others(host: Begin) -> None:
    """A worker still has the aggregate as it was before in memory: its command conflicts, and is handled again."""
    running = host()
    with running.connect() as store, es.blocking.connect(running.store_address) as other:
        for number in range(20):
            assert store.send(Add("a", 1)) == es.Committed("a", 2 * number + 1, 2 * number + 1)
            other.append("a", [added(10, 11 * number + 1)], 2 * number + 1)
    assert amounts(running.events("a")) == [1, 10] * 20


def test_aggregates_that_others_write_to_are_named_with_their_conflicts(host: Begin) -> None:
    """Only in a worker: the mailboxes of a server see all appends, and have no conflicts."""
    running = host(http="127.0.0.1:0")
    met = {"rare": 1, "hot": 5, "warm": 3}
    with running.connect() as store, es.blocking.connect(running.store_address) as other:
        for name, times in met.items():
            for number in range(times):
                store.send(Add(name, 1))
                other.append(name, [added(1, 2 * number + 1)], 2 * number + 1)
            store.send_many([Add(name, 1), Add(name, 1)])
        stats = store.stats()
    conflicts = sum(met.values()) if running.is_worker else 0
    assert stats["hottest_aggregates"] == ("hot: 5, warm: 3, rare: 1" if conflicts else "")
    measured = metrics(running.http)
    assert measured["eventstore_command_conflicts_total"] == stats["command_conflicts"] == conflicts
    assert measured["eventstore_command_reruns_total"] == stats["command_reruns"] >= conflicts
    assert measured["eventstore_commands_handled_total"] == sum(met.values()) + 2 * len(met) + stats["command_reruns"]
    assert measured["eventstore_command_wait_seconds_total"] > 0
    assert measured["eventstore_command_handle_seconds_total"] > 0
    assert measured["eventstore_mailbox_depth"] == 0


def test_a_command_without_events_sees_events_appended_by_others(host: Begin) -> None:
    domain = host()
    with domain.connect() as store, es.blocking.connect(domain.store_address) as other:
        store.send(Add("a", 10))
        other.append("a", [added(-8, 10)], 1)
        assert store.send(AddBelow("a", 1, 5)) == es.Committed("a", 3, 3)  # it would be refused at 10
        other.append("a", [added(-3, 3)], 3)
        assert store.send(Raise("a", 2)) == es.Committed("a", 5, 5)  # and at 3 there would be nothing to do
        other.append("a", [added(7, 2)], 5)
        with pytest.raises(es.Rejected, match="a is at 9"):
            store.send(AddBelow("a", 1, 5))
        assert store.send(Raise("a", 8)) == Unchanged("a")


def test_a_command_without_events_sees_what_a_commit_of_several_aggregates_changed(host: Begin) -> None:
    domain = host()
    with domain.connect() as store, es.blocking.connect(domain.store_address) as other:
        store.send(Add("a-{1}", 10))
        store.send(Add("b-{1}", 10))
        other.commit([es.Write("a-{1}", [added(-8, 10)], 1), es.Write("b-{1}", [added(-8, 10)], 1)])
        for name in ("a-{1}", "b-{1}"):
            assert store.send(AddBelow(name, 1, 5)).version == 3  # it would be refused at 10
        other.commit([es.Write("a-{1}", [added(-3, 3)], 3), es.Write("b-{1}", [added(-3, 3)], 3)])
        for name in ("a-{1}", "b-{1}"):
            assert isinstance(store.send(Raise(name, 2)), es.Committed)  # and at 3 there would be nothing to do


def test_commands_after_a_refused_one_keep_their_order(host: Begin) -> None:
    with host().connect() as store:
        commands = [Add("a", 4), AddBelow("a", 2, 5), Add("a", -4), AddBelow("a", 2, 5), Raise("a", 1), Add("a", 1)]
        outcomes = store.send_many([*commands, *commands])
        assert [type(outcome).__name__ for outcome in outcomes[:6]] == [
            "Committed", "Rejected", "Committed", "Committed", "Unchanged", "Committed",
        ]  # fmt: skip
        assert [type(outcome).__name__ for outcome in outcomes[6:]] == [
            "Committed", "Rejected", "Committed", "Committed", "Unchanged", "Committed",
        ]  # fmt: skip


def test_concurrent_commands_and_appends_see_the_current_state(host: Begin) -> None:
    running = host()
    committed: dict[str, int] = {}

    async def command(store: es.client.store.NetworkStore, task: int) -> None:
        for number in range(60):
            done = await store.send(Add("a", 1), f"command-{task}-{number}")
            assert isinstance(done, es.Committed)
            committed[f"command-{task}-{number}"] = done.version

    async def write(store: es.client.store.NetworkStore, task: int) -> None:
        for number in range(60):
            while True:
                events = [event async for event in store.read("a")]
                before = sum(event.json()["amount"] for event in events)
                try:
                    done = await store.append("a", [added(100, before)], len(events), f"append-{task}-{number}")
                except es.VersionConflict:
                    continue
                committed[f"append-{task}-{number}"] = done.version
                break

    async def main() -> None:
        with trio.fail_after(60):
            async with es.connect(running.address) as store, es.connect(running.store_address) as other:
                async with trio.open_nursery() as nursery:
                    for task in range(2):
                        nursery.start_soon(command, store, task)
                    nursery.start_soon(write, other, 0)

    trio.run(main)
    events = running.events("a")
    assert sorted(amounts(events)) == [1] * 120 + [100] * 60
    assert {event.command_id: event.version for event in events} == committed


def test_an_append_after_commands_is_checked_against_its_expected_version(host: Begin) -> None:
    running = host()
    if running.is_worker:
        pytest.skip("a worker takes no appends")
    with RawClient(running.port) as client:
        for number in range(100):
            name = f"a-{number}"
            burst = [
                send(2, Add(name)),
                send(3, Add(name), Add(name)),
                append(4, name, 1, added(100, 1)),
                append(5, name, True, added(100, 3)),
                append(6, name, 0, added(100, 0)),
                send(7, Add(name)),
            ]
            client.send(b"".join(burst))
            answers = dict(client.answer() for _ in burst)
            assert [outcome[:2] for outcome in outcomes_of(answers[3])] == [(0, 2), (0, 3)]
            assert outcomes_of(answers[4]) == [(2, 3, 0)]
            assert outcomes_of(answers[5])[0][:2] == (0, 4)
            assert outcomes_of(answers[6]) == [(2, 4, 0)]
            assert outcomes_of(answers[7])[0][:2] == (0, 5)
            assert amounts(running.events(name)) == [1, 1, 1, 100, 1]


def test_appends_and_commands_of_one_connection_take_effect_in_their_order(host: Begin) -> None:
    running = host()
    if running.is_worker:
        pytest.skip("a worker takes no appends")
    chance = random.Random("mixed")
    with RawClient(running.port) as client:
        for round_ in range(30):
            versions: dict[str, int] = {}
            frames, expected = [], []
            for request_id in range(2, 60):
                name = f"a-{round_}-{chance.randrange(3)}"
                version = versions[name] = versions.get(name, 0) + 1
                event = added(1, version - 1)
                frames.append(
                    append(request_id, name, version - 1, event) if chance.random() < 0.4 else send(request_id, Add(name))
                )
                expected.append((request_id, version))
            client.send(b"".join(frames))
            answers = dict(client.answer() for _ in frames)
            assert [(request_id, outcomes_of(answers[request_id])[0][1]) for request_id, _ in expected] == expected


def test_long_runs_of_commands_on_one_aggregate_conflict_with_other_appends(host: Begin) -> None:
    """More commands than a batch of the mailboxes or of the store's server holds."""
    running = host()
    through = threading.Event()

    def write() -> None:
        with es.blocking.connect(running.store_address) as other:
            while not through.is_set():
                theirs = other.append("a", [NewEvent("Written", {"text": ""})], es.ANY).version
                wait_until(lambda theirs=theirs: other.version("a") > theirs or through.is_set(), "commands are still handled")

    writer = threading.Thread(target=write)
    with running.connect() as store:
        writer.start()
        try:
            outcomes = store.send_many([Add("a", number) for number in range(12_000)])
        finally:
            through.set()
            writer.join()
    versions = [outcome.version for outcome in outcomes if isinstance(outcome, es.Committed)]
    assert len(versions) == 12_000
    assert versions == sorted(versions)
    added = [event.json() for event in running.events("a") if event.type == "Added"]
    assert [each["amount"] for each in added] == list(range(12_000))
    assert [each["before"] for each in added] == [number * (number - 1) // 2 for number in range(12_000)]


# -- async handlers -------------------------------------------------------------------------------------------------------


def waiting(running: DomainHost, name: str) -> bool:
    return running.ask(lambda: name in gates)


def release(running: DomainHost, name: str) -> None:
    running.ask(lambda: gates.pop(name).set())


def test_an_async_handler_holds_only_its_own_aggregate(host: Begin) -> None:
    running = host(mailboxes=1)
    with RawClient(running.port) as client:
        client.send(send(2, Wait("a")))
        client.send(send(3, Add("a", 5)))
        wait_until(lambda: waiting(running, "a"), "the handler waits")
        client.send(send(4, *[Add(f"b-{number}") for number in range(100)]))
        assert client.answer()[0] == 4
        assert client.quiet()
        release(running, "a")
        assert [client.answer()[0] for _ in range(2)] == [2, 3]
    assert amounts(running.events("a")) == [1, 5]


def test_an_async_handler_whose_aggregate_was_changed_meanwhile_runs_again(host: Begin) -> None:
    running = host()
    with running.connect() as store, es.blocking.connect(running.store_address) as other:
        store.send(Add("a"))
        if running.is_worker:
            with RawClient(running.port) as client:
                client.send(send(2, Wait("a")))
                wait_until(lambda: waiting(running, "a"), "the handler waits")
                other.append("a", [added(10, 1)], 1)
                release(running, "a")
                wait_until(lambda: waiting(running, "a"), "the handler runs again")
                release(running, "a")
                assert outcomes_of(client.answer()[1])[0][:2] == (0, 3)
            assert amounts(running.events("a")) == [1, 10, 1]
        assert store.send(AddBelow("a", 1, 100)).version > 1  # type: ignore[union-attr] # it is committed


def test_a_command_that_finds_its_aggregate_created_by_another_writer_is_logged_and_counted(
    host: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    """Only in a worker: in a server the append waits for the command before it."""
    running = host()
    if not running.is_worker:
        return
    with running.connect() as store, es.blocking.connect(running.store_address) as other, RawClient(running.port) as client:
        for number, name in enumerate(("new", "newer-{new}")):  # of one shard: each logs for itself
            client.send(send(2 + number, Wait(name)))
            wait_until(lambda name=name: waiting(running, name), "the handler waits")
            other.append(name, [added(10, 0)], 0)
            release(running, name)
            wait_until(lambda name=name: waiting(running, name), "the handler runs again")
            release(running, name)
            assert outcomes_of(client.answer()[1])[0][:2] == (0, 2)
        assert store.stats()["command_creation_races"] == 2
    said = [record.getMessage() for record in caplog.records if "would have created" in record.getMessage()]
    assert len(said) == 1, "the log is bounded"
    assert "command 'send-2-0' would have created aggregate 'new'" in said[0]
    assert "version 1" in said[0]
    assert amounts(running.events("new")) == [10, 1]
