"""A non-blocking socket that speaks TLS, with the calls of a plain one: what drives sockets needs no second way.

The bytes go through memory (`ssl.MemoryBIO`), so that one `recv` decrypts everything that one receive brought: nothing that
has arrived is left where a selector cannot see it. A `send` encrypts at most `_CHUNK_BYTES`. What the kernel does not take of
that is kept here; the last byte then counts as not sent, so that the caller waits for room and sends it again, as it does
without TLS. That byte is not encrypted twice.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from typing import Final

from eventstore.security.subjects import Shown, shown_by

_CHUNK_BYTES: Final = 64 * 1024
_RECORD_BYTES: Final = 16 * 1024  # of plain text; a larger buffer is filled no further
_PIECE_BYTES: Final = 512
"""What is received first besides the rest of a record, then four times as much. Records that only change keys take 40 µs each:
more of them at once would hold up the server.
"""
_HEADER_BYTES: Final = 5  # of a record: type, version, length of what follows
_OWED_BYTES_MAX: Final = 256 * 1024
_NO_BYTES: Final = memoryview(b"")


class TlsSocket:
    """Takes the place of a connected, non-blocking socket, which it owns.

    `recv` raises BlockingIOError while nothing has arrived, and during the handshake. Before the handshake is over, `send`
    refuses, because it is not known yet who the other side is.

    Attributes:
        failed: why TLS ended the connection.
    """

    __slots__ = ("_ahead", "_head", "_incoming", "_outgoing", "_rest", "_socket", "_tls", "_unsent", "failed", "greeted")

    def __init__(self, own: socket.socket, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        """`host`: whom the certificate of the server must name; None at a server."""
        self._socket = own
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=host)
        self._unsent = _NO_BYTES
        self._ahead = 0
        self._rest = 0  # bytes that are missing of the last record
        self._head = b""  # of the next one, if its header has not arrived completely
        self.greeted = False
        self.failed: str | None = None

    def recv(self, size: int) -> bytes:
        """Returns what has arrived, about `size` bytes at most; b"" at the end. Raises BlockingIOError, OSError.

        Goes on only while most of what it receives is data, and while more has arrived.
        """
        pieces: list[bytes] = []
        received, piece = 0, _PIECE_BYTES
        while received < size:
            wanted = min(min(self._rest, _RECORD_BYTES) + piece, size - received)
            piece = min(4 * piece, _RECORD_BYTES)
            try:
                arrived = self._socket.recv(wanted)
            except BlockingIOError:
                break
            records = self._passed(arrived)
            data = self._read(arrived)
            received += len(arrived)
            if data is not None:
                pieces.append(data)
            if len(arrived) < wanted or (records > 1 and len(data or b"") < len(arrived) // 4):
                break
        if not pieces:
            raise BlockingIOError
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _passed(self, arrived: bytes) -> int:
        """Follows the records in what has arrived; returns how many began in it."""
        if len(arrived) <= self._rest:
            self._rest -= len(arrived)
            return 0
        data, position, records = self._head + arrived[self._rest :], 0, 0
        while len(data) - position >= _HEADER_BYTES:
            position += _HEADER_BYTES + int.from_bytes(data[position + 3 : position + _HEADER_BYTES], "big")
            records += 1
        self._rest, self._head = max(0, position - len(data)), data[position:]
        return records

    def _read(self, arrived: bytes) -> bytes | None:
        """Returns what is complete, b"" at the end; None: nothing is."""
        if arrived:
            self._incoming.write(arrived)
        else:
            self._incoming.write_eof()
        try:
            if not self.greeted:
                self._shake_hands()
            return self._decrypted()
        except ssl.SSLWantReadError:
            return None if arrived else b""
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""
        except ssl.SSLError as error:
            self.failed = reason_of(error)
            raise
        finally:
            self._push()

    def _shake_hands(self) -> None:
        self._tls.do_handshake()
        self.greeted = True

    def _decrypted(self) -> bytes:
        data = self._tls.read(_RECORD_BYTES)  # raises SSLWantReadError: nothing is complete
        if not self._incoming.pending and not self._tls.pending():
            return data
        pieces = [data]
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError, ssl.SSLEOFError):
            while pieces[-1]:
                pieces.append(self._tls.read(_RECORD_BYTES))
        return b"".join(pieces)

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Returns how much was taken. Raises BlockingIOError: send the same later; OSError: before the handshake, too."""
        if not self.greeted:
            raise ConnectionError(errno.ENOTCONN, "the handshake of TLS is not over")
        if not data:
            return 0
        if self._unsent and not self._push():
            raise BlockingIOError
        ahead, self._ahead = self._ahead, 0
        rest = memoryview(data)[ahead : ahead + _CHUNK_BYTES]
        if not rest:
            return ahead
        taken = ahead + self._tls.write(rest)
        if not self._push():
            self._ahead = 1
            taken -= 1
        return taken

    def push(self) -> bool:
        """Sends what is encrypted and was not sent. Returns whether nothing is left. Raises OSError."""
        return self._push(raising=True)

    @property
    def owes(self) -> bool:
        """Whether something encrypted waits for the kernel to take it."""
        return bool(self._unsent) or self._outgoing.pending > 0

    def _push(self, *, raising: bool = False) -> bool:
        if self._outgoing.pending:
            more = self._outgoing.read()
            self._unsent = memoryview(bytes(self._unsent) + more if self._unsent else more)
            if len(self._unsent) > _OWED_BYTES_MAX:  # answers of TLS itself, to a client that asks for them and takes none
                raise ConnectionError(errno.ENOBUFS, "it takes none of the answers of TLS")
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return False
        except OSError:
            self._unsent = _NO_BYTES  # the connection is gone, which the next receive tells
            if raising:
                raise
        return True

    def start(self) -> bool:
        """Begins or continues the handshake, where a task waits for it. Returns whether it is over.

        Raises:
            OSError: the other side is gone, or is not who it should be.
        """
        if not self.greeted:
            try:
                self._shake_hands()
            except ssl.SSLWantReadError:
                pass
            finally:
                self._push()
        return self.greeted

    def feed(self) -> None:
        """Receives for the handshake. Raises BlockingIOError; OSError: the other side is gone."""
        data = self._socket.recv(_RECORD_BYTES)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed during the handshake of TLS")
        self._incoming.write(data)

    def peer_certificate(self) -> Shown | None:
        """Returns what the verified certificate of the other side says; None: it has shown none."""
        return shown_by(self._tls.getpeercert()) if self.greeted else None

    # ---- as a socket

    def setblocking(self, blocking: bool) -> None:
        self._socket.setblocking(blocking)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._socket.setsockopt(level, option, value)

    def fileno(self) -> int:
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        """Ends TLS in order, as far as the kernel takes it, and shuts the socket down."""
        if how != socket.SHUT_RD and self.greeted:
            with contextlib.suppress(ssl.SSLError, OSError):
                self._tls.unwrap()
            self._push()
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()


def reason_of(error: ssl.SSLError) -> str:
    """Returns why TLS failed: what is wrong with a certificate, or the name that OpenSSL has for it."""
    return getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
