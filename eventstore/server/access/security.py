"""What protects a server: its certificate, and the list of who may do what. It looks at the files once a second, and at once on
SIGHUP.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Final

from eventstore.client.options import ClientOptions, token_in
from eventstore.errors import EventStoreError, InvalidArgument, ProtocolError
from eventstore.fields import escaped
from eventstore.fields import shown as quoted
from eventstore.metrics import MetricSource
from eventstore.security.access_list import ACCESS, Identity, read_access
from eventstore.security.audit import AuditRecord
from eventstore.security.loopback import is_loopback
from eventstore.security.permissions import Permission
from eventstore.security.subjects import Shown
from eventstore.security.tls import server_tls
from eventstore.security.tls_socket import TlsSocket
from eventstore.server.access.access_metrics import ACCESS_METRICS
from eventstore.server.access.auditor import Auditor
from eventstore.server.access.doorkeeper import Doorkeeper
from eventstore.server.access.node_certificates import how_to_name, is_of_node
from eventstore.server.access.tls_metrics import TLS_METRICS
from eventstore.server.bootstrap import parse_address
from eventstore.server.feature import Feature
from eventstore.server.net.gate import Gate
from eventstore.server.net.tls_connection import MakeConnection, TlsConnection, connections_over
from eventstore.settings.server import ServerSettings
from eventstore.timing.shared_ticks import sleep_to_tick

if TYPE_CHECKING:  # a node, which has none, is to be small
    from eventstore.store.embedded import EmbeddedStore

_LOOK_S: Final = 1.0
_NAMED_MAX: Final = 10
_VISITOR_S: Final = 5.0
_BEARER: Final = "Bearer "
_log = logging.getLogger(__name__)


class Security:
    """Made before anything is opened: what is wrong is reported then. `access`: None: everyone may do everything."""

    def __init__(
        self, settings: ServerSettings, *, own_file: bool = True, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """`own_file`: the list in the data folder counts, if no other one is named.

        Raises:
            InvalidArgument: a file of TLS cannot be used; the server would be open to a network.
            Corrupt, FolderRefused: the list cannot be used.
        """
        given = settings.security
        self._given, self._now = given, now
        self.tls = server_tls(given)
        self.path = access_path(settings) if own_file or given.access_file is not None else None
        if given.access_file is not None and not Path(given.access_file).is_file():
            raise InvalidArgument(f"there is no file {given.access_file} for access_file", field="access_file")
        exists = self.path is not None and self.path.exists()
        self.access = read_access(self.path) if self.path is not None and exists else None
        self._seen = self._signature()
        self._doorkeepers: list[Doorkeeper] = []
        self._audit: Auditor | None = None
        self._peers: list[TlsSocket] = []
        self._unguarded: list[Gate] = []
        self._warn_of_access()
        _check_not_open(settings, encrypted=self.tls is not None, guarded=self.access is not None)

    @property
    def scheme(self) -> str:
        """How the addresses of this server begin."""
        return "tcp" if self.tls is None else "tls"

    @property
    def said(self) -> str:
        """What the log says of it at the start."""
        return "off: anyone who connects may do everything" if self.access is None else str(self.path)

    @property
    def make_connection(self) -> MakeConnection:
        """What the gate makes connections with."""
        return connections_over(self.tls)

    def features(self, door: Doorkeeper | None) -> list[Feature]:
        """Returns what runs and is reported of identities and of TLS, as far as they are on; without `run`."""
        found, tls = [], self.tls
        if door is not None:
            found.append(Feature(metrics=[MetricSource(ACCESS_METRICS, lambda: door)], run=door.run))
            found.append(Feature(run=door.budgets.run))
        if self._audit is not None:
            found.append(Feature(run=self._audit.run))
        if tls is not None:
            found.append(Feature(metrics=[MetricSource(TLS_METRICS, lambda: tls)]))
        return found

    def note(self, record: AuditRecord) -> None:
        """Has a record written to the audit trail, if there is one. Raises Overloaded: too many wait for the disk."""
        if self._audit is not None:
            self._audit.note(record)

    def doorkeeper(self, gate: Gate, store: EmbeddedStore | None = None) -> Doorkeeper | None:
        """Returns who guards a gate; None: no one. A certificate that clients must have then lets them in until it expires.

        `store`: has the audit trail; None: there is none.
        """
        if self.access is None:
            if self._given.tls_clients == "required":
                self._unguarded.append(gate)
            return None
        if store is not None:
            self._audit = Auditor(store, self.access)
        made = Doorkeeper(self.access, gate, self._audit, now=self._now)
        self._doorkeepers.append(made)
        return made

    def reload(self) -> None:
        """Reads the files again."""
        if self.tls is not None:
            self.tls.reload()
        self._read_access()

    def look(self) -> None:
        """Reads the files that have changed, and sends away whose time is over."""
        if self.tls is not None:
            self.tls.look()
        if self._signature() != self._seen:
            self._read_access()
        for each in self._doorkeepers:
            each.look()
        self._look_at_peers()
        for gate in self._unguarded:
            self._look_at_clients(gate)

    def _read_access(self) -> None:
        self._seen = self._signature()
        if self.path is None or (self.access is None and self._seen is None):
            return
        if self.access is None:
            _log.warning("%s is there now: it counts from the next start on", self.path)
            return
        try:
            self.access = read_access(self.path)
        except (EventStoreError, OSError) as error:
            _log.error("who may do what stays as it was: %s", error)
            return
        _log.info("who may do what was read again: %s", self.path)
        self._warn_of_access()
        for each in self._doorkeepers:
            each.take(self.access)

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            stat = os.stat(self.path or "")
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def check_peer(self, peer: TlsSocket) -> None:
        """Raises ProtocolError if the other side of a connection between replicas is not a node of the cluster. One that is
        has its connection shut down when it no longer is, or its certificate expires.
        """
        if self.access is not None and not is_of_node(self.access, peer.peer_certificate(), self._now()):
            shown = peer.peer_certificate()
            who = "who has no certificate" if shown is None else quoted(shown.subject)
            how = "" if shown is None else f"; if it is to be one: {self._how_to_name(shown)}"
            raise ProtocolError(f"{who} is not a node: no identity of it has the permission 'cluster'{how}")
        self._peers.append(peer)

    def warn_if_no_node(self) -> None:
        """Logs that other nodes will refuse this one, if the list, which they have as well, does not name its certificate."""
        own = None if self.tls is None or self.access is None else self.tls.own_certificate()
        if own is not None and not is_of_node(self.access, own, self._now()):
            _log.error(
                "other nodes will refuse this one: no identity in %s has its certificate %s and the permission 'cluster'; %s",
                self.path,
                quoted(own.subject),
                self._how_to_name(own),
            )

    def _how_to_name(self, shown: Shown) -> str:
        assert self.access is not None, "there are identities"
        assert self.path is not None, "which have a file"
        return how_to_name(self.access, self.path, shown, self._now())

    def _look_at_peers(self) -> None:
        self._peers = [each for each in self._peers if each.fileno() >= 0]
        for each in self._peers:
            if not is_of_node(self.access, each.peer_certificate(), self._now()):
                _log.warning("closing a connection of another replica: its certificate has expired, or is no longer a node's")
                with suppress(OSError):  # it is gone
                    each.shutdown(socket.SHUT_RDWR)

    def _look_at_clients(self, gate: Gate) -> None:
        now = self._now()
        for each in list(gate.connections):
            if isinstance(each, TlsConnection) and each.has_expired(now):
                _log.info("closing a connection (%s): its certificate has expired", each.title)
                gate.drop(each)

    def _warn_of_access(self) -> None:
        """Logs certificates that let no one in (of several identities, or never asked for), and grants without their prefix."""
        for each in [] if self.access is None else self.access.ambiguous[:_NAMED_MAX]:
            _log.error("%s", escaped(each))
        for each in [] if self.access is None else self.access.of_everything[:_NAMED_MAX]:
            _log.warning("%s", escaped(each))
        by_certificate = [] if self.access is None else [e.name for e in self.access.identities.values() if e.certificates]
        if by_certificate and (self.tls is None or self._given.tls_ca is None):
            _log.warning(
                "identities have certificates (%s), but no client is asked for one: give --tls-certificate and --tls-ca",
                ", ".join(by_certificate[:_NAMED_MAX]),
            )

    def may_scrape(self) -> Callable[[str | None, Shown | None], bool] | None:
        """Returns whether a header Authorization, or a certificate, lets one read metrics; None: all may."""
        if self.access is None:
            return None

        def may(header: str | None, certificate: Shown | None) -> bool:
            access = self.access
            assert access is not None, "it is not switched off"
            token = header[len(_BEARER) :].strip() if header is not None and header.startswith(_BEARER) else None
            found = access.identity(access.credential(token, certificate), self._now())
            return found is not None and found.grants.allows(Permission.STATS)

        return may

    def identity_of(self) -> Callable[[str], Identity | None] | None:
        """Returns whose a token is, now; None: identities are off."""
        if self.access is None:
            return None

        def identity(token: str) -> Identity | None:
            access = self.access
            assert access is not None, "it is not switched off"
            return access.identity(access.credential(token, None), self._now())

        return identity

    def visitor_options(self, token: str | None, name: str, *, to_self: bool) -> ClientOptions:
        """Returns how the console of this process connects to it, and with `to_self` False also to others of its cluster."""
        context = self.own_context if self.tls is None or not to_self else self.tls.context_to_self()
        return ClientOptions(
            connect_timeout=_VISITOR_S, reconnect_timeout=_VISITOR_S, name=name, ssl_context=context, token=token
        )

    def own_options(self, name: str, reconnect_s: float) -> ClientOptions:
        """Returns how this server connects to others of its cluster."""
        return ClientOptions(reconnect_timeout=reconnect_s, name=name, ssl_context=self.own_context, token=self.own_token)

    @property
    def own_context(self) -> SSLContext | None:
        """What this process connects to others with; None: it has no certificate, and goes by the environment."""
        return None if self.tls is None else self.tls.own_context

    @property
    def own_token(self) -> str | None:
        """The token with which this process connects to others."""
        return None if self._given.token_file is None else token_in(Path(self._given.token_file))

    async def run(self) -> None:
        """Looks once a second, until cancelled."""
        while True:
            await sleep_to_tick(_LOOK_S)
            self.look()


def access_path(settings: ServerSettings) -> Path:
    """Returns the file that says who may do what."""
    given = settings.security.access_file
    return settings.data / ACCESS if given is None else Path(given)


def _check_not_open(settings: ServerSettings, *, encrypted: bool, guarded: bool) -> None:
    """Raises InvalidArgument if everyone who reaches an address of the server could do everything, unless that is wanted."""
    if settings.security.insecure or (encrypted and guarded):
        return
    missing = " and ".join(
        text
        for text, there in (("a certificate (--tls-certificate)", encrypted), ("identities (eventstore access add)", guarded))
        if not there
    )
    for field, address in (("listen", settings.listen), ("http", settings.http)):
        if address is not None and not is_loopback(parse_address(address, field)[0]):
            raise InvalidArgument(
                f"{field} is {address}, which other machines reach, without {missing}; add that, or start with --insecure if "
                "everyone who reaches it may read and change everything",
                field=field,
                value=address,
            )
