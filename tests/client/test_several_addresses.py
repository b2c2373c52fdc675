"""Several addresses of one cluster: their forms, the order in which they are tried, and what is said if none answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eventstore import blocking
from eventstore.client.address import ADDRESSES_MAX, Address, parse_addresses
from eventstore.client.aio.store import connect
from eventstore.errors import ConnectionLost, InvalidArgument, Overloaded
from eventstore.protocol.answers import encode_error
from tests.client.test_connecting import canned_peer, closed_port, enter, enter_blocking, loops


@pytest.mark.parametrize(
    "text",
    [
        "tcp://n1:7701,n2:7701,[::1]:7703",
        "tcp://n1:7701,tcp://n2:7701,tcp://[::1]:7703",
        "tcp://n1:7701, n2:7701 ,[::1]:7703,n1:7701",
    ],
)
def test_several_addresses_are_read_with_a_scheme_at_the_first_or_at_each(text: str) -> None:
    found = parse_addresses(text)
    assert found.in_turn() == (Address("n1", 7701), Address("n2", 7701), Address("::1", 7703))
    assert str(found) == "tcp://n1:7701,tcp://n2:7701,tcp://[::1]:7703"
    assert parse_addresses(str(found)).in_turn() == found.in_turn()


@pytest.mark.parametrize("text", ["n1:7701,tcp://n2:7701", "tcp://n1:7701,", "tcp://n1,n2:7701", "tcp://n1:7701,http://n2:1"])
def test_one_malformed_address_of_several_is_refused(text: str) -> None:
    for make in (connect, blocking.connect):
        with pytest.raises(InvalidArgument, match="tcp://host:port"):
            make(text)


def test_there_are_not_more_addresses_than_can_be_tried() -> None:
    with pytest.raises(InvalidArgument, match=f"a client takes up to {ADDRESSES_MAX}"):
        parse_addresses(",".join(f"tcp://n{number}:1" for number in range(ADDRESSES_MAX + 1)))


def test_the_one_that_answered_last_is_tried_first_and_then_the_others_in_turn() -> None:
    found = parse_addresses("tcp://n1:1,n2:1,n3:1")
    found.answered(Address("n2", 1))
    assert [each.host for each in found.in_turn()] == ["n2", "n1", "n3"]
    found.answered(Address("n3", 1))
    assert [each.host for each in found.in_turn()] == ["n3", "n2", "n1"]


@loops
def test_when_none_answers_the_error_names_each_and_why(run: Callable[..., None]) -> None:
    down = closed_port()
    busy = encode_error(0, Overloaded("too many connections"))
    for attempt in (lambda text: run(enter, text, 0.3), lambda text: enter_blocking(text, 0.3)):
        with canned_peer(busy) as full, canned_peer(b"") as hangs:
            with pytest.raises(ConnectionLost) as caught:
                attempt(f"{down},{full},{hangs}")
            message = caught.value.message
            assert f"{down}: Connection refused; {full}: too many connections; {hangs}: " in message
            assert not message.endswith("?"), "one has answered, and said why it does not serve"
            assert caught.value.fields["address"] == f"{down},{full},{hangs}"
        with canned_peer(b"") as hangs, pytest.raises(ConnectionLost, match=r"; is one of the servers running\?$"):
            attempt(f"{down},{hangs}")
