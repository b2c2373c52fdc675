"""Options of a client, the same for both."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from ssl import SSLContext

from eventstore.client.address import Addresses
from eventstore.errors import InvalidArgument
from eventstore.fields import check_text
from eventstore.protocol.limits import NAME_BYTES_MAX, TOKEN_BYTES_MAX
from eventstore.security.tls import client_context
from eventstore.settings.setting_declaration import ENVIRONMENT_PREFIX


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Timeouts in seconds, and a name. `timeout`: of each call that is given none; None: it waits for its answer.

    `connect_timeout`: for one attempt to connect, hello included. `reconnect_timeout`: how long calls wait for a lost
    connection to come back before they raise ConnectionLost. `silence_timeout`: how long a connection may stay silent while an
    answer is due before it counts as lost; of several addresses the others are asked sooner, see `patience`. `name`: shown in
    the server's log. `ssl_context`: for addresses that begin with tls://. `token`: says who the client is; never shown.
    """

    connect_timeout: float = 5.0
    reconnect_timeout: float = 30.0
    silence_timeout: float = 20.0
    name: str = "eventstore-python"
    ssl_context: SSLContext | None = None
    token: str | None = field(default=None, repr=False)
    timeout: float | None = None

    def __post_init__(self) -> None:
        check_text("name", self.name, 0, NAME_BYTES_MAX)
        if self.token is not None:
            check_text("token", self.token, 1, TOKEN_BYTES_MAX)
        lows = {"connect_timeout": 0.001, "reconnect_timeout": 0.0, "silence_timeout": 0.001, "timeout": 0.0}
        for name, low in lows.items():
            value = getattr(self, name)
            if value is not None and not value >= low:  # written so that NaN is refused as well
                raise InvalidArgument(
                    f"{name} is {value} seconds, the least is {low:g}", field=name, limit=str(low), value=str(value)
                )

    def completed(self, addresses: Addresses) -> ClientOptions:
        """Returns the options for these addresses: what is not given here comes from the environment (EVENTSTORE_TOKEN or
        EVENTSTORE_TOKEN_FILE; EVENTSTORE_TLS_CA, EVENTSTORE_TLS_CERTIFICATE and EVENTSTORE_TLS_KEY).

        Raises:
            InvalidArgument: a file cannot be used, or the token would go over a network for everyone to read.
        """
        token = self.token if self.token is not None else _token_of_environment()
        context = self.ssl_context
        if context is None and addresses.first.tls:
            context = client_context(*(_variable(name) for name in ("TLS_CA", "TLS_CERTIFICATE", "TLS_KEY")))
        for each in addresses.in_turn():
            if token is not None and not (each.tls or each.is_loopback):
                raise InvalidArgument(
                    f"the token is not sent to {each}, where others could read it; use tls://", field="token", value=str(each)
                )
        return replace(self, ssl_context=context, token=token)


def scheme_of_environment() -> str:
    """Returns how addresses begin that a registry names: with tls if the environment names a CA."""
    return "tcp" if _variable("TLS_CA") is None else "tls"


def _variable(name: str) -> str | None:
    return os.environ.get(ENVIRONMENT_PREFIX + name) or None


def _token_of_environment() -> str | None:
    file = _variable("TOKEN_FILE")
    return _variable("TOKEN") if file is None else token_in(Path(file))


def token_in(file: Path) -> str:
    """Returns the token in a file. Raises InvalidArgument."""
    try:
        return check_text("token", file.read_text(encoding="utf-8").strip(), 1, TOKEN_BYTES_MAX)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"{file}: {why}; expected is a file with a token", field="token_file", value=str(file)) from None
