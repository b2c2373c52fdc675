"""Clients that begin a handshake and go: they get no answer, which the server would have to compute."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from eventstore.security.tls import ServerTls
from eventstore.server.access.security import Security
from eventstore.server.http import http_server
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.tls_connection import connections_over
from eventstore.settings.security import SecuritySettings
from eventstore.settings.server import ServerSettings
from tests.security.conftest import Certificates
from tests.waiting import DEADLINE_SECONDS, wait_until


@dataclass
class Ends:
    """What a server that listens with TLS makes of a client."""

    listener: socket.socket
    tls: ServerTls

    def client(self) -> tuple[socket.socket, socket.socket]:
        """Returns the sockets of a client and of the server."""
        client = socket.create_connection(self.listener.getsockname(), timeout=DEADLINE_SECONDS)
        return client, self.listener.accept()[0]

    def connection(self, own: socket.socket) -> ServerConnection:
        return connections_over(self.tls)(own, ("192.0.2.1", 1), 0.0)


@pytest.fixture
def ends(certificates: Certificates) -> Iterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Ends(listener, ServerTls(SecuritySettings(**certificates.settings())))


def client_hello(certificates: Certificates) -> bytes:
    outgoing = ssl.MemoryBIO()
    client = certificates.context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def end_of(client: socket.socket, own: socket.socket) -> None:
    """The client sends nothing more, which the server's end knows."""
    client.shutdown(socket.SHUT_WR)
    wait_until(lambda: own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\x08", "its end has arrived")


@pytest.mark.parametrize(("sent", "failed"), [(1, 1), (2, 1), (517, 1), (0, 0)])
def test_one_that_has_gone_before_it_is_accepted_becomes_no_connection(
    sent: int, failed: int, ends: Ends, certificates: Certificates
) -> None:
    client, own = ends.client()
    with client, own:
        client.sendall(client_hello(certificates)[:sent])
        end_of(client, own)
        with pytest.raises(ConnectionResetError):
            ends.connection(own)
    assert ends.tls.failed_handshakes.count == failed


def test_one_that_has_gone_before_it_is_served_gets_no_answer(ends: Ends, certificates: Certificates) -> None:
    client, own = ends.client()
    with client:
        connection = ends.connection(own)
        client.sendall(client_hello(certificates))
        end_of(client, own)
        assert connection.receive(0.0) is None
        connection.close()
        with pytest.raises(ConnectionResetError):  # what it has sent was not read
            client.recv(1)
    assert ends.tls.failed_handshakes.count == 1


def test_one_that_does_not_speak_tls_and_has_sent_all_it_will_is_told_so(ends: Ends) -> None:
    client, own = ends.client()
    with client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        end_of(client, own)
        connection = ends.connection(own)
        assert connection.receive(0.0) is None
        connection.close()
        assert b"takes TLS only" in client.recv(4096)


def test_one_that_stays_is_answered(ends: Ends, certificates: Certificates) -> None:
    client, own = ends.client()
    with client:
        connection = ends.connection(own)
        client.sendall(client_hello(certificates))
        assert connection.receive(0.0) == []
        assert client.recv(3) == b"\x16\x03\x03"
        connection.close()


def test_a_listener_of_http_without_a_console_names_the_address_as_others_do(
    tmp_path: Path, certificates: Certificates
) -> None:
    security = Security(ServerSettings(data=tmp_path, security=SecuritySettings(**certificates.settings())))
    assert security.tls is not None
    failed = security.tls.failed_handshakes
    with http_server("127.0.0.1:0", lambda _, __: [], lambda: {"healthy": True}, security) as address:
        assert address is not None
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            wait_until(lambda: failed.count == 1, "it is counted")
    assert str(failed.last).startswith("127.0.0.1: ")
