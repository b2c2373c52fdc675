"""Who is let in, and what they may do: by tokens and certificates, of identities whose grants are for names with a prefix."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

import eventstore as es
from eventstore.errors import ConnectionLost, InvalidArgument, PermissionDenied, ProtocolError, Unauthenticated
from eventstore.protocol.answers import Failure, Ok, Outcomes
from eventstore.protocol.frames import encode_frame
from eventstore.protocol.request_declaration import DECLARATIONS
from eventstore.protocol.requests import Append, Hello, Ping, Read
from eventstore.security.access_list import read_access
from eventstore.security.permissions import ANYONE, Permission
from eventstore.security.roles import ROLES
from eventstore.store.data_folder import ACCESS
from tests.fuzz.request_maker import MAKERS, RequestMaker
from tests.security.access_file import give, take_away
from tests.security.conftest import Certificates
from tests.server.raw import Gone, RawClient, commit
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, wait_until


def event() -> es.NewEvent:
    return es.NewEvent("Happened", b"{}")


def refused(server: ServerThread, token: str | None) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as caught:
        es.blocking.connect(server.address, token=token).__enter__()
    return caught.value


def test_a_server_warns_of_grants_whose_prefix_is_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An earlier version wrote them, for a variable that was not set, say."""
    data = tmp_path / "data"
    give(data, "billing", "read", "stats")
    file = data / ACCESS
    file.write_text(file.read_text().replace('"read"', '"read:"').replace('"stats"', '"stats:"'))
    with ServerThread(data):
        warned = [each.getMessage() for each in caplog.records if "nothing after the colon" in each.getMessage()]
    assert warned == read_access(file).of_everything
    assert len(warned) == 1
    assert warned[0].startswith("billing has the grant 'read:', with nothing after the colon, so it is for every name: ")


def test_one_without_grants_may_do_nothing_but_what_is_free(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = give(data, "nobody")
    with ServerThread(data) as server:
        before = server.ask(lambda running: running.store.engine.visible_sequence)
        for kind, declared in DECLARATIONS.items():
            if declared.needs is ANYONE:
                continue
            with RawClient(server.port, greet=False) as client:
                assert isinstance(client.ask(Hello(1, "raw", token=token)), Ok)
                denied = False
                for seed in range(1_000):  # some are malformed on purpose
                    if denied and seed >= 30:
                        break
                    client.send(encode_frame(seed + 2, declared.code, MAKERS[kind](RequestMaker(seed))))
                    answer = client.answer()[1]
                    if isinstance(answer, Outcomes):
                        assert set(answer.values[1::3]) <= {PermissionDenied.code, InvalidArgument.code}
                        denied = denied or PermissionDenied.code in answer.values[1::3]
                    else:
                        assert isinstance(answer, Failure), (kind, answer)
                        assert isinstance(answer.error, PermissionDenied | InvalidArgument | ProtocolError), (
                            kind,
                            answer.error,
                        )
                        denied = denied or isinstance(answer.error, PermissionDenied)
                assert denied, kind
        assert server.ask(lambda running: running.store.engine.visible_sequence) == before


def test_a_wrong_token_a_missing_one_and_a_revoked_one_are_refused_with_the_same_words(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = give(data, "billing", "writer")
    old = give(data, "old", "writer")
    late = give(data, "late", "writer", expires=datetime.now(UTC) - timedelta(seconds=1))
    take_away(data, "old")
    number, secret = token.removeprefix("es_").split("_", 1)  # which may have one as well
    with ServerThread(data) as server:
        errors = [
            refused(server, each) for each in (None, "x", old, late, f"es_{number}_{secret[::-1]}", "es__", "_" * 50, "es_é_ß")
        ]
        assert len({(each.message, tuple(each.fields)) for each in errors}) == 1
        with es.blocking.connect(server.address, token=token) as store:  # an address that failed is not locked out
            store.append("a", [event()], expected_version=es.ANY, command_id="c-1")


def test_the_token_comes_from_the_environment_or_a_file_and_is_never_sent_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    token = give(data, "billing", "reader")
    with ServerThread(data) as server:
        monkeypatch.setenv("EVENTSTORE_TOKEN", token)
        with es.blocking.connect(server.address) as store:
            assert store.version("a") == 0
        monkeypatch.setenv("EVENTSTORE_TOKEN", "wrong")
        (tmp_path / "token").write_text(f"{token}\n")
        monkeypatch.setenv("EVENTSTORE_TOKEN_FILE", str(tmp_path / "token"))
        with es.blocking.connect(server.address) as store:
            assert store.version("a") == 0
        with pytest.raises(InvalidArgument, match="use tls://"):
            es.blocking.connect("tcp://db.example.org:7701")
    assert token not in repr(Hello(1, "c", token=token))
    assert token.encode() not in (data / "access.json").read_bytes()


def test_a_commit_that_is_not_permitted_is_refused_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = give(data, "billing", "append:order-", "read:order-")
    with ServerThread(data) as server, es.blocking.connect(server.address, token=token) as store:
        outcomes = store.append_many(
            [es.Commit(each, [event()], es.ANY, f"c-{each}") for each in ("order-1", "x-1", "order-2", "orde")]
        )
        assert [isinstance(each, PermissionDenied) for each in outcomes] == [False, True, False, True]
        assert [each.aggregate_id for each in store.read_all(aggregate_prefix="order-")] == ["order-1", "order-2"]
        for call in (
            lambda: list(store.read_all()),
            lambda: list(store.read_all(aggregate_prefix="orde")),
            lambda: list(store.read("x-1")),
            lambda: store.version("never"),
            lambda: store.stats(),
            lambda: store.broker.create_topic("order-1"),
        ):
            with pytest.raises(PermissionDenied) as caught:
                call()
            assert "x-1" not in str(caught.value)


def test_what_a_refusal_says_does_not_depend_on_what_exists(tmp_path: Path) -> None:
    data = tmp_path / "data"
    admin, stranger = give(data, "admin", "admin"), give(data, "stranger", "append:mine-", "consume:mine-")
    with ServerThread(data) as server:
        with es.blocking.connect(server.address, token=admin) as store:
            store.append("there", [event()], expected_version=es.ANY, command_id="c-1")
            store.broker.create_topic("there")
        with es.blocking.connect(server.address, token=stranger) as store:
            errors = []
            for name in ("there", "not-there"):
                for call in (lambda name=name: store.version(name), lambda name=name: store.broker.delete_topic(name)):
                    with pytest.raises(PermissionDenied) as caught:
                        call()
                    errors.append((caught.value.message, caught.value.fields))
            assert errors[:2] == errors[2:]


def test_a_revoked_token_ends_its_connections_and_no_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    billing, shipping = give(data, "billing", "writer"), give(data, "shipping", "writer")
    with ServerThread(data) as server:
        with (
            es.blocking.connect(server.address, token=billing) as one,
            es.blocking.connect(server.address, token=shipping) as two,
        ):
            one.append("a", [event()], expected_version=es.ANY, command_id="c-1")
            connected = two._connection._link.socket
            take_away(data, "billing")
            wait_until(lambda: server.ask(lambda running: len(running.gate.connections)) == 1, "the connection is closed")
            with pytest.raises(Unauthenticated):
                one.append("a", [event()], expected_version=es.ANY, command_id="c-2")
            two.append("a", [event()], expected_version=es.ANY, command_id="c-3")
            assert two._connection._link.socket is connected


def test_a_list_with_a_permission_of_a_newer_version_is_refused_and_not_called_damaged(tmp_path: Path) -> None:
    give(tmp_path, "worker", "writer", "park:acc-")
    file = tmp_path / ACCESS
    file.write_text(file.read_text().replace("park:", "teleport:"))
    with pytest.raises(es.FolderRefused, match=r"'teleport'.*upgrade this program") as refused:
        read_access(file)
    assert "corrupt" not in refused.value.message
    assert "previous" not in refused.value.message


async def test_a_subscription_ends_when_its_permission_does(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token, admin = give(data, "reader", "subscribe:order-"), give(data, "admin", "admin")
    with ServerThread(data) as server:
        async with (
            es.connect(server.address, token=admin) as writing,
            es.connect(server.address, token=token, reconnect_timeout=5) as reading,
        ):
            with trio.fail_after(DEADLINE_SECONDS):
                async with reading.subscribe(after=0, aggregate_prefix="order-") as events:
                    await writing.append("order-1", [event()], expected_version=es.ANY, command_id="c-1")
                    async for each in events:
                        if isinstance(each, es.Event):
                            break
                    take_away(data, "reader")
                    give(data, "reader", "subscribe:other-")
                    with pytest.raises((PermissionDenied, Unauthenticated)):
                        async for _ in events:
                            pass


def test_a_token_that_expires_ends_its_connection(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = give(data, "brief", "writer", expires=datetime.now(UTC) + timedelta(seconds=2))
    with ServerThread(data) as server, es.blocking.connect(server.address, token=token) as store:
        store.append("a", [event()], expected_version=es.ANY, command_id="c-1")
        wait_until(lambda: not server.ask(lambda running: running.gate.connections), "the connection is closed")
        with pytest.raises(Unauthenticated):
            store.version("a")


def test_hello_is_said_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    one, two = give(data, "one"), give(data, "two", "admin")
    with ServerThread(data) as server, RawClient(server.port, greet=False) as client:
        client.ask(Hello(1, "raw", token=one))
        answer = client.ask(Hello(1, "raw", token=two))
        assert isinstance(answer, Failure)
        assert isinstance(answer.error, ProtocolError)
        answer = client.ask(Read("a"))
        assert isinstance(answer, Failure)
        assert isinstance(answer.error, PermissionDenied)


def test_requests_that_are_sent_with_a_wrong_hello_are_not_carried_out(tmp_path: Path) -> None:
    data = tmp_path / "data"
    admin = give(data, "admin", "admin")
    with ServerThread(data) as server:
        with RawClient(server.port, greet=False) as client:
            client.send_request(Hello(1, "raw", token="wrong"))
            client.send_request(Append([commit("a", "c-1")]))
            client.send_request(Ping())
            assert isinstance(client.answer()[1], Failure)
            with pytest.raises(Gone):
                client.answer()
        with es.blocking.connect(server.address, token=admin) as store:
            assert store.version("a") == 0


def test_the_subject_of_a_certificate_is_an_identity(tmp_path: Path, certificates: Certificates) -> None:
    data = tmp_path / "data"
    give(data, "billing", "writer:invoice-", certificates=["CN=billing"])
    with ServerThread(data, **certificates.settings(), http="127.0.0.1:0") as server:
        with es.blocking.connect(server.address, ssl_context=certificates.context("billing")) as store:
            store.append("invoice-1", [event()], expected_version=es.ANY, command_id="c-1")
            with pytest.raises(PermissionDenied):
                store.append("order-1", [event()], expected_version=es.ANY, command_id="c-1")
        for client in ("shipping", None):
            with pytest.raises(Unauthenticated):
                es.blocking.connect(server.address, ssl_context=certificates.context(client)).__enter__()
        where = server.http.replace("http://", "https://")
        with urllib.request.urlopen(f"{where}/metrics", context=certificates.context("billing")) as answer:
            assert answer.status == 200


def test_metrics_need_a_permission_and_health_says_little_without(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token, other = give(data, "prometheus", "stats"), give(data, "other", "read")
    with ServerThread(data, http="127.0.0.1:0") as server:
        for wrong in (None, "x", other):
            request = urllib.request.Request(
                f"{server.http}/metrics", headers={"Authorization": f"Bearer {wrong}"} if wrong else {}
            )
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request)
            assert caught.value.code == 401
            caught.value.close()
        right = urllib.request.Request(f"{server.http}/metrics", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(right) as answer:
            assert b"eventstore_" in answer.read()
        with urllib.request.urlopen(f"{server.http}/health") as answer:
            assert json.loads(answer.read()) == {"healthy": True}


def test_a_list_that_is_damaged_or_gone_changes_nothing_while_the_server_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = give(data, "billing", "writer")
    with ServerThread(data) as server, es.blocking.connect(server.address, token=token) as store:
        for content in (b"{", b"[]", b'{"format": 9}', b'{"format": 1, "identities": {"a": {"grants": ["nothing"]}}}', None):
            (data / "access.json").unlink()
            if content is not None:
                (data / "access.json").write_bytes(content)
            server.ask(lambda running: running.security.look())
            if content is None:
                break
            store.append("a", [event()], expected_version=es.ANY, command_id=f"c-{content!r}")
        assert store.version("a") == 4
        refused(server, None)


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"format": 9}', b'{"format": 1, "identities": []}', b'{"format": 1, "identities": {"a": 1}}']
)
def test_a_server_does_not_start_with_a_damaged_list(content: bytes, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "access.json").write_bytes(content)
    with pytest.raises(BaseExceptionGroup) as group:
        ServerThread(data).start()
    assert re.search("access.json", str(group.value.exceptions[0]))


def test_names_that_look_like_terminal_codes_or_paths_are_escaped_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    token = give(data, "billing", "writer")
    caplog.set_level("INFO")
    with ServerThread(data) as server:
        for name in ("\x1b[2J\x1b]0;x\x07", "../../etc/passwd\n2026 forged", "\u202eevil"):
            with RawClient(server.port, greet=False) as client:
                client.ask(Hello(1, name, token="es_\x1b[31m_\n"))
            with RawClient(server.port, greet=False) as client:
                client.ask(Hello(1, name, token=token))
                take_away(data, "billing")
                token = give(data, "billing", "writer")
                server.ask(lambda running: running.security.look())
                with pytest.raises(Gone):
                    client.answer()
    said = [each.getMessage() for each in caplog.records]
    assert sum("a login was refused" in each for each in said) == 3
    assert sum("is not valid any more" in each for each in said) == 3
    assert all(each.isprintable() for each in said)


def test_the_log_says_why_a_login_was_refused_and_the_client_hears_always_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    token = give(data, "billing", "writer", expires=datetime.now(UTC) - timedelta(hours=1))
    heard = set()
    with ServerThread(data) as server:
        for given in (token, "es_0123_456", None):
            with RawClient(server.port, greet=False) as client:
                heard.add(str(client.ask(Hello(1, "a client", token=given))))
    said = [each.getMessage() for each in caplog.records if "a login was refused (a client, 127.0.0.1:" in each.getMessage()]
    assert [each.partition("): ")[2].partition(";")[0] for each in said] == [
        f"token {token.split('_')[1]} of billing has expired", "an unknown token", "no token or certificate",
    ]  # fmt: skip
    assert len(heard) == 1


def test_an_identity_has_no_control_characters_in_its_name(tmp_path: Path) -> None:
    for name in ("\x1b[2J", "a\nb", ""):
        with pytest.raises(InvalidArgument):
            give(tmp_path, name, "reader")


def test_a_server_that_others_reach_needs_tls_and_identities_or_says_that_it_is_insecure(
    tmp_path: Path, certificates: Certificates
) -> None:
    def why(data: str, **settings: object) -> str:
        with pytest.raises(BaseExceptionGroup) as group:
            ServerThread(tmp_path / data, listen="0.0.0.0:0", **settings).start()
        return str(group.value.exceptions[0])

    assert "--tls-certificate" in why("a")
    assert "eventstore access add" in why("a", **certificates.settings())
    give(tmp_path / "b", "billing", "reader")
    assert "eventstore access add" not in why("b")
    assert not (tmp_path / "a").exists()
    with ServerThread(tmp_path / "b", listen="0.0.0.0:0", **certificates.settings()):
        pass
    with ServerThread(tmp_path / "c", listen="0.0.0.0:0", insecure=True):
        pass


def test_roles_grow_from_reader_to_admin() -> None:
    assert ROLES["reader"] < ROLES["writer"] < ROLES["admin"] == frozenset(Permission)
    assert not {Permission.READ, Permission.APPEND, Permission.CONSUME} & ROLES["operator"]


def test_a_consumer_needs_its_group_and_topics_and_gets_their_retries(tmp_path: Path) -> None:
    data = tmp_path / "data"
    admin = give(data, "admin", "admin")
    token = give(data, "mailer", "join:mail", "consume:orders")

    async def consume() -> None:
        async with es.connect(server.address, token=admin) as store:
            await store.broker.create_topic("orders")
            await store.broker.create_topic("secrets")
            await store.topic("orders").send(b"1")
        async with es.connect(server.address, token=token) as store:
            with pytest.raises(PermissionDenied):
                async with store.consumer("other", ["orders"]):
                    pass
            with pytest.raises(PermissionDenied):
                async with store.consumer("mail", ["secrets"]):
                    pass
            async with store.consumer("mail", ["orders"], from_end=False) as consumer:
                async for delivery in consumer:
                    assert delivery.body == b"1"
                    delivery.done()
                    break

    with ServerThread(data) as server:
        trio.run(consume)


def test_a_refused_address_waits_longer_each_time_and_is_forgiven(tmp_path: Path) -> None:
    data = tmp_path / "data"
    give(data, "billing", "writer")
    with ServerThread(data) as server:
        for _ in range(3):
            refused(server, "x")
        door = server.ask(lambda running: running.security._doorkeepers[0])
        assert door._failures["127.0.0.1"][0] == 3
        delays = [door._delay_of("192.0.2.1", 100.0) for _ in range(9)]
        assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0]
        assert door._delay_of("192.0.2.1", 161.0) == 0.1
        for number in range(20_000):
            door._delay_of(f"host-{number}", 161.0)
        assert len(door._failures) == 10_000


def test_a_client_that_loses_its_right_does_not_try_for_ever(tmp_path: Path) -> None:
    data = tmp_path / "data"
    give(data, "billing", "writer")
    with ServerThread(data) as server:
        tried = server.ask(lambda running: running.gate.acceptor.accepted)
        with pytest.raises(Unauthenticated):
            es.blocking.connect(server.address, token="x").__enter__()
        assert server.ask(lambda running: running.gate.acceptor.accepted) == tried + 1
    with pytest.raises(ConnectionLost):
        es.blocking.connect(server.address, token="x", reconnect_timeout=0).__enter__()


def test_the_list_and_its_previous_copy_are_private_from_the_first_moment_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, int] = {}
    real = os.open

    def noted(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_CREAT and flags & os.O_EXCL:
            opened[Path(path).name] = mode
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", noted)
    give(tmp_path, "billing", "reader")
    give(tmp_path, "shipping", "reader")
    assert opened == {"access.json.tmp": 0o600}
    for name in ("access.json", "access.json.previous"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
