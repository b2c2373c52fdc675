"""The pages by HTTP, on what a store and a broker hold; also on what strangers have put there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

import pytest

import eventstore as es
from eventstore.console.pages import log
from tests.console.conftest import Serve
from tests.console.http import Visitor, read_until
from tests.security.access_file import give
from tests.server_thread import ServerThread

NASTY = '<b onclick="x">&\u202e/?=\n'


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("filled") / "data", http="127.0.0.1:0") as server:
        with es.blocking.connect(server.address) as store:
            for number in range(130):
                store.append(f"order-{number % 3}", [es.NewEvent("Placed", {"n": number})], es.ANY, f"c-{number}")
            metadata = {"correlation_id": "began-it", "causation_id": "order-0/2"}
            store.append(NASTY, [es.NewEvent(NASTY, {NASTY: NASTY}, metadata)], 0, NASTY)
            store.broker.create_topic("bills", 2)
            for number in range(30):
                store.topic("bills").send(f"bill {number}".encode(), key="k", tag="paid")
            with store.consumer("billing", "bills") as consumer:
                next(iter(consumer)).done()
        yield server


@pytest.fixture
def visitor(filled: ServerThread) -> Visitor:
    return Visitor(filled.http)


def test_aggregates_are_found_by_prefix_and_by_id(visitor: Visitor) -> None:
    assert "order-0 44 order-1 43 order-2 43" in visitor.get("/console/aggregates?prefix=order-").words
    assert visitor.get("/console/aggregates?id=order-1").headers["location"] == "/console/aggregates/one?id=order-1"
    assert "There is no such aggregate." in visitor.get("/console/aggregates/one?id=order-9").words


def test_the_events_of_an_aggregate_are_in_order_and_in_pages(visitor: Visitor) -> None:
    found = visitor.get("/console/aggregates/one?id=order-0&from=43")
    assert re.findall(r'id="v(\d+)"', found.text) == ["43", "44"]
    assert "from=1" in re.findall(r'href="([^"]+)">Earlier<', found.text)[0].replace("&amp;", "&")


def test_events_lead_to_others_with_their_tag(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data", http="127.0.0.1:0") as server:
        with es.blocking.connect(server.address) as store:
            store.append("tagged", [es.NewEvent("Tagged", b"", tags=[f"t:{number % 2}", "t&<b>"]) for number in range(9)], 0)
        _check_tags(Visitor(server.http))


def _check_tags(visitor: Visitor) -> None:
    found = visitor.get("/console/aggregates/one?id=tagged").text
    assert '<a href="/console/log?tag=t%26%3Cb%3E">t&amp;&lt;b&gt;</a>' in found
    assert '<a href="/console/log?tag=t%3A1">t:1</a>' in found
    assert re.findall(r">version (\d+)<", visitor.get("/console/log?tag=t%3A1").text) == ["8", "6", "4", "2"]
    assert re.findall(r">version (\d+)<", visitor.get("/console/log?tag=t%3A1&type=Other").text) == []


def test_an_event_leads_to_the_one_that_caused_it(visitor: Visitor) -> None:
    found = visitor.get("/console/log").text
    assert '<a href="/console/aggregates/one?id=order-0&amp;from=2#v2">order-0/2</a>' in found
    assert "began-it" in found


def test_what_strangers_store_is_shown_escaped_on_every_page(visitor: Visitor) -> None:
    for path in (
        "/console/log",
        "/console/aggregates",
        "/console/aggregates/one?id=%3Cb%20onclick%3D%22x%22%3E%26%E2%80%AE%2F%3F%3D%0A",
    ):
        found = visitor.get(path)
        assert found.status == 200
        assert "&lt;b onclick=" in found.text
        assert "<b onclick" not in found.text
        assert "\u202e" not in found.text


def test_the_log_is_newest_first_and_goes_back_to_the_first_event(visitor: Visitor) -> None:
    seen: list[int] = []
    path = "/console/log"
    while True:
        found = visitor.get(path)
        seen += map(int, re.findall(r"#(\d+)</span>", found.text))
        older = re.search(r'href="([^"]+)">Older events', found.text)
        if older is None:
            break
        path = older[1].replace("&amp;", "&")
    assert seen == list(range(131, 0, -1))


def test_the_log_is_filtered_by_type_prefix_and_time(visitor: Visitor) -> None:
    assert "order-1" not in visitor.get("/console/log?prefix=order-2").text.partition("data-newest")[2]
    assert "No event of the last 131 fits." in visitor.get("/console/log?type=Paid").words
    assert "No event" in visitor.get("/console/log?to=2020-01-01T00:00").words
    assert "order-2" in visitor.get("/console/log?from=2020-01-01T00:00&to=2100-01-01T00:00:00.5").words
    assert visitor.get("/console/log?from=yesterday").status == 400
    assert visitor.get("/console/log?before=-1").status == 400


def test_a_page_of_the_log_examines_a_bounded_number_of_events(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_EXAMINED_MAX", 60)
    found = visitor.get("/console/log?type=Paid")
    assert "No event of the last 60 fits." in found.words
    assert "before=72" in found.text


def test_new_events_come_to_the_open_log(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_LOOK_S", 0.02)
    server = serve()
    with es.blocking.connect(server.address) as store, Visitor(server.http).updates("/console/log/live?type=T") as updates:
        read_until(updates, "retry")
        for number in range(200):
            store.append("a", [es.NewEvent("T" if number % 2 else "U")], es.ANY)
        found = read_until(updates, "#200<")
        assert "<strong>U</strong>" not in found


def test_topics_groups_queues_and_messages_are_shown(visitor: Visitor) -> None:
    found = visitor.get("/console/broker").words
    assert "bills 2 2 30" in found
    assert "billing 0" in found
    assert "from the ring from memory from the file ongoing 1" in found
    assert "read by" in visitor.get("/console/broker/group?name=billing").words
    topic = visitor.get("/console/broker/topic?name=bills").text
    queue = next(
        row[0]
        for row in re.findall(r">(\d)</a></td><td class=\"number\">0</td><td class=\"number\">(\d+)<", topic)
        if row[1] == "30"
    )
    by_offset = visitor.get(f"/console/broker/messages?topic=bills&queue={queue}&by=offset&wanted=3")
    assert "bill 3" in by_offset.words
    assert "bill 22" in by_offset.words
    assert "bill 2 " not in by_offset.words
    assert "Later messages" in by_offset.words
    message = re.findall(r"id <code>(\w+)</code>", by_offset.text)[0]
    assert "bill 3" in visitor.get(f"/console/broker/messages?by=id&wanted={message}").words
    assert "bill 29" in visitor.get("/console/broker/messages?topic=bills&by=key&wanted=k").words
    assert "bill 0" in visitor.get(f"/console/broker/messages?topic=bills&queue={queue}&by=time&wanted=2020-01-01").words


def test_clients_are_shown_with_what_they_send_consume_and_read(serve: Serve, tmp_path: Path) -> None:
    admin, reader = give(tmp_path / "data", "root", "admin"), give(tmp_path / "data", "ann", "read")
    server = serve()
    with ExitStack() as stack:

        def client(name: str) -> es.blocking.BlockingStore:
            return stack.enter_context(es.blocking.connect(server.address, name=f"<{name}>", token=admin))

        sends, consumes, follows = client("shop"), client("billing"), client("mail")
        sends.append("order-1", [es.NewEvent("T")] * 3, 0)
        sends.broker.create_topic("bills", 1)
        sends.topic("bills").send(b"one")
        consumer = stack.enter_context(consumes.consumer("payers", "bills", member="db1"))
        next(iter(consumer)).done()
        events = iter(follows.subscribe(0, aggregate_prefix="order-"))
        next(events)
        visitor, refused = Visitor(server.http), Visitor(server.http)
        visitor.sign_in(admin)
        page = visitor.get("/console/clients")
        assert "<shop> root 127.0.0.1:" in page.words
        assert "sends to bills" in page.words
        assert "db1 of payers" in page.words
        assert "subscribes to events of order-…, at 4 Subscribe" in page.words  # the last one is of the audit trail
        assert "The last event is number" in page.words
        assert "<shop>" not in page.text
        refused.sign_in(reader)
        assert refused.get("/console/clients").status == 403


def test_what_is_not_there_is_said(visitor: Visitor) -> None:
    for path, status in (
        ("/console/broker/topic?name=none", 404), ("/console/broker/group?name=none", 404), ("/console/do/nothing", 400),
        ("/console/broker/messages?by=id&wanted=xx", 400), ("/console/log?shard=7", 400), ("/console/nowhere", 404),
    ):  # fmt: skip
        assert visitor.get(path).status == status, path
    nowhere = visitor.get("/console/nowhere/%3Cb%3E")
    assert "There is no page /console/nowhere/<b>. To the overview" in nowhere.words
    assert '<nav aria-label="Pages">' in nowhere.text
    assert '<a href="/console">To the overview</a>' in nowhere.text
    assert "There are none: no domain is loaded" in visitor.get("/console/reactions").words


def test_an_action_asks_again_and_is_done_with_the_token_of_its_page_alone(serve: Serve) -> None:
    server = serve()
    visitor = Visitor(server.http)
    with es.blocking.connect(server.address) as store:
        store.broker.create_topic("bills", 1)
        assert visitor.get("/console/do/add-queues?topic=bills&count=2").status == 200
        assert "gets 2 more queues" in visitor.last.words if visitor.last else False
        given = {"topic": "bills", "count": "2"}
        assert visitor.post("/console/do/add-queues", {**given, "csrf": "guessed"}).status == 403
        assert len(store.broker.queues("bills")) == 1
        done = visitor.post("/console/do/add-queues", given)
        assert done.headers["location"].startswith("/console/broker/topic?name=bills&done=")
        assert "bills has 2 more queues" in visitor.get(done.headers["location"]).words
        assert len(store.broker.queues("bills")) == 3
        visitor.get("/console/do/close-queue?topic=bills&queue=2")
        visitor.post("/console/do/close-queue", {"topic": "bills", "queue": "2"})
        assert [each.state for each in store.broker.queues("bills")] != ["open"] * 3


def test_offsets_are_reset_and_dead_letters_replayed(serve: Serve) -> None:
    server = serve()
    visitor = Visitor(server.http)
    with es.blocking.connect(server.address) as store:
        store.broker.create_topic("bills", 1)
        store.topic("bills").send(b"one")
        with store.consumer("billing", "bills", retries=es.Retries((), attempts=1)) as consumer:
            next(iter(consumer)).retry("Failed")
        found = visitor.get("/console/broker/group?name=billing")
        assert "Replay dead letter 0" in found.words
        visitor.get("/console/do/replay?group=billing&offset=0")
        assert (
            "1 dead letters of billing are delivered again"
            in visitor.get(visitor.post("/console/do/replay", {"group": "billing", "offset": "0"}).headers["location"]).words
        )
        visitor.get("/console/do/reset?group=billing&topic=bills&queue=&to=start")
        visitor.post("/console/do/reset", {"group": "billing", "topic": "bills", "queue": "", "to": "start"})
        assert store.broker.group("billing").queues[0].offset == 0


def test_topics_are_created_and_deleted_and_a_drained_queue_is_removed(serve: Serve) -> None:
    server = serve()
    visitor = Visitor(server.http)

    def does(action: str, **given: str) -> str:
        visitor.get(f"/console/do/{action}?" + urlencode(given))
        done = visitor.post(f"/console/do/{action}", given)
        return visitor.get(done.headers["location"]).words if done.status == 303 else done.words

    with es.blocking.connect(server.address) as store:
        assert "Create topic" in visitor.get("/console/broker").words
        assert "the topic bills is created" in does("create-topic", topic="bills", queues="2")
        assert [each.state for each in store.broker.queues("bills")] == ["open", "open"]
        assert "is created" in does("create-topic", topic="notes", queues="")
        assert "bills" in does("create-topic", topic="bills", queues="2")  # there is one
        store.topic("bills").send_many([es.NewMessage(b"1", queue=1)] * 3)
        found = visitor.get("/console/broker/topic?name=bills")
        assert "greatest offset greatest persisted" in found.words
        assert '<td class="number">3</td><td class="number">2</td><td class="number">2</td>' in found.text
        assert "remove queue" not in found.words
        with store.consumer("billing", "bills") as consumer:
            message = next(iter(consumer))
            assert "accepts no more" in does("close-queue", topic="bills", queue="1")
            assert "remove queue 1" in visitor.get("/console/broker/topic?name=bills").words
            assert "has messages to consume in queue 1" in does("remove-queue", topic="bills", queue="1")
            assert "billing" in does("delete-topic", topic="bills", unconsumed="")
            message.done()
        assert len(store.broker.queues("bills")) == 2
        store.broker.reset("billing", "bills", "end")
        assert "queue 1 of bills is removed" in does("remove-queue", topic="bills", queue="1")
        assert [each.queue for each in store.broker.queues("bills")] == [0]
        store.topic("bills").send(b"1")
        assert "the topic bills is deleted" in does("delete-topic", topic="bills", unconsumed="delete")
        assert "bills" not in [each.name for each in store.broker.topics()]


def test_a_group_is_reset_to_a_time_and_gets_a_retry_policy(serve: Serve) -> None:
    server = serve()
    visitor = Visitor(server.http)
    with es.blocking.connect(server.address) as store:
        store.broker.create_topic("bills", 1)
        store.topic("bills").send(b"1")
        with store.consumer("billing", "bills") as consumer:
            next(iter(consumer)).done()
        assert store.broker.group("billing").queues[0].offset == 1
        reset = {"group": "billing", "topic": "bills", "queue": "", "shard": "", "to": "2020-01-01T00:00"}
        visitor.get("/console/do/reset?" + urlencode(reset))
        assert (
            "billing is at offset 0 of queue 0"
            in visitor.get(visitor.post("/console/do/reset", reset).headers["location"]).words
        )
        visitor.get("/console/do/reset?" + urlencode(reset))
        assert "is not a time such as" in visitor.post("/console/do/reset", {**reset, "to": "yesterday"}).words
        policy = {"group": "billing", "delays": "0.5, 3", "attempts": "4", "dead_letters": "lost"}
        asked = visitor.get("/console/do/set-retries?" + urlencode(policy))
        assert "tried again after 0.5, 3 seconds, 4 times in all; then it goes to lost." in asked.words
        assert visitor.post("/console/do/set-retries", {**policy, "csrf": "guessed"}).status == 403
        done = visitor.post("/console/do/set-retries", policy)
        assert store.broker.retries("billing") == es.Retries((0.5, 3.0), 4, "lost")
        assert "after 0.5, 3.0 seconds, 4 times in all; then it goes to lost" in visitor.get(done.headers["location"]).words
        visitor.get("/console/do/set-retries?" + urlencode(policy))
        assert "expected seconds" in visitor.post("/console/do/set-retries", {**policy, "delays": "soon"}).words
        visitor.get("/console/do/unset-retries?group=billing")
        visitor.post("/console/do/unset-retries", {"group": "billing"})
        assert store.broker.retries("billing") != es.Retries((0.5, 3.0), 4, "lost")


def test_who_has_no_permission_sees_no_action_and_cannot_do_it(serve: Serve, tmp_path: Path) -> None:
    reader, admin = give(tmp_path / "data", "ann", "reader"), give(tmp_path / "data", "root", "admin")
    server = serve()
    with es.blocking.connect(server.address, token=admin) as store:
        store.broker.create_topic("bills", 1)
        visitor = Visitor(server.http)
        visitor.sign_in(reader)
        assert "Add queues" not in visitor.get("/console/broker/topic?name=bills").words
        visitor.get("/console/do/add-queues?topic=bills&count=2")
        refused = visitor.post("/console/do/add-queues", {"topic": "bills", "count": "2"})
        assert refused.status == 403
        assert "topics" in refused.words
        assert len(store.broker.queues("bills")) == 1
        for path in ("/console/broker", "/console/broker/topic?name=bills"):
            assert "/console/do/" not in visitor.get(path).text
        for action, given in (
            ("create-topic", {"topic": "more", "queues": "1"}),
            ("delete-topic", {"topic": "bills", "unconsumed": "delete"}),
            ("remove-queue", {"topic": "bills", "queue": "0"}),
            ("set-retries", {"group": "billing", "delays": "1", "attempts": "", "dead_letters": ""}),
            ("unset-retries", {"group": "billing"}),
        ):
            visitor.get(f"/console/do/{action}?" + urlencode(given))
            assert visitor.post(f"/console/do/{action}", given).status == 403, action
        assert [each.name for each in store.broker.topics()] == ["bills"]
        operator = Visitor(server.http)
        operator.sign_in(admin)
        assert "Add queues" in operator.get("/console/broker/topic?name=bills").words
        assert operator.post("/console/do/create-topic", {"topic": "more", "queues": "1"}).status == 303
        assert operator.post("/console/do/delete-topic", {"topic": "more", "unconsumed": ""}).status == 303
        assert operator.post("/console/do/add-queues", {"topic": "bills", "count": "2"}).status == 303
        audited = [event.json() for event in store.read("$audit")]
        assert [each["who"] for each in audited if "QUEUES" in str(each)] == ["root"]  # type: ignore[index, call-overload]
        for what in ("CREATE_TOPIC", "DELETE_TOPIC"):
            assert {"root"} <= {each["who"] for each in audited if what in str(each)}  # type: ignore[index, call-overload]


def test_one_with_a_prefix_sees_what_begins_with_it_alone(serve: Serve, tmp_path: Path) -> None:
    token, admin = give(tmp_path / "data", "ann", "read:order-", "subscribe:order-"), give(tmp_path / "data", "root", "admin")
    server = serve()
    with es.blocking.connect(server.address, token=admin) as store:
        store.append("order-1", [es.NewEvent("T")], 0)
        store.append("secret-1", [es.NewEvent("T")], 0)
    visitor = Visitor(server.http)
    visitor.sign_in(token)
    assert visitor.get("/console/log").status == 403
    assert "order-1" in visitor.get("/console/log?prefix=order-").words
    assert visitor.get("/console/log?prefix=secret-").status == 403
    assert visitor.get("/console/aggregates/one?id=secret-1").status == 403
    assert visitor.get("/console/aggregates/one?id=order-1").status == 200
