"""Makes the contexts of TLS from files, and makes them again when the files change.

A context holds the certificate that new connections are shown; open connections keep theirs. Files that cannot be used while
the server runs change nothing: the log says so, and they are read again when they change again.
"""

from __future__ import annotations

import logging
import os
import ssl
from contextlib import suppress
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.security.expiry import expires
from eventstore.security.handshakes import FailedHandshakes
from eventstore.security.subjects import Shown, shown_by
from eventstore.settings.security import SecuritySettings

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_TURNS: Final = 4
"""More than a handshake of any version takes, if both sides are here."""
_log = logging.getLogger(__name__)


class ServerTls:
    """The certificate of a server.

    Attributes:
        context: for clients.
        peer_context: for other nodes, which must have a certificate.
        own_context: for connections that this server opens itself.
        expires: when the certificate expires; None: it is unknown.
    """

    def __init__(self, settings: SecuritySettings) -> None:
        """Raises InvalidArgument: a file cannot be used."""
        assert settings.tls_certificate is not None, "TLS is switched on"
        assert settings.tls_key is not None, "a certificate has a key"
        self._settings = settings
        self._files = (settings.tls_certificate, settings.tls_key, *([settings.tls_ca] if settings.tls_ca else []))
        self._seen = _signatures(self._files)
        self.context, self.peer_context, self.own_context = self._made()
        self.expires = expires(settings.tls_certificate)
        self.reloads = self.reloads_failed = 0
        self.failed_handshakes = FailedHandshakes()

    def _made(self) -> tuple[ssl.SSLContext, ssl.SSLContext, ssl.SSLContext]:
        settings, minimum = self._settings, _VERSIONS[self._settings.tls_minimum]
        required = settings.tls_clients == "required"
        contexts = _listening(settings, minimum, required=required), _listening(settings, minimum, required=True)
        own = client_context(settings.tls_ca, settings.tls_certificate, settings.tls_key)
        own.minimum_version = minimum
        return (*contexts, own)

    def context_to_self(self) -> ssl.SSLContext:
        """Returns the context of a connection to this process itself: it accepts the own certificate, whatever its names."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.minimum_version = _VERSIONS[self._settings.tls_minimum]
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # also if another one has signed it
        _load_ca(context, self._files[0])
        _load_certificate(context, self._files[0], self._files[1])
        return context

    def own_certificate(self) -> Shown | None:
        """Returns what another node with the same CA sees of the own certificate; None: it would not accept it."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = self.peer_context.wrap_bio(to_server, to_client, server_side=True)
        client = self.context_to_self().wrap_bio(to_client, to_server)
        try:
            for side in (client, server) * _TURNS:
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
            return shown_by(server.getpeercert())
        except (ssl.SSLError, ValueError):  # refused, or not complete
            return None

    def reload(self) -> None:
        """Reads the files again. If they cannot be used, the files in use stay."""
        self._seen = _signatures(self._files)
        try:
            self.context, self.peer_context, self.own_context = self._made()
        except InvalidArgument as error:
            self.reloads_failed += 1
            _log.error("the certificate in use stays: %s", error.message)
        else:
            self.reloads += 1
            self.expires = expires(self._files[0])
            _log.info("the certificate was read again: %s", self._settings.tls_certificate)

    def look(self) -> None:
        """Reads the files again if one of them has changed."""
        if _signatures(self._files) != self._seen:
            self.reload()


def server_tls(settings: SecuritySettings) -> ServerTls | None:
    """Returns the certificate of the settings; None: TLS is off.

    Raises:
        InvalidArgument: a file cannot be used, or settings do not go together.
    """
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_certificate"
        raise InvalidArgument(f"{missing} is missing: a certificate and its key go together", field=missing)
    if settings.tls_clients == "required" and (settings.tls_ca is None or settings.tls_certificate is None):
        raise InvalidArgument("tls_clients is required, so tls_certificate, tls_key and tls_ca are, too", field="tls_ca")
    return None if settings.tls_certificate is None else ServerTls(settings)


def _listening(settings: SecuritySettings, minimum: ssl.TLSVersion, *, required: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = minimum
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET  # a client keeps its connection; tickets would cost each one
    context.num_tickets = 0
    _load_certificate(context, settings.tls_certificate or "", settings.tls_key)
    if settings.tls_ca is not None:
        _load_ca(context, settings.tls_ca)
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def client_context(ca: str | None = None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """Returns the context of a client: it checks the server's certificate and name. `ca`: None: the system's.

    Raises:
        InvalidArgument: a file cannot be used.
    """
    if ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_ca(context, ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        _load_certificate(context, certificate, key)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # a key with a password must not ask for it
    except (OSError, ValueError) as error:
        files = certificate if key is None else f"{certificate} and {key}"
        raise _refused(files, "a certificate and the key of it, as PEM and without a password", error) from None


def _load_ca(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise _refused(ca, "the certificates of a CA, as PEM", error) from None


def _refused(files: str, expected: str, error: Exception) -> InvalidArgument:
    missing = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
    why = error.strerror if isinstance(error, OSError) and missing else getattr(error, "reason", None) or error
    return InvalidArgument(f"{files}: {why}; expected is {expected}", field="tls", value=files)


def _signatures(files: tuple[str, ...]) -> list[tuple[int, int, int] | None]:
    found: list[tuple[int, int, int] | None] = []
    for each in files:
        try:
            stat = os.stat(each)
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except OSError:
            found.append(None)
    return found
