"""Writes the table of requests in docs/PROTOCOL.md from their declarations; the rest of the page is written by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from eventstore.protocol import request_codec as request_codec  # the requests declare themselves
from eventstore.protocol.answer_form import AnswerValue, Shape
from eventstore.protocol.request_declaration import DECLARATIONS, Argument, Declaration, code_of
from eventstore.protocol.requests import Hello
from eventstore.security.permissions import Needs

PAGE: Final = Path(__file__).parents[1] / "docs" / "PROTOCOL.md"
_TABLE: Final = re.compile(r"(?<=<!-- requests -->\n).*?(?=<!-- /requests -->)", re.S)
_HEAD: Final = """\
| code | request | arguments | answer | needs |
| ---: | --- | --- | --- | --- |
"""
_TYPES: Final = {int: "int", bool: "bool", str: "str", bytes: "bin", type(None): "nil"}
_ID_BYTES: Final = (1, 255)
_LARGE: Final = 2**31


def protocol_page() -> str:
    """Returns docs/PROTOCOL.md with the table that follows from the code."""
    rows = (_row(declared) for declared in sorted(DECLARATIONS.values(), key=lambda each: each.code))
    table = _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return _TABLE.sub(lambda _: table, PAGE.read_text(encoding="utf-8"))


def _row(declared: Declaration) -> tuple[str, ...]:
    arguments = ", ".join(map(_argument, declared.arguments))
    if declared.code == code_of(Hello):
        arguments = f"magic (str), {arguments}"
    return str(declared.code), declared.name, arguments, _answer(declared), _needs(declared.needs)


def _argument(argument: Argument) -> str:
    name = argument.name.replace("_", " ")
    if argument.rows:
        values = ", ".join(map(_argument, argument.rows))
        return f"[{values}]" if argument.high == 1 else f"{values} …" if len(argument.rows) == 1 else f"({values}) …"
    types = [_TYPES[each] for each in argument.types if each in _TYPES]
    if len(types) < len(argument.types):
        return name
    low, high = argument.low, argument.high
    if low is not None and high is not None and (low, high) != _ID_BYTES and high < _LARGE:
        types[0] += f" {low:,} to {high:,}" if int in argument.types else f" of {low:,} to {high:,} bytes"
    return f"{name} ({' or '.join(types)})"


def _each(values: Iterable[str]) -> str:
    return f"({', '.join(values)})"


def _answer(declared: Declaration) -> str:
    if declared.answer is None:
        return "none"
    values = " or ".join(map(_shape, declared.form.shapes))
    return f"{declared.answer.name}: {values}" if values not in ("", "nothing") else declared.answer.name


def _shape(shape: Shape) -> str:
    values = [*map(_column, shape.single)]
    if len(shape.rows) == 1:
        values.append(_column(*shape.rows) + " …")
    elif shape.rows:
        values.append(_each(map(_column, shape.rows)) + " …")
    return ", ".join(values) or "nothing"


def _column(column: AnswerValue) -> str:
    types = " or ".join(_TYPES[each] for each in column.types)
    return f"{column.says} ({types})" if column.says else types


def _needs(needs: Needs) -> str:
    if needs.permission is None:
        return ""
    of = needs.of.replace("_", " ")
    return f"`{needs.permission.value}`{f' on {of}' if of else ''}{', recorded' if needs.recorded else ''}"
