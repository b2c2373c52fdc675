"""Subscriptions over TCP: credit is exact, nothing follows an end, and a slow subscriber does not affect others."""

from __future__ import annotations

import os
import re
import threading
from contextlib import ExitStack

import pytest
import trio

import eventstore as es
from eventstore import flat
from eventstore.errors import InvalidArgument
from eventstore.event_identity import LogPosition
from eventstore.protocol.broker_requests import Pull
from eventstore.protocol.limits import CREDIT_BYTES_DEFAULT
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Credit, Ping, ReadAll, Subscribe, Unsubscribe, Version
from eventstore.records.event_page import decode_page
from eventstore.server.serve import Server
from tests.server.conftest import Serve
from tests.server.raw import Failure, Ok, Page, RawClient, append_frame, commit, outcomes_of
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, wait_until


def append(port: int, aggregate_id: str, numbers: range, size: int = 10) -> None:
    with RawClient(port) as client:
        for number in numbers:
            client.send(append_frame(5, commit(aggregate_id, f"c-{number}", bytes(size))))
            assert outcomes_of(client.answer()[1])[0][0] == 0


def grant(client: RawClient, subscription: int, credit: int) -> None:
    client.send(encode_request(0, Credit(subscription, credit)))


def is_idle(client: RawClient, port: int) -> bool:
    """Whether the server sends nothing, although it has served other clients several times since."""
    for _ in range(3):
        with RawClient(port) as other:
            other.send_request(Subscribe())
            other.answer()
    return client.ask(Ping()) == Ok() and client.quiet()


def sequences(page: object) -> list[int]:
    assert isinstance(page, Page)
    return [event.sequence for event in decode_page(page.records)]


def test_subscribers_that_wait_for_the_disk_delay_neither_writes_nor_reads(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    append(server.port, "a", range(3))
    free, stuck, pread = threading.Event(), threading.Semaphore(0), os.pread

    def waiting(descriptor: int, length: int, offset: int) -> bytes:
        stuck.release()
        free.wait(20)
        return pread(descriptor, length, offset)

    def borrowed(_: Server) -> int:
        return int(trio.to_thread.current_default_thread_limiter().borrowed_tokens)

    with RawClient(server.port) as subscriber, RawClient(server.port) as client:
        monkeypatch.setattr(os, "pread", waiting)
        for _ in range(60):
            subscriber.send_request(Subscribe())
        assert stuck.acquire(timeout=20)
        append(server.port, "b", range(20))
        assert client.ask(Version("b")) == Ok((20,))
        assert server.ask(borrowed) == 0
        assert not free.is_set()
        free.set()
        assert subscriber.answer()


def test_credit_is_kept_to_the_byte(serve: Serve) -> None:
    server = serve()
    append(server.port, "a", range(200), size=1_000)
    with RawClient(server.port) as client:
        subscription = client.send_request(Subscribe(credit=1))
        credit, seen = 1, []
        while len(seen) < 200:
            request_id, answer, size = client.sized_answer()
            assert request_id == subscription
            assert credit > 0, "a page was sent without credit"
            seen += sequences(answer)
            credit -= size
            if credit <= 0:
                assert is_idle(client, server.port)
                grant(client, subscription, -credit)  # now it is 0, and still nothing may come
                assert is_idle(client, server.port)
                credit = len(seen) * 37 % 9_000 + 1
                grant(client, subscription, credit)
        assert seen == list(range(1, 201))


def test_a_page_is_about_as_large_as_the_credit(serve: Serve) -> None:
    server = serve()
    append(server.port, "a", range(100), size=1_000)
    for credit in (1, 1_000, 5_000, 30_000):
        with RawClient(server.port) as client:
            client.send_request(Subscribe(credit=credit))
            _, _, size = client.sized_answer()
            assert size < credit + 1_200


def test_without_credit_nothing_is_sent(shared: ServerThread) -> None:
    with RawClient(shared.port) as client:
        subscription = client.send_request(Subscribe(credit=0))
        append(shared.port, "without-credit", range(3))
        assert is_idle(client, shared.port)
        grant(client, subscription, CREDIT_BYTES_DEFAULT)
        assert client.answer()[0] == subscription


def test_credit_for_an_unknown_subscription_is_ignored(shared: ServerThread) -> None:
    with RawClient(shared.port) as client:
        grant(client, 77, 1_000)
        assert is_idle(client, shared.port)


def test_no_page_is_sent_after_the_end_of_its_subscription(serve: Serve) -> None:
    server = serve()
    append(server.port, "a", range(50), size=20_000)
    for pages in (0, 1, 2):
        with RawClient(server.port) as client:
            subscription = client.send_request(Subscribe(credit=1024 * 1024 * 1024))
            for _ in range(pages):
                assert client.answer()[0] == subscription
            end = client.send_request(Unsubscribe(subscription))
            while (answer := client.answer())[0] == subscription:
                assert isinstance(answer[1], Page)
            assert answer == (end, Ok())
            append(server.port, f"after {pages}", range(3))
            assert is_idle(client, server.port)


def test_a_page_that_is_being_made_when_its_subscription_ends_is_not_sent(serve: Serve) -> None:
    server = serve()
    events = flat.encode(flat.chain((0, "T", b"", None) for _ in range(20_000)))
    nothing = ("Nothing",)  # so that it takes long to find none
    with RawClient(server.port) as client:
        for number in range(3):
            client.send(append_frame(1_000, ("a", None, f"c-{number}", None, events)))
            client.answer()
        for _ in range(10):
            subscription = client.send_request(Subscribe(types=nothing))
            answers = {subscription}
            for request in Ping(), Unsubscribe(subscription):
                asked = client.send_request(request)
                while (answered := client.answer()[0]) != asked:  # its page, which was made before it ended
                    answers.remove(answered)
            again = client.send_request(Subscribe(types=nothing))
            assert client.answer()[0] == again
            assert client.ask(Unsubscribe(again)) == Ok()


def test_ending_an_unknown_subscription_succeeds(shared: ServerThread) -> None:
    with RawClient(shared.port) as client:
        assert client.ask(Unsubscribe(77)) == Ok()


def test_a_request_id_has_one_subscription_and_their_number_is_bounded(shared: ServerThread) -> None:
    with RawClient(shared.port) as client:
        client.send(encode_request(1_000, Subscribe(after=None)) * 2)
        answers = [client.answer() for _ in range(2)]
        assert [request_id for request_id, _ in answers] == [1_000, 1_000]
        assert sum(isinstance(answer, Page) for _, answer in answers) == 1
        for number in range(1_001, 1_064):
            client.send(encode_request(number, Subscribe(after=None)))
            assert isinstance(client.answer()[1], Page)
        client.send(encode_request(1_064, Subscribe(after=None)))
        request_id, error = client.error()
        assert (request_id, type(error), error.fields["limit"]) == (1_064, InvalidArgument, 64)
        assert client.ask(Unsubscribe(1_001)) == Ok()
        client.send(encode_request(1_065, Subscribe(after=None)))
        assert isinstance(client.answer()[1], Page)


@pytest.mark.heavy
def test_many_subscribers_all_see_everything_in_order(serve: Serve) -> None:
    server = serve()
    append(server.port, "a", range(20))
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.port)) for _ in range(60)]
        for number, client in enumerate(clients):
            client.send_request(Subscribe(after=number % 20))
        append(server.port, "b", range(40))
        for number, client in enumerate(clients):
            seen: list[int] = []
            while not seen or seen[-1] < 60:
                seen += [sequence for sequence in sequences(client.answer()[1]) if sequence > number % 20]
            assert seen == list(range(number % 20 + 1, 61))


def test_a_subscriber_that_does_not_read_does_not_delay_others(serve: Serve) -> None:
    server = serve(unsent_bytes_max=64 * 1024)
    append(server.port, "a", range(30), size=100_000)
    with RawClient(server.port, receive_buffer_bytes=4_096) as stuck, RawClient(server.port) as client:
        stuck.send_request(Subscribe(credit=1024 * 1024 * 1024))
        client.send_request(Subscribe(credit=1024 * 1024 * 1024))
        seen: list[int] = []
        while len(seen) < 30:
            seen += sequences(client.answer()[1])
        append(server.port, "b", range(30), size=100_000)
        while len(seen) < 60:
            seen += sequences(client.answer()[1])
        assert seen == list(range(1, 61))
        late: list[int] = []
        stuck.hurry()
        while len(late) < 60:
            late += sequences(stuck.answer()[1])
        assert late == seen


class Tasks(trio.abc.Instrument):
    """The most tasks of subscriptions and pulls that there were at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        trio.lowlevel.add_instrument(self)

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.now += task.name.endswith(("Subscriptions._serve", "MessagePulls._serve"))
        self.most = max(self.most, self.now)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self.now -= task.name.endswith(("Subscriptions._serve", "MessagePulls._serve"))


@pytest.mark.parametrize("request_", [Subscribe(), Pull(1, 1000, 60_000, wants=(("topic", 0, 0, None),))])
def test_what_is_ended_at_once_has_no_tasks_that_pile_up(serve: Serve, request_: Request) -> None:
    server = serve()
    tasks = server.ask(lambda _: Tasks())
    with es.blocking.connect(server.address) as store, RawClient(server.port) as client:
        store.broker.create_topic("topic", 1)
        pairs = (encode_request(n, request_) + encode_request(n + 1, Unsubscribe(n)) for n in range(2, 602, 2))
        client.send(b"".join(pairs))
        while client.answer()[0] != 601:
            pass
    wait_until(lambda: server.ask(lambda _: tasks.now) == 0, "all have ended")
    assert tasks.most <= 8, "not one for each of the 300"


def test_subscriptions_end_with_their_connection(serve: Serve) -> None:
    server = serve()
    with RawClient(server.port) as other:
        for number in range(20):
            client = RawClient(server.port)
            for _ in range(3):
                client.send_request(Subscribe(credit=number % 3))
            client.cut() if number % 2 else client.close()
        append(server.port, "a", range(3))
        assert other.ask(Ping()) == Ok()
    server.stop()  # waits for every task


def test_no_append_comes_between_asking_for_the_end_and_subscribing(serve: Serve) -> None:
    """Both travel in one packet: the server decides where the end is when it takes the request."""
    server = serve()
    append(server.port, "a", range(3))
    with RawClient(server.port) as client:
        client.send(encode_request(1, Subscribe(after=None)) + append_frame(2, commit("a", "next", b"4")))
        pages = [page for _, page in (client.answer() for _ in range(3)) if isinstance(page, Page)]
    assert [(page.next, page.at_end, sequences(page)) for page in pages] == [(3, True, []), (4, True, [4])]


def test_a_subscription_whose_filter_passes_nothing_has_caught_up_once_what_was_there_is_durable(serve: Serve) -> None:
    server = serve(durability="async", flush_interval_s=1.0)

    async def main() -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            async with es.connect(server.address) as store:
                done = await store.append("a", [es.NewEvent("T")], 0)
                async with store.subscribe(types=["Other"]) as items:
                    caught_up = await anext(items)
                    assert isinstance(caught_up, es.CaughtUp)
                    assert caught_up.sequence == done.sequence

    trio.run(main)


@pytest.mark.parametrize("ask", [ReadAll, Subscribe])
def test_a_place_in_another_history_is_answered_by_diverged_whatever_the_filter(
    serve: Serve, ask: type[ReadAll] | type[Subscribe]
) -> None:
    server = serve()
    append(server.port, "a", range(3))
    with RawClient(server.port) as client:
        page = client.ask(ReadAll())
        assert isinstance(page, Page)
        second = LogPosition.at(decode_page(page.records)[1])
        assert sequences(client.ask(ask(str(second)))) == [3]
        for wrong, why in (
            (LogPosition(2, "00000000"), "has another event there"),
            (LogPosition(9, second.identity), "ends at|no such event"),
        ):
            for types in ((), ("Other",)):
                refused = client.ask(ask(str(wrong), types=types))
                assert isinstance(refused, Failure)
                assert isinstance(refused.error, es.Diverged)
                assert re.search(why, refused.error.message)
