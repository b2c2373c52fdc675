"""What the code of users raises: whether it counts, its text, and its line in the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import eventstore.domain as d
from eventstore.failures import described, ends_process, is_fault, log_failure, text_of
from eventstore.fields import shown
from tests.raising import NoText, NoTraceback, TextEnds, TextIsANumber

_log = logging.getLogger(__name__)


class Text(str):
    def __getitem__(self, place: Any) -> str:
        raise AssertionError


class TextOfAnotherClass(Exception):
    def __str__(self) -> str:
        return Text("odd")


class Mute(d.Rejected):
    def __init__(self) -> None: ...


def test_every_error_has_a_text_that_can_be_stored_and_sent() -> None:
    errors = [
        NoText(None), TextIsANumber(), TextEnds(), TextOfAnotherClass(), Mute(), ValueError("\ud83d"), ValueError("x" * 10_000),
        d.Rejected(ValueError("wrapped")), d.Rejected("no"), ValueError(),
    ]  # fmt: skip
    for error in errors:
        text = text_of(error)
        assert type(text) is str
        assert len(text.encode()) <= 300
    assert [text_of(error) for error in errors[:4]] == [
        "its text raised AttributeError", "its text raised TypeError", "its text raised SystemExit", "odd",
    ]  # fmt: skip
    assert [described(error) for error in errors[-2:]] == ["Rejected: no", "ValueError"]


@pytest.mark.parametrize(
    ("error", "counts", "ends"),
    [
        (ValueError(), True, False),
        (asyncio.CancelledError(), True, False),
        (ExceptionGroup("", [ValueError()]), True, False),
        (BaseExceptionGroup("", [ValueError(), BaseExceptionGroup("", [asyncio.CancelledError()])]), True, False),
        (SystemExit(), True, True),
        (BaseExceptionGroup("", [ValueError(), SystemExit()]), True, True),
        (KeyboardInterrupt(), False, True),
        (BaseExceptionGroup("", [ValueError(), KeyboardInterrupt()]), False, True),
        (GeneratorExit(), True, True),
    ],
)
def test_an_error_counts_whatever_its_class_and_few_end_the_process(error: BaseException, counts: bool, ends: bool) -> None:
    assert (is_fault(error), ends_process(error)) == (counts, ends)


def test_groups_as_deep_as_can_be_made_are_looked_through() -> None:
    error: BaseException = ValueError()
    for _ in range(100_000):
        error = BaseExceptionGroup("", [error])
    assert is_fault(error)
    while isinstance(error, BaseExceptionGroup):  # freeing it at once would overflow the interpreter's own stack
        (error,) = error.exceptions


def test_an_error_whose_traceback_cannot_be_shown_is_logged_without(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise NoTraceback
    except NoTraceback as error:
        log_failure(_log, logging.WARNING, "handler %s failed", "h", error=error)
    assert "handler h failed (its traceback cannot be shown)" in caplog.messages
    assert {record.filename for record in caplog.records} == {"test_failures.py"}, "each place may log so many lines a minute"


def test_a_value_whose_repr_raises_is_quoted_all_the_same() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise LookupError

    assert shown(Odd()) == "<Odd, whose repr raised LookupError>"
