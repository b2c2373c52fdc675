"""What is shown to those who may not know all of it: no secret, and no command that they may not send."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.alarms.webhook import Webhook
from eventstore.client.address import parse_addresses
from eventstore.client.options import ClientOptions
from eventstore.domain.projections.targets.open import target_at
from eventstore.errors import EventStoreError, InvalidArgument, UnknownCommand
from eventstore.fields import shown_url
from eventstore.settings.alarms import AlarmSettings
from eventstore.settings.sources import load_settings
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.alarms.receivers import http_receiver
from tests.alarms.test_delivery import NOTICE
from tests.cli.processes import output, refused
from tests.examples import EXAMPLES
from tests.security.access_file import give
from tests.server_thread import ServerThread
from tests.waiting import wait_until

SECRET = "T0P53CRET"
app = d.Domain()


@dataclass(frozen=True)
class Told:
    secret: str


@app.reacts(Told, on_failure="stop")
async def repeat(event: Told, send: d.Send) -> None:
    raise LookupError(f"what is {event.secret}?")


HOOK = f"https://hooks.example.org/services/{SECRET}?key={SECRET}"


def test_the_list_of_settings_shows_no_secret_of_an_address() -> None:
    for arguments in (("--json",), ()):
        shown = output("settings", *arguments, "--alarm-webhook", HOOK)
        assert SECRET not in shown
        assert "https://hooks.example.org/…" in shown
    found = {each["name"]: each["value"] for each in json.loads(output("settings", "--json", "--alarm-webhook", HOOK))}
    assert found["alarm_webhook"] == "https://hooks.example.org/…"


def test_no_error_quotes_an_address_with_a_secret() -> None:
    with_password = f"https://ada:{SECRET}@hooks.example.org/x"
    for wrong in (with_password, f"ftp://example.org/{SECRET}", f"https:///{SECRET}", f"https://[{SECRET}/"):
        with pytest.raises(InvalidArgument, match="expected http://HOST/PATH") as caught:
            Webhook(AlarmSettings(webhook=wrong))
        assert SECRET not in f"{caught.value} {caught.value.fields}"
    said = refused("serve", "--data", "unused", "--listen", "127.0.0.1:0", "--alarm-webhook", with_password, code=2)
    assert "https://hooks.example.org/…" in said
    assert SECRET not in said


def test_a_webhook_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hook"
    with http_receiver() as posts:
        file.write_text(f"{posts.url}\n")
        Webhook(AlarmSettings(webhook_file=str(file))).send(NOTICE)
        assert len(posts.taken) == 1
    with pytest.raises(InvalidArgument, match="leave one out"):
        Webhook(AlarmSettings(webhook_file=str(file), webhook="http://example.org/"))
    file.write_text(f"ftp://example.org/{SECRET}")
    with pytest.raises(InvalidArgument, match=r"alarm_webhook_file is ftp://example\.org/…, expected") as caught:
        Webhook(AlarmSettings(webhook_file=str(file)))
    assert SECRET not in str(caught.value)


def test_a_server_posts_to_the_webhook_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hook"
    with http_receiver() as posts:
        file.write_text(posts.url)
        with ServerThread(tmp_path / "data", alarm_webhook_file=str(file)) as server:
            with es.blocking.connect(server.address) as store:
                assert store.alarms.test(who="ada") == ("webhook",)


def test_figures_say_where_a_reaction_waits_and_quote_nothing_of_its_event(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data", domain="tests.security.test_told:app", http="127.0.0.1:0") as server:
        with es.blocking.connect(server.address) as store:
            store.append("aggregate-7", [d.event_type(Told).encode(Told(SECRET))], es.ANY)
            said = "reaction 'repeat' is stopped after sequence 0; `eventstore reactions list` says why"
            wait_until(lambda: store.stats()["attention"] == said, "it has stopped")
            with urllib.request.urlopen(f"{server.http}/health", timeout=30) as answer:
                health = answer.read().decode()
            assert said in health
            for shown in (health, str(store.stats())):
                assert SECRET not in shown
                assert "aggregate-7" not in shown
            (reaction,) = store.reactions.progress()
            assert SECRET in str(reaction.error)


def test_a_url_of_etcd_names_no_user() -> None:
    for wrong in (f"http://root:{SECRET}@127.0.0.1:2379", f"http://{SECRET}@127.0.0.1:2379"):
        with pytest.raises(InvalidArgument, match=r"every account of this machine sees.*EVENTSTORE_ETCD_PASSWORD") as caught:
            EtcdOptions((wrong,))
        assert SECRET not in f"{caught.value} {caught.value.fields}"
        said = refused("cluster", "status", "--interval", "0", "--etcd", wrong, code=2)
        assert "http://127.0.0.1:2379" in said
        assert SECRET not in said


def test_no_address_of_a_server_or_target_that_is_refused_is_quoted_with_its_password() -> None:
    for refuse in (parse_addresses, target_at):
        with pytest.raises(EventStoreError) as caught:
            refuse(f"mysql://ada:{SECRET}@db:7701")
        assert SECRET not in f"{caught.value} {caught.value.fields}"
        assert "mysql://db:7701" in str(caught.value)


def test_no_repr_has_a_secret() -> None:
    etcd = EtcdOptions(("http://127.0.0.1:2379",), user="root", password=SECRET)
    settings = load_settings(None, alarm_webhook=HOOK)
    assert settings.alarms.webhook == HOOK
    for each in (etcd, settings, settings.alarms, ClientOptions(token=SECRET)):
        assert SECRET not in repr(each)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a:b@example.org:8443/x?y#z", "https://example.org:8443/…"), ("http://example.org/", "http://example.org"),
        ("http://[::1]:80/?k", "http://[::1]:80/…"), ("x", "an address without a host"),
        ("http://h:99999/s", "an address that is none"),
    ],
)  # fmt: skip
def test_an_address_is_shown_by_scheme_host_and_port(url: str, shown: str) -> None:
    assert shown_url(url) == shown


BANKS = "Deposit, Open, Receive, TakeBack, Transfer, Withdraw"


@pytest.mark.parametrize(("grant", "named"), [("command:Dep", "Deposit"), ("command", BANKS), ("command:Steal", "none")])
def test_a_client_is_told_of_no_command_that_it_may_not_send(
    tmp_path: Path, grant: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    token = give(tmp_path / "data", "billing", grant)
    unknown = "Stealing" if grant.endswith("Steal") else "Depose"
    with ServerThread(tmp_path / "data", domain="bank:app") as server:
        with es.blocking.connect(server.address, token=token) as store:
            with pytest.raises(UnknownCommand) as caught:
                store.send(es.RawCommand(unknown, "a", b"{}"))
    assert caught.value.message.endswith(f"there are handlers for: {named}")
