"""What a server with identities counts: refusals, and the audit trail."""

from __future__ import annotations

from typing import Final

from eventstore.metrics import Metric, counter, gauge
from eventstore.server.access.doorkeeper import Doorkeeper

ACCESS_METRICS: Final[tuple[Metric[Doorkeeper], ...]] = (
    counter(
        "logins_refused",
        "HELLOs without a valid token or certificate",
        lambda door: door.refused,
        "it grows: somebody guesses, or a token has expired; the log names addresses",
    ),
    counter("requests_denied", "requests, commits and commands that their identity may not make", lambda door: door.denied),
    counter("connections_sent_away", "connections closed because their identity changed", lambda door: door.sent_away),
    counter("identity_waits", "times a connection waited for a limit of its identity", lambda door: door.budgets.held),
    counter("audit_records", "records written to the audit trail", lambda door: door.audit_records),
    gauge(
        "audit_waiting",
        "records of the audit trail that wait for the disk",
        lambda door: door.audit_waiting,
        "it does not fall: requests that have to be recorded wait",
    ),
)
