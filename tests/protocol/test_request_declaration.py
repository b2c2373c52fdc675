"""Declarations: a request's code, name, checks and encoding follow from its class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import pytest

from eventstore.errors import InvalidArgument
from eventstore.protocol.codes import AnswerCode
from eventstore.protocol.message_answers import Messages
from eventstore.protocol.request_declaration import (
    DECLARATIONS,
    Answered,
    Name,
    Request,
    Rows,
    code_of,
    integer,
    optional,
    request,
)
from eventstore.protocol.requests import Ping
from eventstore.security.permissions import ANYONE


@pytest.fixture(autouse=True)
def declarations() -> Iterator[None]:
    before = dict(DECLARATIONS)
    yield
    DECLARATIONS.clear()
    DECLARATIONS.update(before)


def _pair(name: object, number: object) -> None:
    integer(0, 9)("number", number)


def test_a_declaration_has_code_name_answer_fields_and_the_width_of_its_rows() -> None:
    @request(99, needs=ANYONE)
    class SendSomeRows(Answered[Messages]):
        topic: Name
        rows: Annotated[tuple[tuple[str, int], ...], Rows(_pair, 2)] = ()

    declared = DECLARATIONS[SendSomeRows]
    assert (declared.code, declared.name, declared.answer) == (99, "SEND_SOME_ROWS", AnswerCode.MESSAGES)
    assert (declared.fields, declared.row_values) == (("topic", "rows"), 2)


def test_a_request_that_exists_is_within_its_limits() -> None:
    @request(99, needs=ANYONE)
    class Limited(Request):
        count: Annotated[int | None, optional(integer(1, 3))]
        rows: Annotated[tuple[tuple[str, int], ...], Rows(_pair, 2)] = ()

        def __post_init__(self) -> None:
            if self.count == len(self.rows):
                raise InvalidArgument("as many as rows", field="count")

    assert Limited(None, (("a", 1),)) == Limited(None, (("a", 1),))
    for values in ((4,), (True,), (2, ()), (2, (("a", 1),) * 3), (2, (("a", 10),)), (2, (("a", 1),) * 2)):
        with pytest.raises(InvalidArgument):
            Limited(*values)  # type: ignore[arg-type] # wrong on purpose


def test_a_code_is_declared_once() -> None:
    with pytest.raises(AssertionError):

        @request(code_of(Ping), needs=ANYONE)
        class Again(Request):
            pass
