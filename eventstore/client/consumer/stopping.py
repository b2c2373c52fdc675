"""How a consumer is stopped: it hands out nothing more, and its iteration or run ends as if there were no more messages."""

from __future__ import annotations


class ConsumerStopped(Exception):
    """Ends what waits for the messages of a consumer that is stopped. No user gets it."""
