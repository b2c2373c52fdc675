"""What a domain publishes: which events go to which topic, and what is made of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore import blocking
from tests.cli.processes import refused
from tests.server.outbox import published_shop
from tests.server.outbox.published_courses import Subscribed
from tests.server.outbox.published_shop import Placed, Sent
from tests.server.outbox.test_outbox_killed import published
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("broken")
SHOP = "tests.server.outbox.published_shop:app"


def append(store: blocking.BlockingStore, order: str, *events: object) -> None:
    store.append(order, [d.event_type(type(event)).encode(event) for event in events], es.ANY)


def caught_up(store: blocking.BlockingStore) -> bool:
    stats = store.stats()
    return (stats["published_sequence"], stats["publish_backlog"]) == (stats["events"], 0)


def test_each_topic_gets_the_events_that_the_domain_publishes_to_it_in_the_form_it_gives_them(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data", domain=SHOP) as server, blocking.connect(server.address) as store:
        append(store, "o-1", Placed("Ada", 5), Sent("Rome"))
        append(store, "o-2", Placed("Bob", 0))
        store.append("other", [es.NewEvent("Unknown", {})], es.ANY)
        wait_until(lambda: caught_up(store), "all is published")
        (bill,) = published(store, "billing")
        assert (bill.key, bill.tag, bill.body) == ("o-1", "Placed", b'{"order":"o-1","cents":5}')
        event = next(iter(store.read("o-1")))
        assert bill.properties == {
            "store": str(server.ask(lambda running: running.store.opened.uuid)), "sequence": "1", "version": "1",
            "command_id": event.command_id, "timestamp": str(event.timestamp),
        }  # fmt: skip
        assert [message.body for message in published(store, "shipping")] == [b"Rome"]
        stored = [(message.key, message.tag, message.body) for message in published(store, "orders")]
        assert stored == [
            ("o-1", "Placed", b'{"customer":"Ada","cents":5}'),
            ("o-1", "Sent", b'{"address":"Rome"}'),
            ("o-2", "Placed", b'{"customer":"Bob","cents":0}'),
        ]
        with store.consumer("readers", "orders", from_end=False) as consumer:
            first = next(consumer)
            assert (first.event(), published_shop.app.decode_event(first.event())) == (event, Placed("Ada", 5))
        with store.consumer("readers", "billing", from_end=False) as consumer:
            with pytest.raises(es.PayloadInvalid, match="is not a published event: it has no property"):
                next(consumer).event()


def test_messages_are_chosen_by_the_tags_of_their_events_where_they_are_published_or_by_the_consumer(tmp_path: Path) -> None:
    courses = "tests.server.outbox.published_courses:app"
    with ServerThread(tmp_path / "data", domain=courses) as server, blocking.connect(server.address) as store:
        for number in range(9):
            append(store, f"s-{number}", Subscribed(f"c{number % 3}", f"p{number}"))
        wait_until(lambda: caught_up(store), "all is published")
        assert [json.loads(message.body) for message in published(store, "course-c1")] == [
            {"student": f"p{each}"} for each in (1, 4, 7)
        ]
        stored = {event.aggregate_id: event.tags for event in store.read_all() if event.aggregate_id.startswith("s-")}
        for topic in "subscriptions", "stored":
            with store.consumer("readers", topic) as consumer:
                found = {}
                for message in islice(consumer, 9):
                    found[message.key] = tuple(json.loads(message.properties["tags"]))
                    message.done()
            assert found == stored
        assert {message.tag for message in published(store, "subscriptions")} == {"Subscribed"}, "one, as of any message"


def test_an_event_that_cannot_be_made_a_message_stops_its_topic_alone_and_says_so(tmp_path: Path, broken: set[str]) -> None:
    with ServerThread(tmp_path / "data", domain=SHOP) as server, blocking.connect(server.address) as store:
        append(store, "o-1", *[Sent(f"before {number}") for number in range(5)], Sent("nowhere"))
        append(store, "o-2", Sent("after"))
        wait_until(lambda: store.stats()["publish_failures"], "it has failed")
        wait_until(lambda: len(published(store, "orders")) == 7, "the other topic has all")
        assert [message.body for message in published(store, "carriers")] == [b"before %d" % number for number in range(5)]
        wait_until(lambda: store.stats()["published_sequence"] == 5, "the topics are elsewhere")
        wait_until(lambda: store.stats()["publish_backlog"] == 3, "two, and the record of what another topic has parked")
        stats = store.stats()
        said = "no message of topic 'carriers' can be made of the event at sequence 6; `eventstore reactions list` says why"
        assert stats["publish_error"] == said
        assert said in str(stats["attention"])
        assert [value for value in stats.values() if "nowhere" in str(value) or "o-1" in str(value)] == []
        (error,) = [str(each.error) for each in store.reactions.progress() if each.name == "topic:carriers"]
        assert "event Sent at sequence 6, version 6 of 'o-1', cannot be made a message of topic 'carriers'" in error
        assert "LookupError: no carrier goes to nowhere (" in error
        broken.clear()
        wait_until(lambda: caught_up(store), "all is published once the function can")
        shipped = [message.body for message in published(store, "carriers")]
        assert shipped == [b"before %d" % number for number in range(5)] + [b"nowhere", b"after"]
        assert store.stats()["publish_error"] is None


def test_a_topic_that_is_stuck_says_so_once_and_all_the_time_however_far_before_it_an_attempt_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ServerThread(tmp_path / "data", domain=SHOP) as server, blocking.connect(server.address) as store:
        for batch in range(3):
            store.append_many([es.Commit(f"o-{batch}-{number}", [es.NewEvent("Other")], es.ANY) for number in range(1_000)])
        store.append("bad", [es.NewEvent("Sent", {"address": 3})], es.ANY)
        wait_until(lambda: store.stats()["publish_failures"] == 4, "it has been tried again")
        assert "at sequence 3001" in str(store.stats()["publish_error"])
    said = [
        each.getMessage() for each in caplog.records if each.getMessage().startswith("publishing to topic carriers stopped")
    ]
    assert len(said) == 1


def test_after_a_kill_each_topic_continues_after_its_own_last_message(tmp_path: Path) -> None:
    for life in range(3):
        with ServerProcess(tmp_path / "data", domain=SHOP) as server, blocking.connect(server.address) as store:
            for number in range(20):
                append(store, f"o-{number % 3}", Placed(f"life {life}", number))
            wait_until(lambda: caught_up(store), "all is published")
            if life == 2:
                assert [message.body for message in published(store, "billing")] == [
                    b'{"order":"o-%d","cents":%d}' % (number % 3, number) for _ in range(3) for number in range(1, 20)
                ]
                assert len(published(store, "orders")) == 60
                wait_until((tmp_path / "data" / "published-billing.json").exists, "each topic has a checkpoint")
                assert server.terminate() == 0
            else:
                server.kill()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--publish", "orders"), "publish is 'orders', a topic that the domain publishes some events to"),
        (("--set", "broker=false"), "topic of @publishes is 'billing', but broker is false"),
    ],
)
def test_topics_that_cannot_be_published_to_are_refused(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    data = tmp_path / "data"
    assert told in refused("serve", "--data", data, "--listen", "127.0.0.1:0", "--domain", SHOP, *options, code=2)
    assert not data.exists()


def test_a_publication_is_declared_once_and_is_not_async() -> None:
    @dataclass(frozen=True)
    class Happened:
        number: int

    domain = d.Domain()
    domain.publishes_as_stored("t", Happened)
    with pytest.raises(es.DomainRefused, match="are published to topic 't' already; remove one of the two"):
        domain.publishes("t", Happened)(lambda event, stored: None)

    with pytest.raises(es.DomainRefused, match="names no class of events"):
        domain.publishes("t")

    async def later(event: Happened, stored: es.Event) -> object:
        return None

    with pytest.raises(es.DomainRefused, match="is async; a message is made of its event alone"):
        domain.publishes("u", Happened)(later)
    assert domain.decode_event(es.Event(("a", 1, "Happened", b'{"number":3}', None, "c", 1, 1, 1))) == Happened(3)
