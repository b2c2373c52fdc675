"""An event of which no message can be made holds up its aggregate, not its topic; operators have it published, or skip it."""

from __future__ import annotations

import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore import blocking
from tests.cli.processes import output
from tests.server.outbox.published_shop import Sent
from tests.server.outbox.test_outbox_killed import published
from tests.server.outbox.test_publications import append
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("broken")
SHOP = "tests.server.outbox.published_shop:parking"
MENDED = "tests.server.outbox.published_shop:mended"
NAME = "topic:parcels"


def bodies(store: blocking.BlockingStore) -> dict[str, list[str]]:
    """Returns what was published of each order, in the order of the topic."""
    found: dict[str, list[str]] = {}
    for message in published(store, "parcels"):
        found.setdefault(str(message.key), []).append(message.body.decode())
    return found


def parked(store: blocking.BlockingStore) -> list[tuple[str, int, int]]:
    return [(each.aggregate_id, each.version, each.attempts) for each in store.reactions.parked(NAME)]


def fill(store: blocking.BlockingStore) -> None:
    """Appends six events, of which two are parked."""
    append(store, "o-1", Sent("Rome"), Sent("nowhere"), Sent("Oslo"))
    append(store, "o-2", Sent("Bonn"))
    append(store, "o-1", Sent("Lima"))
    append(store, "o-2", Sent("Riga"))
    wait_until(lambda: len(parked(store)) == 3 and len(published(store, "parcels")) == 3, "the rest is published")


def test_what_cannot_be_published_is_parked_with_what_follows_in_its_aggregate_and_all_others_go_on(
    tmp_path: Path, broken: set[str]
) -> None:
    with ServerThread(tmp_path / "data", domain=SHOP, http="127.0.0.1:0", alarm_quiet_s=1) as server:
        with blocking.connect(server.address) as store:
            fill(store)
            assert bodies(store) == {"o-1": ["Rome"], "o-2": ["Bonn", "Riga"]}
            assert parked(store) == [("o-1", 2, 1), ("o-1", 3, 0), ("o-1", 4, 0)]
            with pytest.raises(es.InvalidArgument, match=f"there is no reaction 'parcels'; there are: {NAME}$"):
                store.reactions.parked("parcels")
            (shown,) = store.reactions.progress()
            assert (shown.name, shown.event, shown.state, shown.parked) == (NAME, "Sent", "running", 3)
            assert "LookupError: no carrier goes to nowhere" in str(shown.error)
            wait_until(lambda: store.stats()["publish_backlog"] == 0, "nothing is left to publish")
            stats = store.stats()
            assert (stats["publish_parked"], stats["reactions_parked"], stats["publish_error"]) == (3, 0, None)
            told = f"publishing to {NAME} has 3 events parked; `eventstore reactions show {NAME}`"
            assert stats["attention"] == told
            with urllib.request.urlopen(f"http://{server.ask(lambda each: each.http_address)}/metrics", timeout=10) as answer:
                assert 'eventstore_publication_parked{topic="parcels"} 3.0' in answer.read().decode()
            raised = ("publication_parked", "topic=parcels", "raised")
            wait_until(lambda: raised in {each[:3] for each in store.alarms.list()}, "there is an alarm")
            assert store.reactions.retry(NAME, who="ada", why="try") == (0, 3)
            append(store, "o-1", Sent("Kyiv"))
            wait_until(lambda: len(parked(store)) == 4, "it waits, too")
            broken.clear()
            assert store.reactions.retry(NAME, "o-1", who="ada", why="mended") == (4, 0)
            assert bodies(store) == {"o-1": ["Rome", "nowhere", "Oslo", "Lima", "Kyiv"], "o-2": ["Bonn", "Riga"]}
            assert [message.properties.get("parked") is not None for message in published(store, "parcels")] == (
                [False] * 3 + [True] * 4
            )
            append(store, "o-1", Sent("Cork"))
            wait_until(lambda: bodies(store)["o-1"][-1] == "Cork", "it goes its way again")
            wait_until(lambda: store.stats()["attention"] is None, "the alarm is over, too")
            (shown,) = store.reactions.progress()
            assert (shown.parked, shown.error) == (0, None)
            records = [(each.type, each.json().get("who")) for each in store.read("$parked{o-1}")]
            assert records == [("$Parked", None)] * 4 + [("$Unparked", "ada")] * 4


def test_what_is_parked_retried_and_skipped_survives_a_kill_and_nothing_is_published_twice(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", domain=SHOP) as server, blocking.connect(server.address) as store:
        fill(store)
        server.kill()
    with ServerProcess(tmp_path / "data", domain=SHOP) as server, blocking.connect(server.address) as store:
        wait_until(lambda: len(parked(store)) == 3, "it is still parked")
        shown = output("reactions", "show", NAME, store=server.address)
        assert "o-1" in shown
        assert "waits for version 2" in shown
        told = output("reactions", "skip", NAME, "o-1", "--because", "by hand", store=server.address)
        assert told == f"3 events done; {NAME} has nothing parked\n"
        expected = {"o-1": ["Rome", "Oslo", "Lima"], "o-2": ["Bonn", "Riga"]}
        assert bodies(store) == expected
        server.kill()
    with ServerProcess(tmp_path / "data", domain=SHOP) as server, blocking.connect(server.address) as store:
        append(store, "o-1", Sent("Cork"))
        wait_until(lambda: bodies(store)["o-1"][-1] == "Cork", "publishing continues")
        assert bodies(store) == {**expected, "o-1": [*expected["o-1"], "Cork"]}
        assert parked(store) == [], "what was skipped is not tried again"
        assert server.terminate() == 0


@pytest.mark.heavy
def test_a_server_that_is_killed_while_it_publishes_what_was_parked_publishes_each_once_and_in_order(tmp_path: Path) -> None:
    orders = [f"o-{number}" for number in range(40)]
    with ServerProcess(tmp_path / "data", domain=SHOP) as server, blocking.connect(server.address) as store:
        sent = [d.event_type(Sent).encode(Sent(address)) for address in ("Rome", "nowhere", "Oslo")]
        store.append_many([es.Commit(order, sent, 0) for order in orders])
        wait_until(lambda: len(parked(store)) == 2 * len(orders), "all are parked behind the first of their order")
        server.kill()
    for left in (70, 50, 30):
        with ServerProcess(tmp_path / "data", domain=MENDED) as server, blocking.connect(server.address) as store:
            wait_until(lambda: store.reactions.progress()[0].parked, "what is parked is known")  # it is called here
            retrying = Thread(target=retry_until_it_is_gone, args=(server.address,))
            retrying.start()
            wait_until(lambda: len(parked(store)) < left, "some are published")  # noqa: B023 # it is called here
            server.kill()
            retrying.join()
    with ServerProcess(tmp_path / "data", domain=MENDED) as server, blocking.connect(server.address) as store:
        wait_until(lambda: store.stats()["publish_backlog"] == 0, "publishing has resumed")
        assert store.reactions.retry(NAME, who="ada", why="after a kill").left == 0
        assert bodies(store) == {order: ["Rome", "nowhere", "Oslo"] for order in orders}
        assert server.terminate() == 0


def retry_until_it_is_gone(address: str) -> None:
    with suppress(es.EventStoreError), blocking.connect(address, reconnect_timeout=0) as store:
        store.reactions.retry(NAME, who="ada", why="mended")


def test_a_topic_that_was_created_again_gets_everything_but_what_is_parked(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data", domain=SHOP) as server, blocking.connect(server.address) as store:
        fill(store)
        store.broker.delete_topic("parcels")
        wait_until(lambda: store.stats()["events_published"] == 6, "it is published again")
        assert bodies(store) == {"o-1": ["Rome"], "o-2": ["Bonn", "Riga"]}
        assert parked(store) == [("o-1", 2, 1), ("o-1", 3, 0), ("o-1", 4, 0)]
        with pytest.raises(es.InvalidArgument, match="delete the topic, and it gets all events"):
            store.reactions.replay(NAME, 1, who="ada", why="again")
        with pytest.raises(es.InvalidArgument, match=f"there is no publication 'topic:other'; there are: {NAME}"):
            store.reactions.retry("topic:other", who="ada", why="a typing error")


def test_whatever_the_function_raises_parks_its_event_and_ends_no_server(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data", domain=SHOP) as server, blocking.connect(server.address) as store:
        for address in ("limbo", "hell", "void", "abyss", "Rome"):
            append(store, f"o-{address}", Sent(address))
        wait_until(lambda: len(parked(store)) == 4 and bodies(store) == {"o-Rome": ["Rome"]}, "the rest is published")
        assert store.reactions.retry(NAME, "o-hell", who="ada", why="try") == (0, 4)
        said = {each.aggregate_id: each.why for each in store.reactions.parked(NAME)}
    assert said["o-limbo"].startswith("CancelledError: ")
    assert said["o-hell"].startswith("SystemExit: 666")
    assert said["o-abyss"].startswith("GeneratorExit: end")
    assert said["o-void"].startswith("NoText: its text raised AttributeError")


def test_a_topic_has_one_policy() -> None:
    @dataclass(frozen=True)
    class First:
        number: int

    @dataclass(frozen=True)
    class Second:
        number: int

    domain = d.Domain()
    domain.publishes_as_stored("t", First)
    assert domain.publications["t"].on_failure == "park"
    domain.publishes_as_stored("t", Second, on_failure="stop")
    assert domain.publications["t"].on_failure == "stop"
    with pytest.raises(es.DomainRefused, match="with on_failure='stop' and with 'park'; a topic has one policy"):
        domain.publishes("t", Sent, on_failure="park")(lambda event, stored: None)
    with pytest.raises(es.DomainRefused, match="on_failure is 'skip', expected"):
        domain.publishes_as_stored("u", First, on_failure="skip")  # type: ignore[arg-type] # on purpose
