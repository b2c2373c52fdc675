"""Records of TLS as the server receives them: large ones as a whole, and few at once of those that only change keys."""

from __future__ import annotations

import array
import fcntl
import hmac
import random
import socket
import ssl
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from eventstore.security.tls_socket import TlsSocket
from tests.security.conftest import Certificates

_DATA: Final = 23
_HANDSHAKE: Final = 22
_KEY_UPDATE: Final = b"\x18\x00\x00\x01\x01"  # and the other side is to change its keys as well
MANY: Final = 700


class Sender:
    """The records of a client with TLS_AES_256_GCM_SHA384, by RFC 8446, from its first secret on."""

    def __init__(self, secret: bytes) -> None:
        self._begin(secret)

    def _begin(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._secret, self._number = secret, 0
        self._cipher = AESGCM(_expanded(secret, b"key", 32))
        self._mask = int.from_bytes(_expanded(secret, b"iv", 12), "big")

    def record(self, content: bytes, kind: int = _DATA) -> bytes:
        plain = content + bytes([kind])
        header = b"\x17\x03\x03" + (len(plain) + 16).to_bytes(2, "big")
        nonce = (self._mask ^ self._number).to_bytes(12, "big")
        self._number += 1
        return header + self._cipher.encrypt(nonce, plain, header)

    def key_update(self) -> bytes:
        sent = self.record(_KEY_UPDATE, _HANDSHAKE)
        self._begin(_expanded(self._secret, b"traffic upd", 48))
        return sent


def _expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446 with SHA-384, of at most one block."""
    full = b"tls13 " + label
    return hmac.digest(secret, size.to_bytes(2, "big") + bytes([len(full)]) + full + b"\0\1", "sha384")[:size]


@pytest.fixture
def ends(certificates: Certificates, tmp_path: Path) -> Iterator[tuple[TlsSocket, socket.socket, Sender]]:
    """A server's end after the handshake, the plain socket of the other end, and what makes records for it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.files("localhost"))
    own = certificates.context()
    own.keylog_filename = str(tmp_path / "keys")
    near, far = socket.socketpair()
    with near, far:
        for each in (near, far):
            each.setblocking(False)
        server, client = TlsSocket(near, context, server_side=True), TlsSocket(far, own, server_side=False, host="localhost")
        while not (client.start() and server.greeted):
            for side in (server, client):
                with suppress(BlockingIOError):
                    side.recv(1 << 16) if side is server else side.feed()
        cipher = server._tls.cipher()
        assert cipher is not None
        assert cipher[0] == "TLS_AES_256_GCM_SHA384"
        lines = [line.split() for line in (tmp_path / "keys").read_text().splitlines()]
        (secret,) = [bytes.fromhex(line[2]) for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"]
        yield server, far, Sender(secret)


def waiting(server: TlsSocket) -> int:
    """Returns how many bytes have arrived and were not received."""
    count = array.array("i", [0])
    fcntl.ioctl(server.fileno(), termios.FIONREAD, count)
    return count[0]


def received(server: TlsSocket) -> bytes | None:
    try:
        return server.recv(1 << 18)
    except BlockingIOError:
        return None


def test_few_records_that_only_change_keys_are_taken_at_once(ends: tuple[TlsSocket, socket.socket, Sender]) -> None:
    server, far, sender = ends
    updates = [sender.key_update() for _ in range(MANY)]
    far.sendall(b"".join(updates) + sender.record(b"at last"))
    times, found = 0, None
    while found is None:
        before = waiting(server)
        found = received(server)
        times += 1
        assert (before - waiting(server)) // len(updates[0]) <= 20
    assert found == b"at last"
    assert times > MANY // 20


def test_large_records_are_received_many_at_once(ends: tuple[TlsSocket, socket.socket, Sender]) -> None:
    server, far, sender = ends
    sent = random.Random(1).randbytes(6 * 16_384)
    far.sendall(b"".join(sender.record(sent[at : at + 16_384]) for at in range(0, len(sent), 16_384)))
    assert received(server) == sent


@pytest.mark.parametrize("seed", range(5))
def test_records_of_all_sizes_arrive_in_any_pieces(seed: int, ends: tuple[TlsSocket, socket.socket, Sender]) -> None:
    server, far, sender = ends
    rng = random.Random(seed)
    sent = [rng.randbytes(rng.choice((1, 20, 300, 2_000, 16_384))) for _ in range(40)]
    stream = b"".join(sender.record(each) + (sender.key_update() if rng.random() < 0.1 else b"") for each in sent)
    found = bytearray()
    while stream:
        size = rng.choice((1, 3, 7, 100, 5_000, 40_000))
        far.sendall(stream[:size])
        stream = stream[size:]
        while waiting(server):
            found += received(server) or b""
    assert bytes(found) == b"".join(sent)
