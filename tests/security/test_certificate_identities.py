"""Identities by certificate: whose a subject is, until when, and what is said of one that is not let in."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from logging import LogRecord
from pathlib import Path

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

import eventstore as es
from eventstore.errors import ConnectionLost, InvalidArgument, Unauthenticated
from eventstore.security.access_list import ACCESS, AccessList, Identity, IdentityLimits, editing, read_access, write_access
from eventstore.security.certificates import make_certificate
from eventstore.security.expiry import expires
from eventstore.security.subjects import Shown, parsed_subject, shown_by, subject_text
from eventstore.security.tls import client_context
from eventstore.security.tls_socket import TlsSocket
from eventstore.server.access import auditor
from eventstore.server.access.security import Security
from eventstore.server.serve import Server
from eventstore.settings.security import SecuritySettings
from eventstore.settings.server import ServerSettings
from tests.security.access_file import give, take_away
from tests.security.conftest import Certificates
from tests.server_thread import ServerThread
from tests.waiting import wait_until


@pytest.mark.parametrize("with_token", [False, True])
def test_a_certificate_that_expires_ends_its_connection(with_token: bool, tmp_path: Path, certificates: Certificates) -> None:
    data, second = tmp_path / "data", timedelta(seconds=1)
    token = give(data, "billing", "writer", certificates=["CN=billing"])
    ends = expires(certificates.files("billing")[0])
    assert ends is not None

    def sent_away(server: ServerThread, now: datetime) -> int:
        """Returns how many connections the server has ended by then."""

        def look(running: Server) -> int:
            (door,) = running.security._doorkeepers
            door._now = lambda: now
            running.security.look()
            return door.sent_away

        return server.ask(look)

    with (
        ServerThread(data, **certificates.settings()) as server,
        es.blocking.connect(
            server.address,
            ssl_context=certificates.context("billing"),
            token=token if with_token else None,
            reconnect_timeout=0,
        ) as store,
    ):
        assert store.version("a") == 0
        assert sent_away(server, ends - second) == 0
        assert store.version("a") == 0
        assert sent_away(server, ends + second) == 1
        with pytest.raises(Unauthenticated):
            store.version("a")


@pytest.mark.parametrize("clients", ["required", "optional"])
def test_without_identities_a_certificate_that_clients_must_have_ends_its_connection_when_it_expires(
    clients: str, tmp_path: Path, certificates: Certificates
) -> None:
    ends = expires(certificates.files("billing")[0])
    assert ends is not None

    def look(server: ServerThread, now: datetime) -> list[bool]:
        """Returns of each connection that is left after a look at this time whether its client has said hello."""

        def looks(running: Server) -> list[bool]:
            running.security._now = lambda: now
            running.security.look()
            return sorted(each.greeted for each in running.gate.connections)

        return server.ask(looks)

    with (
        ServerThread(tmp_path, **certificates.settings(tls_clients=clients)) as server,
        es.blocking.connect(server.address, ssl_context=certificates.context("billing"), reconnect_timeout=0) as store,
    ):
        assert store.version("a") == 0
        late = socket.create_connection(("127.0.0.1", server.port))
        wait_until(lambda: look(server, ends - timedelta(seconds=1)) == [False, True], "both are there")
        left = [False, True] if clients == "optional" else [False]  # anyone may come in without one
        assert look(server, ends) == left, "nothing is known of the one without a handshake"
        with certificates.context("billing").wrap_socket(late, server_hostname="localhost"):
            left = [False, True] if clients == "optional" else []
            wait_until(lambda: look(server, ends) == left, "that one has shown its certificate, too")


def test_a_certificate_is_of_one_identity_only(tmp_path: Path) -> None:
    one, other = (Identity(name, certificates=("CN=billing",)) for name in ("billing", "intruder"))
    with pytest.raises(InvalidArgument, match="CN=billing is of billing, so it cannot be of intruder"):
        AccessList({"billing": one}).with_(other)
    give(tmp_path, "billing", "reader", certificates=["CN=billing"])
    file = tmp_path / ACCESS
    tree = json.loads(file.read_text())
    with pytest.raises(InvalidArgument):
        give(tmp_path, "intruder", "admin", certificates=["CN=billing"])
    assert json.loads(file.read_text()) == tree
    assert list(read_access(file).identities) == ["billing"]


def test_a_certificate_that_a_file_gives_to_two_identities_is_of_none_until_one_is_revoked(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    give(data, "billing", "reader", certificates=["CN=billing"])
    give(data, "shipping", "writer", certificates=["CN=shipping"])
    file = data / ACCESS
    file.write_text(file.read_text().replace("CN=shipping", "CN=billing"))
    said = (
        "the certificate CN=billing is of billing and shipping, so it lets no one in: take it from all but one of them "
        "(`eventstore access revoke NAME --certificate SUBJECT`)"
    )
    context = certificates.context("billing")
    with ServerThread(data, **certificates.settings()) as server:
        assert [each.getMessage() for each in caplog.records].count(said) == 1
        with pytest.raises(Unauthenticated):
            es.blocking.connect(server.address, ssl_context=context, reconnect_timeout=0).__enter__()
        assert any("a login was refused" in each and said in each for each in map(LogRecord.getMessage, caplog.records))
        with editing(file) as known:  # limits of one that has it are still changed
            write_access(file, known.with_(replace(known.identities["billing"], limits=IdentityLimits(connections=3))))
        with editing(file) as known:
            write_access(file, known.with_(replace(known.identities["shipping"], certificates=())))
        server.ask(lambda running: running.security.look())
        with es.blocking.connect(server.address, ssl_context=context, reconnect_timeout=0) as store:
            assert store.version("a") == 0
    assert read_access(file).ambiguous == []


def test_a_subject_is_typed_as_openssl_prints_it_and_known_as_tls_shows_it() -> None:
    subject = (
        (("countryName", "DE"),),
        (("stateOrProvinceName", "HH"),),
        (("organizationName", "Example, Inc=\\+"),),
        (("commonName", "a"),),
        (("commonName", "b"),),
        (("userId", "7"),),
    )
    text = subject_text(subject)
    assert text == r"C=DE,stateOrProvinceName=HH,O=Example\, Inc\=\\\+,CN=a,CN=b,userId=7"
    assert parsed_subject(text) == text
    assert parsed_subject(r"C = DE, ST = HH, O = Example\, Inc\=\\\+, CN = a, CN = b, UID = 7") == text
    assert parsed_subject("CN=") == "CN="


NAMES = ["commonName", "givenName", "surname", "serialNumber", "emailAddress", "streetAddress", "1.2.3.4", "organizationName"]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.text(st.characters(exclude_categories=["Cs"]))), min_size=1))
@example([("organizationName", 'The "X" Co'), ("commonName", " a "), ("commonName", " "), ("commonName", '"')])
def test_each_subject_is_taken_as_the_log_shows_it(pairs: list[tuple[str, str]]) -> None:
    text = subject_text(tuple((pair,) for pair in pairs))
    assert parsed_subject(text) == text


def test_each_subject_is_taken_as_openssl_prints_it(tmp_path: Path) -> None:
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding

    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    values = ["g", 's "t" u', " a ", "Ex, Inc", "Müller+Söhne=1", "#x", "back\\slash", "line\nbreak", "", '"', "x;y<z>"]
    oid, key = x509.oid.NameOID, generate_private_key(SECP256R1())
    named = [oid.GIVEN_NAME, oid.SURNAME, oid.STREET_ADDRESS, oid.USER_ID, oid.EMAIL_ADDRESS, oid.TITLE]
    named += [oid.JURISDICTION_LOCALITY_NAME, x509.ObjectIdentifier("1.2.3.4"), oid.ORGANIZATION_NAME]
    pairs = [(named[number % len(named)], value) for number, value in enumerate(values)]
    name = x509.Name([x509.NameAttribute(each, value, _validate=False) for each, value in pairs if value])
    now, ca = datetime.now(UTC), x509.BasicConstraints(ca=True, path_length=None)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    made = builder.add_extension(ca, critical=True).sign(key, SHA256())
    file = tmp_path / "made.pem"
    file.write_bytes(made.public_bytes(Encoding.PEM))
    printed = subprocess.run(["openssl", "x509", "-noout", "-subject", "-in", file], check=True, capture_output=True, text=True)
    (found,) = ssl.create_default_context(cafile=str(file)).get_ca_certs()  # as getpeercert
    assert parsed_subject(printed.stdout.removeprefix("subject=").strip("\n")) == subject_text(found["subject"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "billing",
        "=x",
        "CN=a=b",
        "CN=a,",
        "CN=a,b",
        "CN=a+b",
        'O="Ex',
        'O="Ex"x',
        "cn=x",
        "E=x",
        "CN=a\\",
        "CN=\\ff",
        "CN=\udcff",
    ],
)
def test_what_is_not_a_subject_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a subject such as CN=billing"):
        parsed_subject(text)


def test_the_operator_reads_why_a_certificate_is_not_let_in_and_not_all_of_a_long_subject() -> None:
    access = AccessList({"billing": Identity("billing", certificates=("CN=billing",))})
    now = datetime(2001, 2, 3, tzinfo=UTC)  # of the caller's clock
    soon, past = now + timedelta(days=1), now - timedelta(seconds=1)

    def why(shown: Shown | None) -> str:
        proof = access.credential(None, shown)
        assert access.identity(proof, now) is None
        return access.refusal(None, proof, now)

    assert access.identity(access.credential(None, Shown("CN=billing", soon)), now) is access.identities["billing"]
    assert why(None) == "no token or certificate"
    assert why(Shown("CN=billing", past)) == "a certificate that has expired"
    assert why(Shown("", soon)).startswith("a certificate without a subject")
    assert why(Shown("CN=x", soon)) == "no identity has the certificate CN=x"
    assert len(why(Shown("CN=" + "x" * 60_000, soon))) < 600


def test_a_wrong_token_is_not_made_good_by_a_certificate(tmp_path: Path, certificates: Certificates) -> None:
    data = tmp_path / "data"
    give(data, "billing", "reader", certificates=["CN=billing"])
    token = give(data, "ops", "writer")
    context = certificates.context("billing")
    with ServerThread(data, **certificates.settings()) as server:
        with pytest.raises(Unauthenticated):
            es.blocking.connect(server.address, ssl_context=context, token="es_0_0", reconnect_timeout=0).__enter__()
        with es.blocking.connect(server.address, ssl_context=context, token=token) as store:  # as ops, who may write
            assert store.append("a", [es.NewEvent("T")], expected_version=0).version == 1


def test_the_log_says_that_certificates_of_identities_are_never_asked_for(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    give(tmp_path, "billing", "reader", certificates=["CN=billing"])
    certificate, key = certificates.files("localhost")

    def said(ca: str | None) -> list[str]:
        caplog.clear()
        given = SecuritySettings(tls_certificate=certificate, tls_key=key, tls_ca=ca)
        Security(ServerSettings(data=tmp_path, security=given))
        return [each.getMessage() for each in caplog.records]

    assert said(certificates.ca) == []
    (line,) = said(None)
    assert "identities have certificates (billing)" in line
    assert "--tls-ca" in line


@pytest.mark.parametrize("end", ["revoked", "expired", "expired without identities"])
def test_a_replica_that_is_no_longer_a_node_loses_its_connection(end: str, tmp_path: Path, certificates: Certificates) -> None:
    if end != "expired without identities":
        give(tmp_path, "nodes", "cluster", certificates=["CN=billing"])
    certificate, key = certificates.files("localhost")
    given = SecuritySettings(tls_certificate=certificate, tls_key=key, tls_ca=certificates.ca)
    ends = expires(certificates.files("billing")[0])
    assert ends is not None
    clock = [ends - timedelta(seconds=1)]
    security = Security(ServerSettings(data=tmp_path, security=given), now=lambda: clock[0])
    assert security.tls is not None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for each in (ours, theirs):
            each.setblocking(False)
        server = TlsSocket(ours, security.tls.peer_context, server_side=True)
        client = TlsSocket(theirs, certificates.context("billing"), server_side=False, host="localhost")
        while not (server.start() & client.start()):
            for side in (server, client):
                try:
                    side.feed()
                except BlockingIOError:
                    continue
        security.check_peer(server)
        security.look()
        with pytest.raises(BlockingIOError):
            client.recv(65_536)
        if end == "revoked":
            take_away(tmp_path, "nodes")
        else:
            clock[0] = ends
        security.look()
        assert client.recv(65_536) == b""


def made_for(folder: Path, use: str) -> Certificates:
    """Returns a CA, and the certificate `localhost` of it that is for this use only: serverAuth or clientAuth."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    make_certificate(folder, ["localhost", "127.0.0.1"], 1)
    both = x509.load_pem_x509_certificate((folder / "localhost.pem").read_bytes())
    oid = {"serverAuth": x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, "clientAuth": x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH}[use]
    builder = x509.CertificateBuilder(
        both.issuer, both.subject, both.public_key(), both.serial_number, both.not_valid_before_utc, both.not_valid_after_utc
    )
    for each in both.extensions:
        value = x509.ExtendedKeyUsage([oid]) if isinstance(each.value, x509.ExtendedKeyUsage) else each.value
        builder = builder.add_extension(value, each.critical)
    made = builder.sign(load_pem_private_key((folder / "ca.key").read_bytes(), None), SHA256())
    (folder / "localhost.pem").write_bytes(made.public_bytes(Encoding.PEM))
    return Certificates(folder)


async def opened(address: str, context: ssl.SSLContext) -> None:
    async with es.connect(address, ssl_context=context, reconnect_timeout=0):
        pass


@pytest.mark.parametrize("use", ["serverAuth", "clientAuth"])
def test_a_certificate_for_another_use_is_refused_in_words(use: str, tmp_path: Path, certificates: Certificates) -> None:
    other = made_for(tmp_path / "other", use)
    if use == "serverAuth":  # and a client shows it
        server, context, why = (
            certificates.settings(tls_ca=other.ca),
            client_context(certificates.ca, *other.files("localhost")),
            "clients",
        )
    else:
        server, context, why = other.settings(), client_context(other.ca), "servers"
    said = rf"is not one for {why} \(extended key usage\)"
    with ServerThread(tmp_path / "data", **server) as running:
        with pytest.raises(ConnectionLost, match=said):
            es.blocking.connect(running.address, ssl_context=context, reconnect_timeout=0).__enter__()
        with pytest.raises(ConnectionLost, match=said):
            trio.run(opened, running.address, context)


def test_without_a_certificate_nothing_is_shown() -> None:
    assert shown_by(None) is None
    assert shown_by({}) is None
    assert shown_by({"subject": (), "notAfter": "Feb 25 09:55:23 2027 GMT"}) == Shown(
        "", datetime(2027, 2, 25, 9, 55, 23, tzinfo=UTC)
    )


def test_a_start_reads_the_last_record_of_the_audit_trail_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = auditor.Auditor._last
    counted = []

    async def counting(self: auditor.Auditor) -> bytes | None:
        counted.append(trio.current_time())
        return await read(self)

    monkeypatch.setattr(auditor.Auditor, "_last", counting)
    data = tmp_path / "data"
    token = give(data, "ops", "admin")
    for number in range(2):
        counted.clear()
        with ServerThread(data) as server, es.blocking.connect(server.address, token=token) as store:
            for topic in range(2):
                store.broker.create_topic(f"t-{number}-{topic}")
        assert len(counted) == 1
