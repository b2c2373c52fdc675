"""The values of an answer follow from the type that its request is answered by, and values of another form are refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from eventstore.errors import ProtocolError
from eventstore.flat import Scalar
from eventstore.protocol.answer_form import OfShard, form_of
from eventstore.protocol.group_requests import Heartbeat, Join
from eventstore.protocol.request_declaration import DECLARATIONS


class Pair(NamedTuple):
    name: str
    number: int | None
    shard: OfShard = None


class Headed(NamedTuple):
    total: int
    pairs: tuple[Pair, ...]


class Numbers(NamedTuple):
    name: str
    numbers: tuple[int, ...]


@pytest.mark.parametrize(
    ("of", "answer", "values"),
    [
        (None, None, ()),
        (int, 7, (7,)),
        (bool, False, (False,)),
        (int | None, None, (None,)),
        (list[int], [1, 2], (1, 2)),
        (list[int], [], ()),
        (list[int | None], [1, None], (1, None)),
        (Pair, Pair("a", None), ("a", None)),
        (list[Pair], [Pair("a", 1), Pair("b", None)], ("a", 1, "b", None)),
        (Headed, Headed(2, (Pair("a", 1),)), (2, "a", 1)),
        (Headed, Headed(0, ()), (0,)),
        (Numbers, Numbers("a", (1, 2)), ("a", 1, 2)),
        (Headed | None, None, ()),
        (Headed | None, Headed(0, ()), (0,)),
        (Pair | Headed | None, Pair("a", 1), ("a", 1)),
        (dict[str, Scalar], {"a": 1, "b": None}, ("a", 1, "b", None)),
    ],
)
def test_an_answer_is_the_same_after_it_was_values(of: Any, answer: object, values: tuple[Scalar, ...]) -> None:
    form = form_of(of, "ASK")
    assert tuple(form.encode(answer)) == values
    assert form.decode(values) == answer


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (None, (1,)),
        (int, ()),
        (int, (True,)),
        (int, (1, 2)),
        (bool, (1,)),
        (list[int], ("a",)),
        (list[Pair], ("a",)),
        (list[Pair], ("a", 1, "b")),
        (list[Pair], ("a", True)),
        (Pair, ()),
        (Pair, ("a", 1, "b", 2)),
        (Headed, ()),
        (Headed, ("a",)),
        (Headed, (1, "a")),
        (Headed | None, (1, "a")),
        (dict[str, Scalar], (1, "a")),
    ],
)
def test_values_of_another_form_are_a_protocol_error_that_names_the_request(of: Any, values: tuple[Scalar, ...]) -> None:
    with pytest.raises(ProtocolError, match=f"ASK was answered by {len(values)} values"):
        form_of(of, "ASK").decode(values)


@pytest.mark.parametrize(
    "values", [("g",), (1, "orders", 0, 5, None), (1, "orders", "0", 5, None, 0, None), (1, 2, 0, 5, None, 0, None)]
)
def test_a_malformed_assignment_is_a_protocol_error(values: tuple[Scalar, ...]) -> None:
    for kind in (Join, Heartbeat):
        with pytest.raises(ProtocolError):
            DECLARATIONS[kind].form.decode(values)
