"""The handshake: HELLO, which must be the first request of a connection, and its answer."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Final

from eventstore.errors import InvalidArgument, ProtocolError, UnsupportedVersion
from eventstore.fields import check_int, check_optional_int, check_text
from eventstore.flat import Scalar
from eventstore.protocol.limits import FRAME_BYTES_MAX, NAME_BYTES_MAX, PROTOCOL_VERSION, REQUESTS_MAX, UINT64_MAX
from eventstore.protocol.requests import Hello

STORE_UUID_BYTES: Final = 16
NODE_MAX: Final = 65_535
_WELCOME_VALUES: Final = 5


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to HELLO: the server and its limits on this connection. The fields are the values of the answer.

    `node`: the node of its broker, which message ids begin with; None without a broker.
    """

    version: int
    server: str
    store: bytes
    frame_bytes_max: int = FRAME_BYTES_MAX
    requests_max: int = REQUESTS_MAX
    node: int | None = None

    def values(self) -> tuple[Scalar, ...]:
        """Returns the values for `encode_ok`."""
        return astuple(self)


def agreed_version(hello: Hello) -> int:
    """Returns the protocol version of the connection: the lower one of the highest versions of both sides.

    Raises:
        UnsupportedVersion: they have none in common.
    """
    if hello.version < 1:
        raise UnsupportedVersion(
            f"protocol version {hello.version} is not supported, 1 to {PROTOCOL_VERSION} are",
            limit=PROTOCOL_VERSION,
            value=hello.version,
        )
    return min(hello.version, PROTOCOL_VERSION)


def read_welcome(values: tuple[Scalar, ...]) -> Welcome:
    """Decodes the answer to HELLO; later versions of the protocol may append values.

    Raises:
        ProtocolError: the values are not those of a welcome.
        UnsupportedVersion: the server chose a version that this client does not support.
    """
    if len(values) < _WELCOME_VALUES:
        raise ProtocolError(f"the answer to HELLO takes {_WELCOME_VALUES} values, got {len(values)}")
    version, server, store, frame_bytes_max, requests_max = values[:_WELCOME_VALUES]
    if not isinstance(store, bytes) or len(store) != STORE_UUID_BYTES:
        raise ProtocolError(f"the store's uuid takes {STORE_UUID_BYTES} bytes")
    try:
        welcome = Welcome(
            check_int("version", version, 0, UINT64_MAX),
            check_text("server", server, 0, NAME_BYTES_MAX),
            store,
            check_int("frame_bytes_max", frame_bytes_max, 1, UINT64_MAX),
            check_int("requests_max", requests_max, 1, UINT64_MAX),
            check_optional_int("node", values[_WELCOME_VALUES] if len(values) > _WELCOME_VALUES else None, 0, NODE_MAX),
        )
    except InvalidArgument as error:
        raise ProtocolError(f"the answer to HELLO: {error.message}", **error.fields) from None
    if not 1 <= welcome.version <= PROTOCOL_VERSION:
        raise UnsupportedVersion(
            f"the server speaks protocol version {welcome.version}, this client 1 to {PROTOCOL_VERSION}",
            limit=PROTOCOL_VERSION,
            value=welcome.version,
        )
    return welcome
