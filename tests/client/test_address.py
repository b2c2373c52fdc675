"""Addresses and options: malformed ones are refused before anything is tried."""

from __future__ import annotations

import pytest

from eventstore import blocking
from eventstore.client.address import Address, parse_address
from eventstore.client.aio.store import connect
from eventstore.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:7701", Address("127.0.0.1", 7701)),
        ("tcp://localhost:1", Address("localhost", 1)),
        ("tcp://[::1]:7701", Address("::1", 7701)),
        ("tcp://db.example.org:65535", Address("db.example.org", 65535)),
    ],
)
def test_an_address_is_read_and_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "localhost", "localhost:7701", "tcp://localhost", "tcp://:7701", "tcp://localhost:0", "tcp://localhost:65536",
        "tcp://localhost:x", "http://localhost:7701", "tcp://localhost:7701/path", "tcp://me@localhost:7701", "tcp://[::1:7701",
        "tcp://a..b:7701", "tcp://localhost:7701?x=1",
    ],
)  # fmt: skip
def test_a_malformed_address_is_refused_by_both_clients(text: str) -> None:
    for make in (connect, blocking.connect):
        with pytest.raises(InvalidArgument, match="tcp://host:port") as caught:
            make(text)
        assert caught.value.fields["field"] == "address"


@pytest.mark.parametrize("option", ["connect_timeout", "reconnect_timeout", "silence_timeout"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_senseless_timeout_is_refused(option: str, value: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        connect("tcp://localhost:1", **{option: value})
    assert caught.value.fields["field"] == option
