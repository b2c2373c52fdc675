"""The hello: the first request of a connection, and its answer. Nothing else is understood before it."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Final

from eventstore.errors import InvalidArgument, ProtocolError, UnsupportedVersion
from eventstore.fields import check_int, check_optional_int, check_text
from eventstore.flat import Scalar
from eventstore.protocol.limits import FRAME_BYTES_MAX, NAME_BYTES_MAX, PROTOCOL_VERSION, REQUESTS_MAX
from eventstore.protocol.requests import UINT64_MAX, Hello

STORE_UUID_BYTES: Final = 16
NODE_MAX: Final = 65_535
_WELCOME_VALUES: Final = 5


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the server says about itself and allows on this connection; the fields are the values of the answer.

    `node`: that of its broker, which message ids begin with; None where it has none.
    """

    version: int
    server: str
    store: bytes
    frame_bytes_max: int = FRAME_BYTES_MAX
    requests_max: int = REQUESTS_MAX
    node: int | None = None

    def values(self) -> tuple[Scalar, ...]:
        """For `encode_ok`."""
        return astuple(self)


def agreed_version(hello: Hello) -> int:
    """The protocol version both sides speak: the lower of their highest ones.

    Raises:
        UnsupportedVersion: there is none.
    """
    if hello.version < 1:
        raise UnsupportedVersion(
            f"protocol version {hello.version} is not spoken here, 1 to {PROTOCOL_VERSION} are",
            limit=PROTOCOL_VERSION,
            value=hello.version,
        )
    return min(hello.version, PROTOCOL_VERSION)


def read_welcome(values: tuple[Scalar, ...]) -> Welcome:
    """The answer to a hello; a later version of the protocol may say more.

    Raises:
        ProtocolError: it is not one.
        UnsupportedVersion: the server chose a version that is not spoken here.
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
            f"the server speaks protocol version {welcome.version}, 1 to {PROTOCOL_VERSION} are spoken here",
            limit=PROTOCOL_VERSION,
            value=welcome.version,
        )
    return welcome
