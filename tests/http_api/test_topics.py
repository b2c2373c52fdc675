"""Messages over HTTP: sent, pulled with receipts, finished; and what is not finished comes again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trio

from eventstore import blocking
from eventstore.client.aio.consumer import Consumer
from eventstore.client.aio.store import NetworkStore
from eventstore.errors import PermissionDenied
from eventstore.http_api import group_members, topics
from tests.http_api.asking import Api
from tests.http_api.conftest import Serve
from tests.security.access_file import give
from tests.server_thread import ServerThread
from tests.waiting import wait_until

ORDERS = "/api/topics/orders/messages"
PULL = "/api/groups/billing/pull"
FINISH = "/api/groups/billing/finish"


@pytest.fixture
def server(serve: Serve) -> ServerThread:
    """Has the topic `orders` of one queue, and retries at once, twice."""
    served: ServerThread = serve(broker_retry_delays_s="0.05")
    with blocking.connect(served.address) as store:
        store.broker.create_topic("orders", 1)
    return served


@pytest.fixture
def api(server: ServerThread) -> Api:
    return Api(server)


@pytest.fixture
def store(server: ServerThread) -> Iterator[blocking.BlockingStore]:
    with blocking.connect(server.address) as opened:
        yield opened


def send(api: Api, *bodies: object, **more: Any) -> list[Any]:
    answer = api.post(ORDERS, {"messages": [{"body": each, **more} for each in bodies]}, None)
    assert answer.status == 201, answer.text
    return list(answer.json["messages"])


def pull(api: Api, *, group: str = "billing", **more: Any) -> list[Any]:
    answer = api.post(f"/api/groups/{group}/pull", {"topics": ["orders"], "wait_s": 10, **more}, None)
    assert answer.status == 200, answer.text
    return list(answer.json["messages"])


def done(api: Api, *messages: Any) -> Any:
    return api.post(FINISH, {"done": [each["receipt"] for each in messages]}, None).json


def test_what_is_sent_is_pulled_and_what_is_done_does_not_come_again(api: Api, store: blocking.BlockingStore) -> None:
    sent = send(api, {"order": 1}, "two", None, key="k", tag="paid", properties={"by": "ada"})
    assert [(each["queue"], each["queue_offset"]) for each in sent] == [(0, 0), (0, 1), (0, 2)]
    pulled = pull(api, limit=2) + pull(api)
    assert [each["body"] for each in pulled] == [{"order": 1}, "two", None]
    assert [each["message_id"] for each in pulled] == [each["message_id"] for each in sent]
    for each in pulled:
        assert (each["topic"], each["key"], each["tag"], each["properties"]) == ("orders", "k", "paid", {"by": "ada"})
        assert each["times_failed"] == 0
    assert done(api, *pulled) == {"finished": 3, "unknown": []}
    assert done(api, pulled[0]) == {"finished": 0, "unknown": [pulled[0]["receipt"]]}
    wait_until(lambda: [each.offset for each in store.broker.group("billing").queues] == [3], "the offset is committed")
    assert pull(api, wait_s=0) == []


def test_a_topic_is_created_once(api: Api, store: blocking.BlockingStore) -> None:
    def put(path: str, body: bytes) -> Any:
        return api.ask("PUT", path, body, Content_Type="application/json")

    first, again = (put("/api/topics/bills", b'{"queues": 3}') for _ in range(2))
    assert (first.status, first.json) == (201, {"topic": "bills", "new": True})
    assert (again.status, again.json) == (200, {"topic": "bills", "new": False})
    assert len(store.broker.queues("bills")) == 3
    assert put("/api/topics/bills", b"{}").status == 200
    assert put("/api/topics/a%20b", b"{}").error == (400, "InvalidArgument")
    assert put("/api/topics/more", b'{"queues": 257}').error == (400, "InvalidArgument")
    assert put("/api/topics/more", b'{"queues": "1"}').error == (400, "InvalidArgument")


def test_bytes_and_json_keep_their_spelling(api: Api, store: blocking.BlockingStore) -> None:
    for body in (b"\x00\xff", b"", b'{"a": 1.50}', b"NaN", b"[1,\n2]"):
        store.topic("orders").send(body)
    answer = api.post(PULL, {"topics": ["orders"]}, None)
    assert [each.get("body_base64") for each in answer.json["messages"]] == ["AP8=", "", None, "TmFO", None]
    assert '"body":{"a": 1.50}' in answer.text
    assert answer.json["messages"][4]["body"] == [1, 2]
    assert api.post(ORDERS, {"messages": [{"body_base64": "AP8="}]}, None).status == 201
    (last,) = pull(api)
    assert last["body_base64"] == "AP8="


def test_what_has_failed_comes_again_and_is_a_dead_letter_at_last(api: Api, store: blocking.BlockingStore) -> None:
    send(api, 1)
    for times in (0, 1):
        (message,) = pull(api)
        assert message["times_failed"] == times
        failed = {"failed": [{"receipt": message["receipt"], "reason": "no stock"}]}
        assert api.post(FINISH, failed, None).json == {"finished": 1, "unknown": []}
    wait_until(lambda: store.broker.dead_letters("billing"), "it is a dead letter")
    (letter,) = store.broker.dead_letters("billing")
    assert (letter.body, letter.properties[":reason"]) == (b"1", "no stock")


def test_a_message_that_nobody_finishes_in_time_has_failed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    send(api, 1)
    (message,) = pull(api, finish_within_s=1)
    (again,) = pull(api)
    assert (again["body"], again["times_failed"]) == (1, 1)
    assert done(api, message)["unknown"] == [message["receipt"]]
    assert done(api, again)["unknown"] == []


def test_a_member_that_nobody_uses_leaves_and_what_it_held_is_another_ones(
    api: Api, store: blocking.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_members, "IDLE_S", 0.2)
    send(api, 1, 2)
    (message,) = pull(api, limit=1)
    assert len(store.broker.members("billing")) == 1, "it stays while a message is in hand"
    done(api, message)
    wait_until(lambda: not store.broker.members("billing"), "it has left")
    with store.consumer("billing", "orders") as consumer:
        assert next(iter(consumer)).body == b"2"


def test_clients_that_pull_at_once_share_the_messages(api: Api) -> None:
    with ThreadPoolExecutor(4) as threads:
        pulls = [threads.submit(pull, api, limit=5) for _ in range(4)]
        wait_until(lambda: api.get("/api/openapi.json").status == 200, "others are answered meanwhile")
        send(api, *range(20))
        pulled = [each for one in pulls for each in one.result()]
    while len(pulled) < 20:
        pulled += pull(api)
    assert sorted(each["body"] for each in pulled) == list(range(20))


def test_tags_choose_and_the_order_of_a_key_is_kept(api: Api) -> None:
    send(api, 1, 2, tag="paid", key="k")
    send(api, 3, tag="cancelled", key="k")
    asked = {"topics": {"orders": "paid"}, "order": "key"}
    (first,) = pull(api, **asked)
    assert (first["body"], pull(api, **asked, wait_s=0)) == (1, [])
    done(api, first)
    (second,) = pull(api, **asked)
    assert second["body"] == 2
    refused = api.post(PULL, {"topics": ["orders"]}, None)
    assert refused.error == (400, "InvalidArgument"), "other tags than another member of the group"


def test_a_client_that_goes_away_while_it_waits_takes_nothing_with_it(api: Api) -> None:
    with api.stream() as events:  # a connection that stays open while others come and go
        assert events.next().name == "caught-up"
        with pytest.raises(TimeoutError):
            impatient(api)
        send(api, 1)
        (message,) = pull(api)
        assert message["times_failed"] == 0
    done(api, message)


def impatient(api: Api) -> None:
    from http.client import HTTPConnection

    connection = HTTPConnection(api.host, timeout=0.3)
    try:
        connection.request("POST", PULL, b'{"topics": ["orders"], "wait_s": 30}', {"Content-Type": "application/json"})
        connection.getresponse()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "topics"),
        ({"topics": []}, "topics"),
        ({"topics": "orders"}, "topics"),
        ({"topics": {"orders": 1}}, "tags of orders"),
        ({"topics": ["orders"], "limit": 0}, "limit"),
        ({"topics": ["orders"], "limit": 1.5}, "limit"),
        ({"topics": ["orders"], "wait_s": 31}, "wait_s"),
        ({"topics": ["orders"], "wait_s": 10**400}, "wait_s"),
        ({"topics": ["orders"], "finish_within_s": 0}, "finish_within_s"),
        ({"topics": ["orders"], "order": "queue"}, "order"),
        ({"topics": ["orders"], "member": "m"}, "member"),
    ],
)
def test_a_pull_that_is_malformed_names_the_field(api: Api, body: object, says: str) -> None:
    refused = api.post(PULL, body, None)
    assert refused.error == (400, "InvalidArgument")
    assert says in refused.json["detail"]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "messages is empty"),
        ([{"body": 1, "body_base64": ""}], "messages[0] has both"),
        ([{"body": 1, "key": 5}], "key"),
        ([{"body": 1, "properties": {":mine": "x"}}], "colon"),
        ([{"body": 1, "properties": {"a": 1}}], "property a"),
        ([{"body": 1, "queue": 0}], "messages[0] has the member 'queue'"),
        ([{"body": 1}] * 1001, "1001 elements"),
    ],
)
def test_a_message_that_is_malformed_is_refused_and_none_is_sent(
    api: Api, store: blocking.BlockingStore, messages: object, says: str
) -> None:
    refused = api.post(ORDERS, {"messages": messages}, None)
    assert refused.error == (400, "InvalidArgument")
    assert says in refused.json["detail"]
    assert [each.end for each in store.broker.queues("orders")] == [0]


def test_what_does_not_exist_is_named(api: Api) -> None:
    assert api.post("/api/topics/nothing/messages", {"messages": [{"body": 1}]}, None).error == (404, "UnknownTopic")
    assert api.post(PULL, {"topics": ["nothing"]}, None).error == (404, "UnknownTopic")
    assert api.post("/api/groups/nobody/finish", {"done": ["r"]}, None).json == {"finished": 0, "unknown": ["r"]}


def test_members_have_the_permissions_of_their_token_and_do_not_share_receipts(tmp_path: Path, serve: Serve) -> None:
    data = tmp_path / "data"
    names = {
        "sender": ["send:orders"],
        "one": ["consume:orders", "join:billing", "consume:billing"],
        "two": ["consume:orders", "join:billing", "consume:billing"],
    }
    tokens = {name: give(data, name, *grants) for name, grants in names.items()}
    admin = give(data, "root", "admin")
    server: ServerThread = serve()
    with blocking.connect(server.address, token=admin) as store:
        store.broker.create_topic("orders", 1)
    sender, one, two = (Api(server, tokens[name]) for name in names)
    send(sender, 1)
    assert sender.post(PULL, {"topics": ["orders"]}, None).error == (403, "PermissionDenied")
    assert one.post(ORDERS, {"messages": [{"body": 1}]}, None).error == (403, "PermissionDenied")
    (message,) = pull(one)
    assert done(two, message)["unknown"] == [message["receipt"]]
    assert done(one, message) == {"finished": 1, "unknown": []}


def test_a_group_that_is_slow_to_join_holds_up_no_other(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    run, joins, may_join = group_members.HttpMember.run, Event(), Event()

    async def slow(self: group_members.HttpMember, joined: Callable[[], None], store: NetworkStore) -> None:
        if self.wanted.group == "slow":
            joins.set()
            await trio.to_thread.run_sync(may_join.wait)
        await run(self, joined, store)

    monkeypatch.setattr(group_members.HttpMember, "run", slow)
    monkeypatch.setattr(topics, "CALL_S", 60.0)
    send(api, "one")
    with ThreadPoolExecutor() as pool:
        late = [pool.submit(pull, api, group="slow", limit=1) for _ in range(2)]
        try:
            assert joins.wait(30)
            (message,) = pull(api)
            assert message["body"] == "one"
            send(api, "two")
        finally:
            may_join.set()
        assert sorted(each["body"] for pulled in late for each in pulled.result()) == ["one", "two"]


def test_a_member_that_leaves_is_waited_for_by_who_wants_it_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    run, leaves, may_leave = group_members.HttpMember.run, Event(), Event()

    async def slow(self: group_members.HttpMember, joined: Callable[[], None], store: NetworkStore) -> None:
        await run(self, joined, store)
        if not leaves.is_set():
            leaves.set()
            await trio.to_thread.run_sync(may_leave.wait)

    monkeypatch.setattr(group_members.HttpMember, "run", slow)
    monkeypatch.setattr(group_members, "IDLE_S", 0.2)
    assert pull(api, wait_s=0) == []
    assert leaves.wait(30)
    with ThreadPoolExecutor() as pool:
        again = pool.submit(pull, api)
        send(api, "one")
        may_leave.set()
        assert [each["body"] for each in again.result()] == ["one"]


def test_after_a_member_has_failed_there_is_another_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    some, failed = Consumer.some, list[Consumer]()

    async def first_fails(self: Consumer, *, timeout: float | None = None) -> Any:
        if not failed or self is failed[0]:
            failed[:] = [self]
            raise PermissionDenied("not now")
        return await some(self, timeout=timeout)

    monkeypatch.setattr(Consumer, "some", first_fails)
    send(api, "one")
    assert api.post(PULL, {"topics": ["orders"]}, None).status == 403
    assert [each["body"] for each in pull(api)] == ["one"]


def test_there_are_as_many_members_as_there_may_be(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_members, "MEMBERS_MAX", 1)
    pull(api, wait_s=0)
    refused = api.post("/api/groups/other/pull", {"topics": ["orders"], "wait_s": 0}, None)
    assert refused.error == (503, "Overloaded")
    assert pull(api, wait_s=0) == []


def test_a_server_that_stops_ends_pulls(serve: Serve, server: ServerThread, api: Api) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(api.post, PULL, {"topics": ["orders"], "wait_s": 30}, None)
        with blocking.connect(server.address) as store:
            wait_until(lambda: [each.name for each in store.broker.groups()] == ["billing"], "it has joined")
        server.stop()
        try:
            answer = waiting.result()
        except OSError:
            return
        assert answer.status in (200, 503)
