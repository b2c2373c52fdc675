"""A handler that waits delays the commands of its own aggregate: not those that were sent with them, or after them."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore import flat
from eventstore.protocol.answers import Ok, Outcomes, SomeOutcomes
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Append, FindCommand, Hello, Ping, Send
from tests.server.commands.domain_hosts import DomainHost
from tests.server.commands.tallies import Add, AddBelow, Wait
from tests.server.commands.test_commands import amounts
from tests.server.commands.test_mixed import release, row, waiting
from tests.server.conftest import Begin
from tests.server.raw import RawClient, append_frame, outcomes_of
from tests.waiting import DEADLINE_SECONDS, eventually, wait_until

Step = Callable[[es.NetworkStore], Awaitable[None]]


def with_client(running: DomainHost, step: Step) -> None:
    async def main() -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            async with es.connect(running.address) as store:
                await step(store)

    trio.run(main)


async def is_waiting(running: DomainHost, name: str) -> None:
    async def asked() -> bool:
        return await trio.to_thread.run_sync(functools.partial(waiting, running, name))

    await eventually(asked, "the handler waits")


def test_commands_of_other_aggregates_are_answered_while_handlers_wait(host: Begin) -> None:
    running = host()

    async def main(store: es.NetworkStore) -> None:
        outcomes: dict[str, object] = {}

        async def send(name: str) -> None:
            outcomes[name] = await store.send(Wait(name))

        async with trio.open_nursery() as nursery:
            for name in ("s-1", "s-2", "s-3", "s-4", "s-5", "s-6"):
                nursery.start_soon(send, name)
                await is_waiting(running, name)  # so that each has a frame of its own
            for number in range(100):
                assert isinstance(await store.send(Add("fast", number)), es.Committed)
            many = await store.send_many([Add(f"b-{number}") for number in range(500)])
            assert all(isinstance(each, es.Committed) for each in many)
            assert not outcomes
            for name in ("s-1", "s-2", "s-3", "s-4", "s-5", "s-6"):
                await trio.to_thread.run_sync(release, running, name)
        assert all(isinstance(each, es.Committed) for each in outcomes.values())

    with_client(running, main)


def test_a_command_sent_with_a_slow_one_is_answered_before_it(host: Begin) -> None:
    running = host()

    async def main(store: es.NetworkStore) -> None:
        slow, fast = trio.Event(), trio.Event()

        async def send(command: object, done: trio.Event) -> None:
            await store.send(command)
            done.set()

        async def send_both() -> None:
            outcomes = await store.send_many([Add("f", 1), Wait("s"), AddBelow("f", 9, 5), Add("f", 2)])
            assert [type(each) for each in outcomes] == [es.Committed, es.Committed, es.Rejected, es.Committed]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, Wait("slow"), slow)
            nursery.start_soon(send, Add("fast"), fast)
            nursery.start_soon(send_both)
            await fast.wait()
            assert not slow.is_set()
            for name in ("s", "slow"):
                await is_waiting(running, name)
                await trio.to_thread.run_sync(release, running, name)
            await slow.wait()

    with_client(running, main)
    assert amounts(running.events("f")) == [1, 2]


def test_a_client_that_takes_no_parts_gets_one_answer(host: Begin) -> None:
    running = host()
    with RawClient(running.port) as client:
        sent = client.send_request(Send([row(Add("a"), "c-1"), row(Wait("s"), "c-2")]))
        wait_until(lambda: waiting(running, "s"), "the handler waits")
        release(running, "s")
        request_id, answer = client.answer()
    assert request_id == sent
    assert [outcome[0] for outcome in outcomes_of(answer)] == [0, 0]
    assert isinstance(answer, Outcomes)
    assert answer.durability is None, "a client that does not ask is not told"


def test_every_answer_says_how_durable_its_commits_are_if_the_client_asks(host: Begin) -> None:
    running = host()
    told: list[int | None] = []
    with RawClient(running.port, greet=False) as client:
        client.ask(Hello(1, "raw", durability=True))
        requests: list[Request] = [Send([row(Add("a"), "c-1")])] * 2
        if not running.is_worker:
            requests.append(Append([("p", 0, "c-1", None, flat.encode(es.NewEvent("T")))]))
        for request in requests:
            answer = client.ask(request)
            assert isinstance(answer, Outcomes)
            told.append(answer.durability)
        if not running.is_worker:
            assert client.ask(FindCommand("p", "c-1")) == Ok((1, 2, 1))
    with RawClient(running.port, greet=False) as client:
        client.ask(Hello(1, "raw", in_parts=True, durability=True))
        client.send_request(Send([row(Wait("s"), "c-3")]))
        wait_until(lambda: waiting(running, "s"), "the handler waits")
        _, first = client.answer()
        release(running, "s")
        for answer in (first, client.answer()[1]):
            assert isinstance(answer, SomeOutcomes)
            told.append(answer.durability)
    assert told == [1] * len(told)


def test_parts_name_the_places_of_their_commands_and_the_last_one_ends_the_request(host: Begin) -> None:
    running = host()
    with RawClient(running.port, greet=False) as client:
        client.ask(Hello(1, "raw", in_parts=True))
        sent = client.send_request(Send([row(Wait("s"), "c-1"), row(Add("a"), "c-2"), row(Wait("t"), "c-3")]))
        places = parts(client, sent, until=[1])
        for name, place in (("t", 2), ("s", 0)):
            wait_until(lambda name=name: waiting(running, name), "the handler waits")
            release(running, name)
            places += parts(client, sent, until=[place])
        assert places == [1, 2, 0]
        assert client.ask(Ping()) == Ok()


def test_an_aggregate_that_waits_does_not_fill_the_mailbox_of_others(host: Begin) -> None:
    running = host(mailboxes=1, mailbox_capacity=64)
    with RawClient(running.port) as client, RawClient(running.port) as repeating, running.connect() as store:
        client.send_request(Send([row(Wait("a"), "c")]))
        wait_until(lambda: waiting(running, "a"), "the handler waits")
        client.send_request(Send([row(Add("a"), f"c-{number}") for number in range(100)]))
        wait_until(lambda: running.stats()["mailbox_depth"] == 32, "half of the mailbox is full")
        repeating.send_request(Send([row(Add("a"), "c-1")] * 100))
        wait_until(lambda: running.stats()["mailbox_depth"] == 48, "repetitions wait, up to a bound")
        for number in range(3):
            assert store.send(Add("b")) == es.Committed("b", number + 1, number + 1)
            with pytest.raises(es.Overloaded, match="aggregate 'a', which waits, in mailbox 0 holds 32"):
                store.send(Add("a"))
        release(running, "a")
        assert outcomes_of(client.answer()[1])[0][0] == 0
        outcomes = outcomes_of(client.answer()[1])
        assert [outcome[0] for outcome in outcomes] == [0] * 31 + [3] * 69
        repeated = outcomes_of(repeating.answer()[1])
        assert [outcome[0] for outcome in repeated] == [1] * 16 + [3] * 84
        assert isinstance(store.send(Add("a")), es.Committed)


@pytest.mark.parametrize("together", [True, False])
def test_plain_appends_to_other_aggregates_are_answered_while_one_waits_for_a_handler(host: Begin, together: bool) -> None:
    running = host()
    if running.is_worker:
        pytest.skip("a worker takes no appends")

    async def main(store: es.NetworkStore) -> None:
        done: list[str] = []

        async def append(name: str) -> None:
            await store.append(name, [es.NewEvent("Noted")], es.ANY)
            done.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.send, Wait("busy"))
            await is_waiting(running, "busy")
            for name in ("busy", "a", "b", "c"):  # of one round: they travel in one frame
                nursery.start_soon(append, name)
                if not together:
                    await trio.testing.wait_all_tasks_blocked()
            await eventually_done(done, {"a", "b", "c"})
            for number in range(20):
                await append(f"d-{number}")
            outcomes = await store.append_many([es.Commit(name, [es.NewEvent("Noted")], es.ANY) for name in "ef"])
            assert all(isinstance(each, es.Committed) for each in outcomes)
            assert "busy" not in done
            await trio.to_thread.run_sync(release, running, "busy")
        assert done[-1] == "busy"

    with_client(running, main)


def test_an_append_that_waits_does_not_hold_up_those_of_other_connections(host: Begin) -> None:
    """Not in the same turn of the server either, nor a client that takes no answers in parts."""
    running = host()
    if running.is_worker:
        pytest.skip("a worker takes no appends")
    event = flat.encode(es.NewEvent("Noted"))
    with RawClient(running.port) as client:
        client.send_request(Send([row(Wait("busy"), "c-1")]))
        wait_until(lambda: waiting(running, "busy"), "the handler waits")
        frames = [append_frame(90 + place, (name, None, f"c-{name}", None, event)) for place, name in enumerate(("busy", "a"))]
        client.send(b"".join(frames))
        assert client.answer()[0] == 91
        release(running, "busy")
        assert [client.answer()[0] for _ in range(2)][1] == 90


def test_of_a_frame_of_appends_those_to_a_full_aggregate_are_refused_alone(host: Begin) -> None:
    running = host(mailboxes=1, mailbox_capacity=64)
    if running.is_worker:
        pytest.skip("a worker takes no appends")
    with RawClient(running.port) as client, running.connect() as store:
        client.send_request(Send([row(Wait("busy"), "c")]))
        wait_until(lambda: waiting(running, "busy"), "the handler waits")
        client.send_request(Send([row(Add("busy"), f"c-{number}") for number in range(40)]))
        wait_until(lambda: running.stats()["mailbox_depth"] == 32, "half of the mailbox is full")
        commits = [es.Commit(name, [es.NewEvent("Noted")], es.ANY) for name in ("a", "busy", "b")]
        outcomes = store.append_many(commits)
        assert [type(each) for each in outcomes] == [es.Committed, es.Overloaded, es.Committed]
        release(running, "busy")


async def eventually_done(done: list[str], names: set[str]) -> None:
    async def all_done() -> bool:
        return names <= set(done)

    await eventually(all_done, f"{names} are answered")


def parts(client: RawClient, request_id: int, until: list[int]) -> list[int]:
    """Returns the places in the next answer that is not empty."""
    while True:
        answered, answer = client.answer()
        assert answered == request_id
        assert isinstance(answer, SomeOutcomes)
        if answer.values:
            assert list(answer.values[0::4]) == until
            assert list(answer.values[1::4]) == [0] * len(until)
            return until
