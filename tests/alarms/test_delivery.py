"""Alarms arrive by mail and webhook; what does not is tried again, then counted."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from eventstore.alarms import receiver
from eventstore.alarms.alarms import Alarms
from eventstore.alarms.delivery import ATTEMPTS, WAITING_MAX, NoticeDelivery, longer_delay_s
from eventstore.alarms.figure import Figure
from eventstore.alarms.mail import Mail
from eventstore.alarms.notice import Notice
from eventstore.alarms.watch import AlarmChange
from eventstore.alarms.webhook import SIGNATURE, Webhook, signature
from eventstore.errors import InvalidArgument
from eventstore.settings.alarms import AlarmSettings
from tests.alarms.receivers import http_receiver, mail_server, talker
from tests.ports import free_port
from tests.security.conftest import Certificates
from tests.waiting import eventually

TIME_US = 1_700_000_000_000_000
CHANGES = (
    AlarmChange(
        "disk_nearly_full", (), True, TIME_US, 0.05, "free / size < 0.1", "disk_nearly_full: free / size is 0.05, < 0.1"
    ),
    AlarmChange(
        "group_behind", (("group", "b\x1b[2J\r\nBcc: all@example.org"),), False, TIME_US, 3.0, "backlog > 9", "x\r\ny\x1b[2J"
    ),
)
NOTICE = Notice("db-1 10.0.0.7:7701", TIME_US, CHANGES, more=7)


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.files("localhost"))
    return context


def mail_settings(port: int, **more: Any) -> AlarmSettings:
    given = {"mail_security": "none", "mail_from": "db@example.org", "mail_to": "ada@example.org, ops@example.org", **more}
    return AlarmSettings(mail_server=f"127.0.0.1:{port}", **given)


def test_a_mail_says_what_was_raised_and_what_is_over_and_no_name_adds_a_header() -> None:
    with mail_server() as box:
        Mail(mail_settings(box.port)).send(NOTICE)
    (mail,) = box.mails
    assert box.recipients == ["ada@example.org", "ops@example.org"]
    assert mail["Subject"].strip() == "eventstore: disk_nearly_full raised; group_behind over (db-1 10.0.0.7:7701)"
    assert mail["Bcc"] is None
    assert mail["Auto-Submitted"] == "auto-generated"
    text = mail.get_content().replace("\r", "")
    assert (
        "RAISED: disk_nearly_full: free / size is 0.05, < 0.1\n    since 2023-11-14T22:13:20Z, rule: free / size < 0.1" in text
    )
    assert r"over: x\r\ny\x1b[2J" in text
    assert "and 7 more" in text


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_mail_is_encrypted_and_its_user_known(security: Any, tmp_path: Path, certificates: Certificates) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    given = {"mail_security": security, "mail_user": "db", "mail_password_file": str(secret), "ca_file": certificates.ca}
    with mail_server(server_context(certificates), implicit=security == "tls", password=b"hunter2") as box:
        Mail(mail_settings(box.port, **given)).send(NOTICE)
        with pytest.raises(OSError, match="certificate verify failed"):
            Mail(mail_settings(box.port, **{**given, "ca_file": None})).send(NOTICE)
    assert box.users == [b"db"]
    assert len(box.mails) == 1


def test_a_mail_server_without_encryption_gets_none_where_it_is_wanted() -> None:
    with mail_server() as box:
        with pytest.raises(OSError, match="STARTTLS"):
            Mail(mail_settings(box.port, mail_security="starttls")).send(NOTICE)
    assert box.mails == []


def test_a_post_is_signed_over_its_body_and_time(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    with http_receiver() as posts:
        Webhook(AlarmSettings(webhook=posts.url, webhook_secret_file=str(key))).send(NOTICE)
    ((headers, body),) = posts.taken
    stamp, _, given = headers[SIGNATURE].removeprefix("t=").partition(",v1=")
    assert given == signature(b"s3cret", int(stamp), body)
    assert given != signature(b"s3cret", int(stamp) + 1, body)
    assert given != signature(b"s3cret", int(stamp), body + b" ")
    said = json.loads(body)
    assert said["source"] == "db-1 10.0.0.7:7701"
    assert [(each["alarm"], each["state"]) for each in said["changes"]] == [
        ("disk_nearly_full", "raised"),
        ("group_behind", "over"),
    ]
    assert said["changes"][1]["labels"] == {"group": "b\x1b[2J\r\nBcc: all@example.org"}


def test_the_signature_is_hmac_sha256_of_time_and_body() -> None:
    assert signature(b"key", 1_700_000_000, b"{}") == "9d713ed406bb7076d4123f0dc2c39d2df5c654ed4b0cd56b52c8b4c940bd63ae"


def test_a_post_over_tls_goes_to_a_server_that_is_known_only(certificates: Certificates) -> None:
    with http_receiver(tls=server_context(certificates)) as posts:
        Webhook(AlarmSettings(webhook=posts.url, ca_file=certificates.ca)).send(NOTICE)
        with pytest.raises(OSError, match="certificate verify failed"):
            Webhook(AlarmSettings(webhook=posts.url)).send(NOTICE)
    assert len(posts.taken) == 1


def test_an_answer_that_is_no_success_is_a_failure_and_no_redirection_is_followed() -> None:
    with http_receiver(500, 302, 404) as posts:
        hook = Webhook(AlarmSettings(webhook=posts.url))
        for status in (500, 302, 404):
            with pytest.raises(OSError, match=f"it answered {status}"):
                hook.send(NOTICE)
    assert posts.taken == []
    with pytest.raises(OSError, match="refused"):
        hook.send(NOTICE)


def test_a_receiver_that_answers_by_the_byte_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, certificates: Certificates
) -> None:
    monkeypatch.setattr(receiver, "WHOLE_S", 0.2)
    with talker(b"", b"HTTP/1.1 ", then=b"1") as port, pytest.raises(OSError, match=r"took longer than 0\.2 s"):
        Webhook(AlarmSettings(webhook=f"http://127.0.0.1:{port}/")).send(NOTICE)
    with talker(then=b"\x16\x03\x03\x40\x00\x02") as port, pytest.raises(OSError, match=r"took longer than 0\.2 s"):
        Webhook(AlarmSettings(webhook=f"https://127.0.0.1:{port}/", ca_file=certificates.ca)).send(NOTICE)
    with talker(b"220-", then=b"x") as port, pytest.raises(OSError, match=r"took longer than 0\.2 s"):
        Mail(mail_settings(port)).send(NOTICE)


def test_what_was_taken_is_not_sent_again_however_the_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "WHOLE_S", 0.2)
    with talker(b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n") as port:
        Webhook(AlarmSettings(webhook=f"http://127.0.0.1:{port}/")).send(NOTICE)
    answers = [b"220 hi\r\n", b"250 hi\r\n", b"250 from\r\n", b"250 to\r\n", b"354 go\r\n", b"250 taken\r\n"]
    with talker(*answers) as port:
        Mail(mail_settings(port, mail_to="ops@example.org")).send(NOTICE)


def test_a_mail_that_one_recipient_does_not_get_goes_to_the_others_once() -> None:
    with mail_server() as box:
        mail = Mail(mail_settings(box.port, mail_to="ada@example.org, nobody@example.org, ops@example.org"))
        for _ in range(2):
            with pytest.raises(OSError, match="nobody@example"):
                mail.send(NOTICE)
        box.unknown = ""
        mail.send(NOTICE)
        mail.send(replace(NOTICE, more=8))
    assert box.recipients == [
        "ada@example.org", "ops@example.org", "nobody@example.org",
        "ada@example.org", "nobody@example.org", "ops@example.org",
    ]  # fmt: skip


async def test_what_is_not_taken_is_sent_again() -> None:
    waits: list[int] = []

    def delay_s(attempts: int) -> float:
        waits.append(attempts)
        return 0.001

    with http_receiver(*[503] * 4) as posts:
        delivery = NoticeDelivery(Webhook(AlarmSettings(webhook=posts.url)), delay_s)
        await delivered(delivery, lambda: delivery.sent)
    assert posts.asked == 5
    assert waits == [1, 2, 3, 4]
    assert (delivery.failed, delivery.undelivered, delivery.waiting) == (4, 0, 0)
    assert delivery.attention is None


def test_attempts_are_further_apart_each_time_up_to_five_minutes() -> None:
    assert [longer_delay_s(attempts) for attempts in range(1, 12)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


async def test_what_is_never_taken_is_counted_and_said() -> None:
    delivery = NoticeDelivery(Webhook(AlarmSettings(webhook=f"http://127.0.0.1:{free_port()}/")), lambda _: 0.001)
    for _ in range(WAITING_MAX + 4):
        delivery.put(NOTICE)
    assert (delivery.waiting, delivery.undelivered) == (WAITING_MAX, 4)
    await delivered(delivery, lambda: delivery.undelivered >= 7)
    assert delivery.attention is not None
    assert delivery.attention.startswith("alarms cannot be sent by webhook: ")
    assert delivery.failed >= 2 * ATTEMPTS


def test_tests_give_up_no_notice_that_waits_and_do_not_pile_up() -> None:
    delivery = NoticeDelivery(Webhook(AlarmSettings(webhook=f"http://127.0.0.1:{free_port()}/")))
    for number in range(WAITING_MAX):
        delivery.put(replace(NOTICE, time_us=number))
    for _ in range(3 * WAITING_MAX):
        delivery.put(Notice(NOTICE.source, TIME_US, (), test="ada"))
    assert (delivery.waiting, delivery.undelivered) == (WAITING_MAX + 1, 0)
    delivery.put(replace(NOTICE, time_us=WAITING_MAX))
    waiting = list(delivery._waiting)
    assert [each.time_us for each in waiting if each.test is None] == list(range(1, WAITING_MAX + 1))
    assert sum(each.test is not None for each in waiting) == 1
    assert delivery.undelivered == 1


async def delivered(delivery: NoticeDelivery, done: Callable[[], object]) -> None:
    """Delivers one more notice, until something is done."""

    async def is_done() -> bool:
        return bool(done())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delivery.run)
        delivery.put(NOTICE)
        await eventually(is_done, "it is delivered")
        nursery.cancel_scope.cancel()


async def test_a_way_that_hangs_holds_up_no_other_and_no_stop(tmp_path: Path) -> None:
    with trio.socket.socket() as silent, http_receiver() as posts:
        await silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        alarms = Alarms(
            AlarmSettings(
                rules="mine: lag > 3", webhook=posts.url, mail_server=f"127.0.0.1:{silent.getsockname()[1]}",
                mail_from="a@b.c", mail_to="a@b.c", mail_security="none", interval_s=0.05,
            )
        )  # fmt: skip
        with trio.fail_after(8):  # less than the time-out of a mail server
            async with trio.open_nursery() as nursery:
                nursery.start_soon(alarms.run, lambda _: [Figure("lag", (), 4)])
                await eventually(posts.are_taken, "the post is taken")
                nursery.cancel_scope.cancel()
    assert alarms.names_raised == "mine"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"webhook": "ftp://host/"}, "alarm_webhook"),
        ({"webhook": "http://user:word@host/"}, "alarm_webhook"),
        ({"webhook": "http://host:port/"}, "alarm_webhook"),
        ({"webhook": "http:///"}, "alarm_webhook"),
        ({"webhook": "http://host/", "webhook_secret_file": "/no/such/file"}, "alarm_webhook_secret_file"),
        ({"webhook": "http://host/", "webhook_secret_file": "/dev/null"}, "alarm_webhook_secret_file"),
        ({"mail_to": "a@b.c"}, "alarm_mail_server"),
        ({"mail_server": "host:x"}, "alarm_mail_server"),
        ({"mail_server": "host"}, "alarm_mail_from"),
        ({"mail_server": "host", "mail_from": "a@b.c\r\nBcc: x@y.z", "mail_to": "a@b.c"}, "alarm_mail_from"),
        ({"mail_server": "host", "mail_from": "a@b.c", "mail_to": "a"}, "alarm_mail_to"),
        ({"mail_server": "host", "mail_from": "a@b.c", "mail_to": "a@b.c", "mail_user": "db"}, "alarm_mail_user"),
        (
            {
                "mail_server": "host", "mail_from": "a@b.c", "mail_to": "a@b.c", "mail_user": "db",
                "mail_password_file": __file__, "mail_security": "none",
            },
            "alarm_mail_security",
        ),
        ({"rules": "x: nothing at all"}, "alarm_rules"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Alarms(AlarmSettings(**given))
    assert caught.value.fields["field"] == field
