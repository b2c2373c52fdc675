"""A client's connection that speaks TLS; the gate does not see the difference."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, cast

import trio

from eventstore.errors import ProtocolError
from eventstore.protocol import encode_error
from eventstore.security.handshakes import NOT_ENDED, PLAIN, FailedHandshakes
from eventstore.security.tls import ServerTls
from eventstore.security.tls_socket import TlsSocket
from eventstore.server.net.connection import ServerConnection

_HANDSHAKE: Final = b"\x16\x03"  # TLS begins so, then a byte that is not 0; a frame of that length has 0 there
_REFUSED_BYTES: Final = 4096
_CLOSE_WAIT: Final = 8  # the first byte of TCP_INFO, of a connection whose other end sends nothing more
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_TLS_ONLY: Final = "this address takes TLS only: connect to tls://HOST:PORT, or with --etcd give --tls-ca (EVENTSTORE_TLS_CA)"
_log = logging.getLogger(__name__)

MakeConnection = Callable[[socket.socket, tuple[Any, ...], float], ServerConnection]


class TlsConnection(ServerConnection):
    """As `ServerConnection`, over a `TlsSocket`. Before the handshake is over it counts as one that has not said hello."""

    __slots__ = ("_begun", "_expires", "_failed", "_looked", "_noted", "_raw", "tls")

    def __init__(
        self, raw: socket.socket, tls: TlsSocket, address: tuple[Any, ...], now: float, failed: FailedHandshakes
    ) -> None:
        self._raw, self.tls, self._failed = raw, tls, failed
        self._looked = self._begun = self._noted = False
        self._expires: datetime | None = None  # not known before the handshake is over
        super().__init__(cast("socket.socket", tls), address, now)

    def receive(self, now: float) -> list[bytes] | None:
        """As `ServerConnection.receive`. A client that does not speak TLS is told so; one that has gone already gets no answer,
        which would take 0.3 ms to compute.
        """
        if not self._looked:
            if self._is_plain():
                self._refuse_plain()
                return None
            if _has_gone(self._raw):
                return None
            self._looked = True
        payloads = super().receive(now)
        if payloads is None and self.tls.failed is not None:
            _log.info("closing a connection (%s): TLS failed: %s", self.title, self.tls.failed)
            if not self.greeted:  # also a client that refuses the certificate says so only after its handshake
                self._note(self.tls.failed)
        return payloads

    def _is_plain(self) -> bool:
        first = _first_of(self._raw)
        self._begun = bool(first)
        return not _begins_tls(first)

    def _refuse_plain(self) -> None:
        self._note(PLAIN)
        with suppress(OSError):
            self._raw.recv(_REFUSED_BYTES)  # closing a socket with unread bytes would reset the connection
            self._raw.send(encode_error(0, ProtocolError(_TLS_ONLY)))

    def has_expired(self, now: datetime) -> bool:
        """Whether the client has shown a certificate that is not valid any more."""
        if self._expires is None and self.tls.greeted:
            shown = self.tls.peer_certificate()
            self._expires = (None if shown is None else shown.expires) or _NEVER
        return self._expires is not None and self._expires <= now

    def close(self) -> None:
        """As `ServerConnection.close`. A handshake that was begun and not ended has failed."""
        if self._begun and not self.tls.greeted:
            self._note(NOT_ENDED)
        super().close()

    def _note(self, why: str) -> None:
        if not self._noted:
            self._noted = True
            self._failed.note(self.host, why)

    def flush(self) -> bool:
        """As `ServerConnection.flush`. What the handshake left unsent is sent first."""
        if self.writable and self.tls.owes and not self.unsent:
            try:
                if not self.tls.push():
                    self.unsent.append(b"")  # so that the gate waits for the socket to take more
                    self.writable = False
                    self.blocked_since = self.blocked_since or trio.current_time()
                    return True
            except OSError:
                return False
        return super().flush()


def connections_over(tls: ServerTls | None) -> MakeConnection:
    """Returns what makes a connection of an accepted socket: over TLS, with the certificate of that moment, or plain."""
    if tls is None:
        return ServerConnection

    def connection(own: socket.socket, address: tuple[Any, ...], now: float) -> ServerConnection:
        own.setblocking(False)
        if _has_gone(own):  # thousands of them a second would keep others out, if each became a connection first
            first = _first_of(own)
            if _begins_tls(first):
                if first:
                    tls.failed_handshakes.note(address[0], NOT_ENDED)
                raise ConnectionResetError(errno.ECONNRESET, NOT_ENDED)
        return TlsConnection(own, TlsSocket(own, tls.context, server_side=True), address, now, tls.failed_handshakes)

    return connection


def _has_gone(own: socket.socket) -> bool:
    """Whether the other end has closed its side. Without an answer to its first message it cannot have ended the handshake."""
    return own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSE_WAIT


def _first_of(own: socket.socket) -> bytes:
    with suppress(OSError):
        return own.recv(3, socket.MSG_PEEK)
    return b""


def _begins_tls(first: bytes) -> bool:
    """Whether what arrived first may be a handshake, also if it is less than one."""
    return _HANDSHAKE.startswith(first[:2]) and first[2:] != b"\0"
