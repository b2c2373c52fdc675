"""The handshake: both sides agree on a version, or report why they cannot."""

from __future__ import annotations

import pytest

from eventstore.errors import EventStoreError, ProtocolError, UnsupportedVersion
from eventstore.flat import Scalar
from eventstore.protocol.handshake import Welcome, agreed_version, read_welcome
from eventstore.protocol.limits import FRAME_BYTES_MAX, PROTOCOL_VERSION, REQUESTS_MAX
from eventstore.protocol.requests import Hello

UUID = bytes(range(16))


@pytest.mark.parametrize("version", [PROTOCOL_VERSION, PROTOCOL_VERSION + 1, 2**40])
def test_the_agreed_version_is_the_lower_of_the_highest_ones(version: int) -> None:
    assert agreed_version(Hello(version, "demo")) == PROTOCOL_VERSION


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_that_never_existed_is_unsupported(version: int) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        agreed_version(Hello(version, "demo"))
    assert caught.value.fields == {"limit": PROTOCOL_VERSION, "value": version}


def test_a_welcome_survives_the_wire() -> None:
    welcome = Welcome(1, "demo", UUID)
    assert read_welcome(welcome.values()) == welcome
    assert (welcome.frame_bytes_max, welcome.requests_max) == (FRAME_BYTES_MAX, REQUESTS_MAX)


def test_a_welcome_may_have_more_values_than_this_version_knows() -> None:
    welcome = Welcome(1, "demo", UUID, 1000, 5, None, UUID, 3, 2, 4)
    assert read_welcome((*welcome.values(), "extra")) == welcome


@pytest.mark.parametrize("shard", [0, 3, None])
def test_a_welcome_of_a_cluster_names_its_shard(shard: int | None) -> None:
    welcome = Welcome(1, "demo", UUID, 1000, 5, 1, bytes(16), 7, shard)
    assert len(welcome.values()) == 9
    assert read_welcome(welcome.values()) == welcome
    split = Welcome(1, "demo", UUID, 1000, 5, 1, bytes(16), 7, shard, 2)
    assert split.values() == (*welcome.values(), 2)
    assert read_welcome(split.values()) == split


def test_a_store_that_is_no_cluster_says_what_it_always_said() -> None:
    assert len(Welcome(1, "demo", UUID, node=1).values()) == 6
    assert read_welcome((*Welcome(1, "demo", UUID, node=1).values(), None, 7, 3)) == Welcome(1, "demo", UUID, node=1)


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1])
def test_a_server_that_speaks_another_version_is_unsupported(version: int) -> None:
    with pytest.raises(UnsupportedVersion):
        read_welcome(Welcome(version, "demo", UUID).values())


@pytest.mark.parametrize(
    "values",
    [(), (1, "demo", UUID, 1000), (1, "demo", "uuid", 1000, 5), (1, "demo", UUID[:4], 1000, 5), (1, 7, UUID, 1000, 5),
     ("1", "demo", UUID, 1000, 5), (1, "demo", UUID, 0, 5), (1, "demo", UUID, 1000, 0),
     (1, "demo", UUID, 1000, 5, 1, b"short", 1, 0), (1, "demo", UUID, 1000, 5, 1, UUID, None, 0),
     (1, "demo", UUID, 1000, 5, 1, UUID, 1, -1), (1, "demo", UUID, 1000, 5, 1, UUID, 1, 4096)],
)  # fmt: skip
def test_values_that_are_not_a_welcome_are_a_protocol_error(values: tuple[Scalar, ...]) -> None:
    with pytest.raises(EventStoreError) as caught:
        read_welcome(values)
    assert type(caught.value) is ProtocolError
