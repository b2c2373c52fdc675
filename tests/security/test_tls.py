"""TLS on the listener of clients and of HTTP: what is sent arrives, who is not trusted is refused, and certificates change."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import ssl
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import anyio
import pytest
import trio

import eventstore as es
from eventstore.errors import ConnectionLost, InvalidArgument, ProtocolError
from eventstore.protocol.answers import Failure
from eventstore.protocol.frames import LENGTH
from eventstore.protocol.limits import FRAME_BYTES_MAX
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import Hello
from eventstore.security.certificates import make_certificate
from eventstore.security.expiry import expires, expires_of
from eventstore.security.handshakes import FailedHandshakes
from eventstore.server import http
from tests.security.conftest import Certificates
from tests.server.raw import RawClient
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, wait_until

BIG = bytes(range(256)) * 8_000  # 2 MB, many records of TLS


def event(data: bytes = b"{}") -> es.NewEvent:
    return es.NewEvent("Happened", data)


async def both_ways(address: str, context: ssl.SSLContext) -> None:
    async with es.connect(address, ssl_context=context) as store:
        await store.append("a", [event(BIG)], expected_version=0, command_id="c-1")
        async with anyio.create_task_group() as tasks:
            for number in range(64):
                tasks.start_soon(
                    lambda number=number: store.append(f"b-{number}", [event()], expected_version=es.ANY, command_id="c-1")
                )
        found = [each async for each in store.read_all()]
    assert len(found) == 65
    assert found[0].data == BIG


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_what_is_appended_over_tls_is_read_over_tls(backend: str, tls_server: ServerThread, certificates: Certificates) -> None:
    assert tls_server.address.startswith("tls://")
    anyio.run(both_ways, tls_server.address, certificates.context(), backend=backend)


def test_the_blocking_client_speaks_tls_as_well(tls_server: ServerThread, certificates: Certificates) -> None:
    with es.blocking.connect(tls_server.address, ssl_context=certificates.context()) as store:
        for number in range(50):
            store.append("a", [event(BIG if number % 10 == 0 else b"{}")], expected_version=es.ANY, command_id=f"c-{number}")
        assert [len(each.data) for each in store.read_all()] == [len(BIG) if n % 10 == 0 else 2 for n in range(50)]


def test_the_environment_says_which_ca_is_trusted(
    tls_server: ServerThread, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTSTORE_TLS_CA", certificates.ca)
    with es.blocking.connect(tls_server.address) as store:
        assert store.version("a") == 0
    monkeypatch.setenv("EVENTSTORE_TLS_CA", "/nowhere.pem")
    with pytest.raises(InvalidArgument, match=r"/nowhere\.pem: No such file"):
        es.blocking.connect(tls_server.address)


def test_a_server_of_another_ca_or_of_another_name_is_refused(
    tls_server: ServerThread, certificates: Certificates, tmp_path: Path
) -> None:
    make_certificate(tmp_path / "others", ["localhost"], 1)
    context = es_context(tmp_path / "others" / "ca.pem")
    with pytest.raises(ConnectionLost, match=r"CERTIFICATE_VERIFY_FAILED|self-signed|unable to get"):
        es.blocking.connect(tls_server.address, ssl_context=context).__enter__()
    other_host = tls_server.address.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(ConnectionLost):  # nobody listens there, or its certificate is of 127.0.0.1
        es.blocking.connect(other_host, ssl_context=certificates.context(), connect_timeout=1).__enter__()


def es_context(ca: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca))
    context.check_hostname = False
    return context


def test_one_who_does_not_speak_tls_is_told_to(tls_server: ServerThread) -> None:
    with pytest.raises(ProtocolError, match="takes TLS only"):
        es.blocking.connect(tls_server.address.replace("tls://", "tcp://")).__enter__()
    for name_bytes in range(256):  # whatever length its first frame has
        with RawClient(tls_server.port, greet=False) as client:
            client.send_request(Hello(1, "n" * name_bytes, token="t" * 600))
            answer = client.answer()[1]
            assert isinstance(answer, Failure)


def test_one_who_speaks_tls_to_a_plain_server_is_told_that_it_is_none(tmp_path: Path, certificates: Certificates) -> None:
    with ServerThread(tmp_path / "data") as server, pytest.raises(ConnectionLost, match=r"does not speak TLS; is it tcp://\?$"):
        es.blocking.connect(
            server.address.replace("tcp://", "tls://"), ssl_context=certificates.context(), reconnect_timeout=0
        ).__enter__()


def test_tls_1_2_is_spoken_only_if_a_setting_says_so(tmp_path: Path, certificates: Certificates) -> None:
    context = certificates.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with ServerThread(tmp_path / "new", **certificates.settings()) as server, pytest.raises(ConnectionLost, match="newer"):
        es.blocking.connect(server.address, ssl_context=context, reconnect_timeout=0).__enter__()
    with (
        ServerThread(tmp_path / "old", **certificates.settings(tls_minimum="1.2")) as server,
        es.blocking.connect(server.address, ssl_context=context) as store,
    ):
        store.append("a", [event(BIG)], expected_version=es.ANY, command_id="c-1")
        assert store.version("a") == 1


def test_a_client_without_a_certificate_is_refused_where_one_is_required(tmp_path: Path, certificates: Certificates) -> None:
    with ServerThread(tmp_path / "data", **certificates.settings(tls_clients="required")) as server:
        with es.blocking.connect(server.address, ssl_context=certificates.context("billing")) as store:
            assert store.version("a") == 0
        with pytest.raises(ConnectionLost, match="the certificate of a client"):
            es.blocking.connect(server.address, ssl_context=certificates.context(), reconnect_timeout=0).__enter__()

        async def connect() -> None:
            async with es.connect(server.address, ssl_context=certificates.context(), reconnect_timeout=0):
                pass

        with pytest.raises(ConnectionLost, match="the certificate of a client"):
            trio.run(connect)


def test_an_expired_certificate_of_a_client_is_refused(tmp_path: Path, certificates: Certificates) -> None:
    folder = tmp_path / "certificates"
    shutil.copytree(certificates.folder, folder)
    make_certificate(folder, ["late"], 1, starts=datetime.now(UTC) - timedelta(days=3))
    late = Certificates(folder).context("late")
    with (
        ServerThread(tmp_path / "data", **certificates.settings()) as server,
        pytest.raises(ConnectionLost, match="has expired; get a new one"),
    ):
        es.blocking.connect(server.address, ssl_context=late, reconnect_timeout=0).__enter__()


def test_a_certificate_of_a_client_that_is_far_too_large_is_refused(tmp_path: Path, certificates: Certificates) -> None:
    folder = tmp_path / "certificates"
    shutil.copytree(certificates.folder, folder)
    make_certificate(folder, ["big", *(f"host-{number}.example.org" for number in range(8_000))], 1)
    assert (folder / "big.pem").stat().st_size > 200_000
    with ServerThread(tmp_path / "data", **certificates.settings()) as server:
        with pytest.raises(ConnectionLost):
            es.blocking.connect(
                server.address, ssl_context=Certificates(folder).context("big"), reconnect_timeout=0
            ).__enter__()
        with es.blocking.connect(server.address, ssl_context=certificates.context("billing")) as store:
            assert store.version("a") == 0


def serial_of(port: int) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as secured:
        found = secured.getpeercert(binary_form=True)
        assert found is not None
        return found.hex()


def test_a_new_certificate_is_shown_to_new_connections_and_open_ones_stay(tmp_path: Path, certificates: Certificates) -> None:
    folder = tmp_path / "certificates"
    shutil.copytree(certificates.folder, folder)
    copied = Certificates(folder)
    with ServerThread(tmp_path / "data", **copied.settings(), http="127.0.0.1:0") as server:
        before = serial_of(server.port)
        with es.blocking.connect(server.address, ssl_context=copied.context()) as store:
            store.append("a", [event()], expected_version=es.ANY, command_id="c-1")
            connected = store._connection._link.socket
            certificate, key = map(Path, copied.files("localhost"))
            certificate.write_text("not a certificate")
            tls = server.ask(lambda running: running.security.tls)
            wait_until(lambda: tls.reloads_failed == 1, "the bad file is seen")
            assert serial_of(server.port) == before
            certificate.unlink()
            key.unlink()
            make_certificate(folder, ["localhost", "127.0.0.1"], 30)
            wait_until(lambda: serial_of(server.port) != before, "the new certificate is shown")
            store.append("a", [event()], expected_version=es.ANY, command_id="c-2")
            assert store._connection._link.socket is connected
        assert serial_of(int(server.http.rpartition(":")[2])) == serial_of(server.port)


@pytest.mark.parametrize("with_console", [True, False])
def test_metrics_and_health_are_served_over_tls_and_http_is_told_so(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, with_console: bool
) -> None:
    if not with_console:
        monkeypatch.setattr(http, "is_installed", lambda: False)
    with ServerThread(tmp_path / "data", **certificates.settings(), http="127.0.0.1:0") as server:
        where = server.http.replace("http://", "https://")
        with urllib.request.urlopen(f"{where}/health", context=certificates.context(), timeout=DEADLINE_SECONDS) as answer:
            assert answer.status == 200
        for _ in range(3):
            with pytest.raises(HTTPError) as refused:
                urllib.request.urlopen(f"{server.http}/health", timeout=DEADLINE_SECONDS)
            with refused.value:
                assert refused.value.code == 400
                assert refused.value.read() == b"this address takes https only: ask for https://HOST:PORT\n"
        failed = server.ask(lambda running: running.security.tls.failed_handshakes)
        assert (failed.count, failed.last) == (3, "127.0.0.1: it does not speak TLS")
        with urllib.request.urlopen(f"{where}/metrics", context=certificates.context(), timeout=DEADLINE_SECONDS) as answer:
            assert b"eventstore_" in answer.read()


def test_a_thousand_handshakes_that_stop_half_way_are_closed_and_hold_up_nobody(
    tmp_path: Path, certificates: Certificates
) -> None:
    settings = certificates.settings(connections_max=300, hello_timeout_s=0.5)
    with ServerThread(tmp_path / "data", **settings) as server:
        hello = client_hello(certificates)
        silent = []
        for number in range(1_000):
            each = socket.create_connection(("127.0.0.1", server.port))
            each.setblocking(False)
            with pytest.MonkeyPatch.context():
                each.send(hello[: 1 + number % len(hello)])
            silent.append(each)
            if number % 250 == 249:  # as many as the server has room for, again and again
                wait_until(lambda: server.ask(lambda running: len(running.gate.connections)) < 50, "they are closed")
        with es.blocking.connect(server.address, ssl_context=certificates.context()) as store:
            store.append("a", [event()], expected_version=es.ANY, command_id="c-1")
        for each in silent:
            each.close()
        wait_until(lambda: server.ask(lambda running: len(running.gate.connections)) == 0, "all are closed")


def test_one_whose_records_are_tiny_rests_although_it_asks_for_nothing(
    tls_server: ServerThread, certificates: Certificates
) -> None:
    with (
        es.blocking.connect(tls_server.address, ssl_context=certificates.context()) as other,
        socket.create_connection(("127.0.0.1", tls_server.port)) as raw,
    ):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tiny = certificates.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        while True:
            try:
                tiny.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(outgoing.read())
                incoming.write(raw.recv(65536))
        tiny.write(encode_request(1, Hello(1, "tiny")))
        raw.sendall(outgoing.read())
        assert raw.recv(65536), "until it is let in, frames are small"
        tiny.write(LENGTH.pack(FRAME_BYTES_MAX))

        def is_slowed() -> bool:
            for _ in range(2_000):
                tiny.write(b"x")
            raw.sendall(outgoing.read())
            assert other.version("a") == 0
            return tls_server.ask(lambda running: running.gate.scheduler.slowed) > 0

        wait_until(is_slowed, "it rests")


def client_hello(certificates: Certificates) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certificates.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_a_file_that_is_no_certificate_is_named_before_the_folder_is_made(tmp_path: Path, certificates: Certificates) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    for settings in (
        certificates.settings(tls_certificate=str(wrong)),
        certificates.settings(tls_ca=str(wrong)),
        certificates.settings(tls_key=certificates.files("billing")[1]),
    ):
        assert re.search("wrong.pem|billing.key", refusal(tmp_path, settings))
    assert not (tmp_path / "data").exists()
    assert "tls_key is missing" in refusal(tmp_path, {"tls_certificate": "a.pem"})


def refusal(tmp_path: Path, settings: dict[str, Any]) -> str:
    """Returns why a server does not start with these settings."""
    with pytest.raises(BaseExceptionGroup) as group:
        ServerThread(tmp_path / "data", **settings).start()
    (error,) = group.value.exceptions
    assert isinstance(error, InvalidArgument)
    return error.message


def test_garbage_instead_of_a_handshake_closes_the_connection(tls_server: ServerThread) -> None:
    for garbage in (b"\x16\x03\x01\x00\x05hello", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x03\xff\xff" + bytes(5_000)):
        with RawClient(tls_server.port, greet=False) as client:
            client.send(garbage)
            with contextlib.suppress(ConnectionResetError):
                while client.socket.recv(65_536):  # a deadline fails the test
                    pass
    assert tls_server.ask(lambda running: len(running.gate.connections)) == 0


def test_handshakes_that_fail_are_counted_and_said_once_a_minute(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with ServerThread(tmp_path / "data", **certificates.settings(), http="127.0.0.1:0") as server:
        hello = client_hello(certificates)
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", hello[:100], b""):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                with contextlib.suppress(OSError):
                    while client.recv(1_000):
                        pass
        with pytest.raises(OSError):
            urllib.request.urlopen(f"{server.http}/health", timeout=DEADLINE_SECONDS)
        with es.blocking.connect(server.address, ssl_context=certificates.context()) as store:
            wait_until(lambda: store.stats()["tls_handshakes_failed"] == 4, "those that failed are counted, and no other")
            assert 28 <= int(str(store.stats()["certificate_days_left"])) <= 30
            assert "127.0.0.1" in str(store.stats()["tls_handshake_failed_last"])
    said = [each.getMessage() for each in caplog.records if "a handshake of TLS failed" in each.getMessage()]
    assert len(said) == 1


def test_handshakes_that_fail_are_logged_once_a_minute_with_the_number_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((1.0, 2.0, 60.9, 61.0, 62.0))
    failed = FailedHandshakes(lambda: next(times))
    for _ in range(5):
        failed.note("192.0.2.1", "\x1b[2J")
    assert [each.getMessage() for each in caplog.records] == [
        r"a handshake of TLS failed (192.0.2.1: \x1b[2J)",
        r"a handshake of TLS failed (192.0.2.1: \x1b[2J), and 2 more since the last line",
    ]
    assert failed.count == 5


@pytest.mark.parametrize("days", [1, 30, 20_000])  # beyond 2050 the time has another form
def test_until_when_a_certificate_is_valid_is_read_from_it(days: int, tmp_path: Path) -> None:
    x509 = pytest.importorskip("cryptography.x509")
    make_certificate(tmp_path, ["localhost"], days)
    file = tmp_path / "localhost.pem"
    found = x509.load_pem_x509_certificate(file.read_bytes())
    assert expires(str(file)) == found.not_valid_after_utc
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "ca.pem").read_bytes() + file.read_bytes())
    assert expires(str(both)) == min(
        found.not_valid_after_utc, x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes()).not_valid_after_utc
    )
    der = ssl.PEM_cert_to_DER_cert(file.read_text())
    for end in range(0, len(der), 7):
        with pytest.raises(ValueError):
            expires_of(der[:end])
    assert expires(str(tmp_path / "none.pem")) is None
