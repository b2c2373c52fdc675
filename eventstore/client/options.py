"""Options of a client, the same for both."""

from __future__ import annotations

from dataclasses import dataclass

from eventstore.errors import InvalidArgument
from eventstore.fields import check_text
from eventstore.protocol.limits import NAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Options:
    """Timeouts in seconds, and a name.

    `connect_timeout`: for one attempt to connect, hello included. `reconnect_timeout`: how long calls wait for a lost
    connection to come back before they raise ConnectionLost. `silence_timeout`: how long a connection may stay silent while an
    answer is due before it counts as lost. `name`: shown in the server's log.
    """

    connect_timeout: float = 5.0
    reconnect_timeout: float = 30.0
    silence_timeout: float = 20.0
    name: str = "eventstore-python"

    def __post_init__(self) -> None:
        check_text("name", self.name, 0, NAME_BYTES_MAX)
        for field, low in (("connect_timeout", 0.001), ("reconnect_timeout", 0.0), ("silence_timeout", 0.001)):
            value = getattr(self, field)
            if not value >= low:  # written so that NaN is refused as well
                raise InvalidArgument(
                    f"{field} is {value} seconds, the least is {low:g}", field=field, limit=str(low), value=str(value)
                )
