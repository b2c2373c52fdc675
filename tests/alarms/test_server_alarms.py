"""A server's alarms: on the figures of `stats`, in its reports, and by its commands."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest

import eventstore as es
from eventstore.alarms.built_in_rules import BUILT_IN
from eventstore.errors import InvalidArgument, PermissionDenied
from eventstore.protocol.group_requests import Join
from eventstore.security.audit import AUDIT
from tests.alarms.receivers import http_receiver, mail_server
from tests.cli.processes import run
from tests.security.access_file import give
from tests.server.raw import RawClient
from tests.server_thread import ServerThread
from tests.waiting import wait_until


def server_with(data: Path, rules: str, **alarms: object) -> ServerThread:
    given = {"rules": rules, "interval_s": 0.05, "quiet_s": 0, **alarms}
    return ServerThread(data, http="127.0.0.1:0", **{f"alarm_{name}": value for name, value in given.items()})


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_an_alarm_is_raised_sent_shown_and_over(tmp_path: Path) -> None:
    rules = "behind: group_backlog{group=billing} > 2 until 0"
    with http_receiver() as posts, mail_server() as box:
        ways = {
            "webhook": posts.url, "mail_server": f"127.0.0.1:{box.port}", "mail_security": "none",
            "mail_from": "db@example.org", "mail_to": "ada@example.org",
        }  # fmt: skip
        with server_with(tmp_path / "data", rules, **ways) as server, es.blocking.connect(server.address) as store:
            store.broker.create_topic("orders", queues=1)
            store.broker.create_topic("others", queues=1)
            with RawClient(server.port) as member:
                member.ask(Join("billing", "m", False, (("orders", None),)))
            store.broker.reset("billing", "orders", "start")
            topic = store.topic("orders")
            for number in range(5):
                topic.send(b"%d" % number)
            wait_until(lambda: posts.taken, "it is posted")
            said = json.loads(posts.taken[0][1])
            (change,) = said["changes"]
            assert (change["alarm"], change["state"], change["labels"]) == (
                "behind", "raised", {"group": "billing", "topic": "orders"},
            )  # fmt: skip
            stats = store.stats()
            assert stats["alarms_raised"] == 1
            assert stats["alarms"] == "behind"
            assert str(stats["attention"]).startswith("alarm behind (group=billing, topic=orders): group_backlog is ")
            health = json.loads(fetch(f"{server.http}/health"))
            assert (health["healthy"], health["degraded"]) == (True, True)
            metrics = fetch(f"{server.http}/metrics")
            assert 'eventstore_alarm{name="behind"} 1.0' in metrics
            assert 'eventstore_alarm{name="store_poisoned"} 0.0' in metrics
            found = [each for each in store.alarms.list() if each.state != "quiet"]
            assert [(each.name, each.subject, each.state) for each in found] == [
                ("behind", "group=billing, topic=orders", "raised")
            ]
            wait_until(lambda: box.mails, "it is mailed")
            evaluations = int(str(stats["alarm_evaluations"]))
            wait_until(lambda: int(str(store.stats()["alarm_evaluations"])) > evaluations + 3, "it is evaluated again")
            store.broker.reset("billing", "orders", "end")
            wait_until(lambda: len(posts.taken) == 2 and len(box.mails) == 2, "that it is over is sent")
            assert json.loads(posts.taken[1][1])["changes"][0]["state"] == "over"
            assert json.loads(fetch(f"{server.http}/health"))["degraded"] is False
            # A receiver has a notice before the server has its answer, by which it counts.
            wait_until(lambda: store.stats()["alarm_notices_sent"] == 4, "the last answer is counted")


def test_the_commands_list_silence_and_test(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with http_receiver() as posts:
        with server_with(tmp_path / "data", "full: disk_free_bytes / disk_bytes < 2", webhook=posts.url) as server:
            wait_until(lambda: posts.taken, "it is posted")
            address = "--store", server.address
            listed = run("alarms", "list", *address)
            assert listed.returncode == 1
            assert "full" in listed.stdout
            assert "store_poisoned" not in listed.stdout
            silenced = run("alarms", "silence", "full", "--for", "2h", "--because", "known\x1b[2J", *address)
            assert silenced.stdout == f"{server.address}: full is silenced for 2h\n"
            shown = run("alarms", "list", "--all", *address).stdout
            assert r"known\x1b[2J" in shown
            assert "store_poisoned" in shown
            with es.blocking.connect(server.address) as store:
                assert store.stats()["attention"] is None
                assert store.stats()["alarms_silenced"] == 1
                tested = run("alarms", "test", *address)
                assert (
                    tested.stdout
                    == f"{server.address}: a test is sent by webhook; if it does not arrive, the server's log says why\n"
                )
                wait_until(lambda: len(posts.taken) == 2, "the test is posted")
                assert json.loads(posts.taken[1][1])["test"]
                assert "alarm full is silenced for 7200 s by " in caplog.text
                store.alarms.silence("full", 0, who="ada", why="over")
                assert "the silence of alarm full is ended by ada: over" in caplog.text
                wait_until(lambda: len(posts.taken) == 3, "it is said again")
                with pytest.raises(InvalidArgument, match="there is no alarm 'nothing'"):
                    store.alarms.silence("nothing", 60, who="ada", why="x")
            assert run("alarms", "silence", "full", "--for", "soon", "--because", "x", *address).returncode == 2


def test_a_server_that_does_not_answer_is_no_success(tmp_path: Path) -> None:
    with socket.socket() as away, server_with(tmp_path / "data", "full: disk_free_bytes / disk_bytes > 2") as server:
        away.bind(("127.0.0.1", 0))  # and does not listen
        both = f"{server.address},127.0.0.1:{away.getsockname()[1]}"
        listed = run("alarms", "list", "--store", both)
        assert (listed.returncode, listed.stdout) == (1, "no alarm is raised where it was asked\n")
        silenced = run("alarms", "silence", "full", "--because", "known", "--store", both)
        assert (silenced.returncode, silenced.stdout) == (1, f"{server.address}: full is silenced for 1h\n")


def test_who_silences_is_audited_and_needs_the_permission(tmp_path: Path) -> None:
    data = tmp_path / "data"
    operator, reader = give(data, "ops", "operator", "read:$audit"), give(data, "billing", "reader")
    with server_with(data, "") as server:
        with es.blocking.connect(server.address, token=reader) as store:
            assert {each.state for each in store.alarms.list()} <= {"quiet", "pending", "raised"}
            for refused in (
                lambda: store.alarms.silence("slow_syncs", 60, who="billing", why="noise"),
                lambda: store.alarms.test(who="billing"),
            ):
                with pytest.raises(PermissionDenied, match="alarms"):
                    refused()
        with es.blocking.connect(server.address, token=operator) as store:
            store.alarms.silence("slow_syncs", 60, who="ada", why="a new disk")
            assert store.alarms.test(who="ada") == ()
            records = [json.loads(event.data) for event in store.read(AUDIT)]
    assert [(each["what"], each["who"]) for each in records] == [("SILENCE_ALARM", "ops"), ("TEST_ALARMS", "ops")]
    assert records[0]["details"] == {"alarm": "slow_syncs", "seconds": 60, "who": "ada", "why": "a new disk"}


def test_without_configuration_rules_are_evaluated_and_sent_nowhere(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server, es.blocking.connect(server.address) as store:
        wait_until(lambda: store.stats()["alarm_evaluations"], "they are evaluated")
        names = {each.name for each in store.alarms.list()}
        assert {"store_poisoned", "disk_nearly_full", "replica_missing", "certificate_expires"} <= names
        listed = run("alarms", "test", "--store", server.address)
        assert listed.returncode == 1
        assert "alarms are sent nowhere" in listed.stdout


def test_a_wrong_rule_is_named_before_the_folder_is_made(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with pytest.raises(BaseExceptionGroup) as group:
        server_with(data, "mine: group_backlogs > 3").start()
    (error,) = group.value.exceptions
    assert isinstance(error, InvalidArgument)
    assert "did you mean group_backlog?" in error.message
    assert not data.exists()
    refused = run("serve", "--data", data, "--alarm-webhook", "gopher://host/")
    assert refused.returncode == 2
    assert "alarm_webhook" in refused.stderr
    assert not data.exists()


def test_messages_of_a_group_without_members_are_an_alarm_until_one_joins(tmp_path: Path) -> None:
    assert BUILT_IN["group_without_members"].text == "group_unattended > 0 for 600"
    with server_with(tmp_path / "data", "group_without_members: group_unattended > 0") as server:
        with es.blocking.connect(server.address) as store:
            store.broker.create_topic("orders", queues=1)
            with store.consumer("billing", "orders", from_end=False):
                store.topic("orders").send(b"1")
                wait_until(lambda: store.stats()["alarm_evaluations"], "the rules are evaluated")
                assert store.stats()["alarms"] is None
            wait_until(lambda: store.stats()["alarms"] == "group_without_members", "it is raised")
            subjects = [each.subject for each in store.alarms.list() if each.state == "raised"]
            assert subjects == ["group=billing, topic=orders"]
            with store.consumer("billing", "orders", from_end=False):
                wait_until(lambda: store.stats()["alarms"] is None, "it is over")


def test_new_dead_letters_are_an_alarm_and_those_that_were_replayed_do_not_count(tmp_path: Path) -> None:
    assert BUILT_IN["dead_letters_grow"].text == "group_messages_dead > 0 for 600"
    rules = "dead_letters_grow: group_messages_dead > 0 for 600; left: group_dead_letters > 0"
    with server_with(tmp_path / "data", rules) as server, es.blocking.connect(server.address) as store:
        store.broker.create_topic("orders", queues=1)
        store.broker.set_retries("billing", es.Retries(delays=(), attempts=1))
        evaluated = int(str(store.stats()["alarm_evaluations"]))
        wait_until(lambda: int(str(store.stats()["alarm_evaluations"])) > evaluated + 1, "there is none")
        with store.consumer("billing", "orders", from_end=False) as consumer:
            store.topic("orders").send(b"1")
            next(consumer).retry("it is bad")
        wait_until(lambda: store.stats()["alarms"] == "dead_letters_grow, left", "the first is seen")
        store.broker.replay("billing", [0])
        assert [tuple(each) for each in store.broker.replayed("billing")] == [(0, 1)]
        wait_until(lambda: "left" not in str(store.stats()["alarms"]), "none is left")
