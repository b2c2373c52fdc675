"""The handshake: HELLO, which must be the first request of a connection, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

from eventstore.errors import InvalidArgument, ProtocolError, UnsupportedVersion
from eventstore.fields import check_int, check_optional_int, check_text
from eventstore.flat import Scalar
from eventstore.protocol.limits import FRAME_BYTES_MAX, NAME_BYTES_MAX, PROTOCOL_VERSION, REQUESTS_MAX, UINT64_MAX
from eventstore.records.cluster_map import SHARDS_MAX, ClusterMap, read_cluster_map
from eventstore.records.splits import NEVER_SPLIT

if TYPE_CHECKING:
    from eventstore.protocol.requests import Hello

STORE_UUID_BYTES: Final = 16
NODE_MAX: Final = 65_535
_WELCOME_VALUES: Final = 5
_SINGLE_VALUES: Final = 6
_CLUSTER_VALUES: Final = 9


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to HELLO: the server and its limits on this connection. The fields are the values of the answer.

    `node`: the node of its broker, which message ids begin with; None without a broker. `cluster`: the uuid of the cluster that
    it belongs to, None for a store of its own. `map_version`: of the map it knows. `shard`: the number of its shard; None in a
    cluster: it has only the map. `layout`: by which the shard got its slots, 0 if it took part in no split.
    """

    version: int
    server: str
    store: bytes
    frame_bytes_max: int = FRAME_BYTES_MAX
    requests_max: int = REQUESTS_MAX
    node: int | None = None
    cluster: bytes | None = None
    map_version: int = 0
    shard: int | None = None
    layout: int = NEVER_SPLIT

    def values(self) -> tuple[Scalar, ...]:
        """Returns the values for `encode_ok`; those about the cluster only of one."""
        values = astuple(self)
        if self.layout == NEVER_SPLIT:
            values = values[:_CLUSTER_VALUES]
        return values if self.cluster is not None else values[:_SINGLE_VALUES]


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


def read_welcome(values: Sequence[Scalar]) -> Welcome:
    """Decodes the answer to HELLO; later versions of the protocol may append values.

    Raises:
        ProtocolError: the values are not those of a welcome.
        UnsupportedVersion: the server chose a version that this client does not support.
    """
    if len(values) < _WELCOME_VALUES:
        raise ProtocolError(f"the answer to HELLO takes {_WELCOME_VALUES} values, got {len(values)}")
    version, server, store, frame_bytes_max, requests_max = values[:_WELCOME_VALUES]
    node, cluster, map_version, shard, layout = (*values, *(None,) * 5)[_WELCOME_VALUES : _CLUSTER_VALUES + 1]
    if not isinstance(store, bytes) or len(store) != STORE_UUID_BYTES:
        raise ProtocolError(f"the store's uuid takes {STORE_UUID_BYTES} bytes")
    if cluster is not None and not (isinstance(cluster, bytes) and len(cluster) == STORE_UUID_BYTES):
        raise ProtocolError(f"the cluster's uuid takes {STORE_UUID_BYTES} bytes")
    try:
        welcome = Welcome(
            check_int("version", version, 0, UINT64_MAX),
            check_text("server", server, 0, NAME_BYTES_MAX),
            store,
            check_int("frame_bytes_max", frame_bytes_max, 1, UINT64_MAX),
            check_int("requests_max", requests_max, 1, UINT64_MAX),
            check_optional_int("node", node, 0, NODE_MAX),
            cluster,
            0 if cluster is None else check_int("map_version", map_version, 0, UINT64_MAX),
            None if cluster is None else check_optional_int("shard", shard, 0, SHARDS_MAX - 1),
            NEVER_SPLIT if layout is None else check_int("layout", layout, 0, UINT64_MAX),
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


def map_values(known: ClusterMap) -> tuple[Scalar, ...]:
    """Returns the values of the answer to MAP."""
    return known.version, known.encode()


def read_map(values: Sequence[Scalar]) -> ClusterMap:
    """Decodes the answer to MAP; later versions of the protocol may append values.

    Raises:
        ProtocolError: the values are not a map, or the map is not whole.
    """
    if len(values) < 2 or not isinstance(values[1], bytes):
        raise ProtocolError("the answer to MAP takes a version (uint) and the map (bin)")
    try:
        found = read_cluster_map(values[1])
    except InvalidArgument as error:
        raise ProtocolError(f"the answer to MAP: {error.message}", **error.fields) from None
    if found.version != values[0]:
        raise ProtocolError(f"the answer to MAP names version {values[0]!r}, the map in it {found.version}")
    return found
