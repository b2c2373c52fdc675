"""The limits of a gate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GateLimits:
    """How much a connection, and all together, may hold up the server."""

    connections_max: int
    requests_max: int
    unsent_bytes_max: int
    outgoing_bytes_max: int
    hello_timeout_s: float
    frame_timeout_s: float
    idle_timeout_s: float
    slow_client_timeout_s: float
