"""What a server with a certificate counts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from eventstore.metrics import Metric, counter, gauge, text
from eventstore.security.tls import ServerTls


def _days_left(tls: ServerTls) -> int | None:
    """Returns whole days; negative once it has expired; None if the file does not say."""
    return None if tls.expires is None else (tls.expires - datetime.now(UTC)).days


TLS_METRICS: Final[tuple[Metric[ServerTls], ...]] = (
    gauge(
        "certificate_days_left",
        "days until the certificate in use, or one that signs it, expires",
        _days_left,
        "it falls below 14: replace the file, which is read again by itself",
    ),
    counter("certificate_reloads", "times certificate and key were read again", lambda tls: tls.reloads),
    counter(
        "certificate_reloads_failed",
        "times they could not be used, so that those in use stayed",
        lambda tls: tls.reloads_failed,
        "it grows: the log gives the reason",
    ),
    counter(
        "tls_handshakes_failed",
        "handshakes of TLS that failed or were not ended, at all listeners of the process",
        lambda tls: tls.failed_handshakes.count,
        "it grows: a client does not trust the certificate, has none, or something that is not a client talks to the port",
    ),
    text("tls_handshake_failed_last", "the last of these: address and reason", lambda tls: tls.failed_handshakes.last),
)
