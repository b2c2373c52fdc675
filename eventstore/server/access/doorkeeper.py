"""The doorkeeper: lets in the connections of known identities, and has their requests checked against what these may do.

One who is not known hears the same whatever is wrong, after a delay that doubles with each failure of its address. Whose
credential ends or whose grants change loses the connection within a second: it can connect again, as what it is by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import trio

from eventstore.errors import EventStoreError, Overloaded, PermissionDenied, ProtocolError, Unauthenticated
from eventstore.fields import escaped
from eventstore.protocol import encode_error
from eventstore.protocol.request_declaration import DECLARATIONS, Request
from eventstore.protocol.requests import Hello, WireCommand
from eventstore.security.access_list import UNLIMITED, AccessList, Credential, Identity
from eventstore.security.audit import AuditRecord, details_of
from eventstore.security.permissions import ANYONE, Permission
from eventstore.security.tls_socket import TlsSocket
from eventstore.server.access.auditor import Auditor
from eventstore.server.access.identity_budgets import IdentityBudgets
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.server.net.peers import network_of, peer_of_identity

HELD_BY_LOGIN: Final = 4
HELD_BY_AUDIT: Final = 8
_FIRST_DELAY_S: Final = 0.1
_DELAY_S_MAX: Final = 2.0  # clients wait longer than that for the answer to HELLO
_FORGIVEN_S: Final = 60.0
_ADDRESSES_MAX: Final = 10_000
_log = logging.getLogger(__name__)

Route = Callable[[ServerConnection, int, Any], None]


@dataclass(slots=True)
class Admitted:
    """A connection that was let in."""

    proof: Credential
    identity: Identity
    connections: set[ServerConnection]
    """All of the identity."""


class Doorkeeper:
    """`refused` counts logins that failed, `denied` requests that were not permitted, `sent_away` connections whose identity
    changed or ended. `has_topic`: whether a topic exists here; `changes`: whether a request changes the policy of a group.
    """

    def __init__(
        self,
        access: AccessList,
        gate: Gate,
        audit: Auditor | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`audit`: None at the address of a node, which has no store: its log says what is refused."""
        self._access, self._gate, self._audit, self._now = access, gate, audit, now
        self._admitted: dict[ServerConnection, Admitted] = {}
        self._connections: dict[str, set[ServerConnection]] = {}
        self.budgets = IdentityBudgets(gate)
        self.has_topic: Callable[[str], bool] = lambda _: False
        self.changes: Callable[[Any], bool] = lambda _: True
        self._failures: dict[str, tuple[int, float]] = {}
        self._late: list[tuple[float, ServerConnection, bytes]] = []
        self._news = trio.Event()
        self.refused = self.denied = self.sent_away = 0

    def admit(self, connection: ServerConnection, request_id: int, request: Hello) -> bool:
        """Whether the client may come in; if not, it is answered later.

        Raises:
            ProtocolError: it has come in before.
            Overloaded: its identity has as many connections as it may.
        """
        if connection.greeted:
            raise ProtocolError("HELLO is said once: open another connection to be somebody else")
        tls = connection.socket
        shown = tls.peer_certificate() if isinstance(tls, TlsSocket) else None
        proof = self._access.credential(request.token, shown)
        now = self._now()
        identity = self._access.identity(proof, now)
        if identity is None:
            who = f"{escaped(request.client) or 'no name'}, {connection.host}:{connection.port}"
            self._refuse(connection, request_id, who, escaped(self._access.refusal(request.token, proof, now)))
            return False
        connections = self._connections.setdefault(identity.name, set())
        limit = identity.limits.connections
        if limit is not None and sum(not each.closed for each in connections) >= limit:
            raise Overloaded(f"{identity.name} has {limit} connections, the limit of this identity; close some", limit=limit)
        connections.add(connection)
        connection.peer = peer_of_identity(identity.name)
        self._admitted[connection] = Admitted(proof, identity, connections)
        self._limit(connection, identity)
        if connection.charge is not None:
            connection.charge(connection)  # for this HELLO: until now it was not known whose it is
        return True

    def identity_of(self, connection: ServerConnection) -> Identity | None:
        """Returns who a connection is of."""
        found = self._admitted.get(connection)
        return None if found is None else found.identity

    # ---- those who are not let in

    def _refuse(self, connection: ServerConnection, request_id: int, who: str, why: str) -> None:
        self.refused += 1
        now = trio.current_time()
        delay = self._delay_of(network_of(connection.host), now)
        _log.warning("a login was refused (%s): %s; answered in %.1f s", who, why, delay)
        if self._audit is not None:
            self._audit.note_refused_login(who, why)
        error = Unauthenticated("this server lets in known clients only: give a valid token or certificate")
        self._gate.hold(connection, HELD_BY_LOGIN)
        self._late.append((now + delay, connection, encode_error(request_id, error)))
        self._news.set()

    def _delay_of(self, network: str, now: float) -> float:
        count, last = self._failures.pop(network, (0, now))
        count = 1 if now - last > _FORGIVEN_S else count + 1
        while len(self._failures) >= _ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]  # the one that failed the longest ago
        self._failures[network] = count, now
        return min(_FIRST_DELAY_S * 2.0 ** min(count - 1, 16), _DELAY_S_MAX)

    async def run(self) -> None:
        """Answers those who are not let in, when it is time; until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._late:
                await trio.sleep_until(min(due for due, _, _ in self._late))
                now = trio.current_time()
                due = [each for each in self._late if each[0] <= now]
                self._late = [each for each in self._late if each[0] > now]
                for _, connection, frame in due:
                    self._gate.send(connection, frame)
                self._gate.flush()
                for _, connection, _ in due:
                    self._gate.drop(connection, after_answers=True)

    # ---- what those may do who are

    def guard(self, routes: Mapping[type[Request], Route]) -> dict[type[Request], Route]:
        """Returns the routes; each checks first what its kind of request needs. Rows that are checked one by one are not."""
        return {
            kind: route if DECLARATIONS[kind].needs is ANYONE or DECLARATIONS[kind].needs.alone else self._guarded(kind, route)
            for kind, route in routes.items()
        }

    def _guarded(self, kind: type[Request], route: Route) -> Route:
        needs = DECLARATIONS[kind].needs
        audited = self._audit is not None and needs.recorded

        def checked(connection: ServerConnection, request_id: int, request: Any) -> None:
            try:
                self._admitted[connection].identity.grants.check_request(needs, request, self.has_topic, self.changes)
            except PermissionDenied:
                self.denied += 1
                raise
            if audited:
                self._record_first(connection, request_id, request, route)
            else:
                route(connection, request_id, request)

        return checked

    def _record_first(self, connection: ServerConnection, request_id: int, request: Request, route: Route) -> None:
        """Has a request carried out once it is in the audit trail; what follows on its connection waits. Raises Overloaded."""
        assert self._audit is not None, "only then is it audited"

        def recorded(error: EventStoreError | None) -> None:
            self._gate.hold(connection, HELD_BY_AUDIT, False)
            if not connection.closed:
                try:
                    if error is not None:
                        raise error
                    route(connection, request_id, request)
                except EventStoreError as refused:
                    self._gate.send(connection, encode_error(request_id, refused))
            self._gate.flush()

        who = self._admitted[connection].identity.name
        record = AuditRecord(DECLARATIONS[type(request)].name, who, connection.title, details_of(request))
        self._audit.note(record, recorded)
        self._gate.hold(connection, HELD_BY_AUDIT)

    def _limit(self, connection: ServerConnection, identity: Identity) -> None:
        """Has every frame of a connection counted from now on, whatever it asks for, and its answers, if there are limits."""
        connection.charge = None if identity.limits == UNLIMITED else self._charge
        self.budgets.count_answers(connection, identity)

    def _charge(self, connection: ServerConnection) -> None:
        admitted = self._admitted[connection]
        self.budgets.charge(connection, admitted.identity, admitted.connections)

    def refused_appends(self, connection: ServerConnection, commits: Sequence[Sequence[Any]]) -> Mapping[int, EventStoreError]:
        """Returns the error of each commit that the connection may not append, by its place: to this aggregate, or with a timer
        whose command it may not send.
        """
        grants = self._admitted[connection].identity.grants
        refused = {**grants.refused_timers(commits), **grants.refused_appends([commit[0] for commit in commits])}
        self.denied += len(refused)
        return refused

    def check_command(self, connection: ServerConnection, row: WireCommand) -> None:
        """Raises PermissionDenied."""
        try:
            self._admitted[connection].identity.grants.check(Permission.COMMAND, row[0])
        except PermissionDenied:
            self.denied += 1
            raise

    def may_command(self, connection: ServerConnection, name: str) -> bool:
        """Whether a client may send commands of a type, and so be told of it."""
        return self._admitted[connection].identity.grants.allows(Permission.COMMAND, name)

    # ---- changes

    def take(self, access: AccessList) -> None:
        """Goes by another list from now on."""
        if self._audit is not None:
            self._audit.note_changes(self._access, access)
        self._access = access
        self.look()

    def look(self) -> None:
        """Sends away those who are not what they were, and forgets closed connections."""
        now = self._now()
        for connection, admitted in list(self._admitted.items()):
            if connection.closed:
                self._forget(connection)
                continue
            current = self._access.identity(admitted.proof, now)
            if current is None or (current.name, current.grants) != (admitted.identity.name, admitted.identity.grants):
                self.sent_away += 1
                what = "its credential is not valid any more" if current is None else "its permissions were changed"
                _log.info("closing a connection (%s): %s", connection.title, what)
                self._forget(connection)
                self._gate.drop(connection)
            else:
                admitted.identity = current
                self._limit(connection, current)

    def _forget(self, connection: ServerConnection) -> None:
        admitted = self._admitted.pop(connection)
        admitted.connections.discard(connection)
        if not admitted.connections:
            self._connections.pop(admitted.identity.name, None)

    @property
    def audit_records(self) -> int:
        """How many records of the audit trail were written."""
        return 0 if self._audit is None else self._audit.records

    @property
    def audit_waiting(self) -> int:
        """How many wait for the disk."""
        return 0 if self._audit is None else self._audit.waiting
