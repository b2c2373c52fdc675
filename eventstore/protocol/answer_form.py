"""How the values of an OK follow from the type that a request is answered by.

| type | values |
| --- | --- |
| `None` | none |
| `int`, `bool`, `str`, or one of them and None | one |
| `list[int]` | any number |
| a NamedTuple | its fields |
| `list[…]` of a NamedTuple | the fields of each, one after the other |
| a NamedTuple that ends with `tuple[…, ...]` | its other fields, then those of each |
| `dict[str, Scalar]` | names and values in turn |
| several of them, `A | B | None` | the one with as many values |

A field `OfShard` is not sent: the client fills it in. `Annotated[int, "what it is"]` says in PROTOCOL.md what the name of a
field does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

from eventstore import flat
from eventstore.errors import ProtocolError
from eventstore.flat import Scalar

_NOT_SENT: Final = object()
OfShard: TypeAlias = Annotated[int | None, _NOT_SENT]
"""The shard that a row is of, in an answer about several; else None."""
_SCALARS: Final = frozenset({int, bool, str, bytes, NoneType})


@dataclass(frozen=True, slots=True)
class AnswerValue:
    """A value of an answer, or of each of its rows. `says`: what it is; empty: what its request asks for."""

    name: str
    types: tuple[type, ...]
    says: str


@dataclass(frozen=True, slots=True)
class Form:
    """How the answers to a kind of request are encoded as values, and decoded. `decode` raises ProtocolError. `shapes`: of one
    that follows from a type.
    """

    encode: Callable[[Any], Sequence[Scalar]]
    decode: Callable[[Sequence[Scalar]], Any]
    shapes: tuple[Shape, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer with these `single` values, followed by `rows` if there are columns of them. `of`: the type of such an answer.

    `values`: returns those of an answer. `row`: makes a row of its values, `make` an answer of single values and rows.
    """

    of: type
    single: tuple[AnswerValue, ...]
    rows: tuple[AnswerValue, ...]
    values: Callable[[Any], Sequence[Scalar]]
    make: Callable[[Sequence[Scalar], list[Any]], Any]
    row: Callable[..., Any] = tuple

    def read(self, values: Sequence[Scalar]) -> list[Any] | None:
        """Returns the answer in a list; None: the values are of another shape."""
        single, rest = values[: len(self.single)], values[len(self.single) :]
        width = len(self.rows)
        if len(single) < len(self.single) or (len(rest) % width if width else rest):
            return None
        if any(type(value) not in column.types for value, column in zip(single, self.single, strict=True)):
            return None
        columns = [rest[place::width] for place in range(width)]
        if any(not {*map(type, found)} <= {*column.types} for found, column in zip(columns, self.rows, strict=True)):
            return None
        return [self.make(single, [self.row(*each) for each in zip(*columns, strict=True)])]


def form_of(answer: Any, name: str) -> Form:
    """Returns the form of answers of this type to the requests of this name."""
    alternatives = get_args(answer) if _is_union(answer) and not _is_scalar(answer) else (answer,)
    shapes = tuple(map(_shape_of, alternatives))
    encoders = {shape.of: shape.values for shape in shapes}

    def decode(values: Sequence[Scalar]) -> Any:
        for shape in shapes:
            if (found := shape.read(values)) is not None:
                return found[0]
        raise ProtocolError(f"{name} was answered by {len(values)} values that are not its answer: {values!r:.100}")

    if len(shapes) == 1:
        return Form(shapes[0].values, decode, shapes)
    return Form(lambda found: encoders[type(found)](found), decode, shapes)


def _shape_of(answer: Any) -> Shape:
    if answer in (None, NoneType):
        return Shape(NoneType, (), (), lambda _: (), lambda single, rows: None)
    if _is_scalar(answer):
        return Shape(answer, (_column("", answer),), (), lambda found: (found,), lambda single, rows: single[0])
    if get_origin(answer) is dict:
        name, value = (_column(name, hint) for name, hint in zip(("name", "value"), get_args(answer), strict=True))
        return Shape(
            dict, (), (name, value), lambda found: flat.chain(found.items()), lambda _, rows: dict(rows), lambda *row: row
        )
    if get_origin(answer) is list:
        (of_each,) = get_args(answer)
        columns, row, chain = _rows_of(of_each)
        return Shape(list, (), columns, chain, lambda _, rows: rows, row)
    return _shape_of_tuple(answer)


def _shape_of_tuple(answer: Any) -> Shape:
    """Returns that of a NamedTuple."""
    make, hints = cast("Callable[..., Any]", answer), _sent(answer)
    *_, last = hints.values()
    if get_origin(last) is not tuple:
        single = tuple(_column(*each) for each in hints.items())
        count = len(single)
        return Shape(answer, single, (), lambda found: found[:count], lambda values, _: make(*values))
    *names, _ = hints
    single = tuple(_column(name, hints[name]) for name in names)
    count = len(single)
    columns, row, chain = _rows_of(get_args(last)[0])
    return Shape(
        answer,
        single,
        columns,
        lambda found: (*found[:count], *chain(found[count])),
        lambda values, rows: make(*values, tuple(rows)),
        row,
    )


def _rows_of(of_each: Any) -> tuple[tuple[AnswerValue, ...], Callable[..., Any], Callable[[Any], Sequence[Scalar]]]:
    """Returns the columns of rows, what makes a row, and what returns the values of many."""
    if _is_scalar(of_each):
        return (_column("", of_each),), lambda value: value, lambda rows: cast("Sequence[Scalar]", rows)
    columns = tuple(_column(*each) for each in _sent(of_each).items())
    width = len(columns)
    if width == len(of_each._fields):
        return columns, of_each, flat.chain
    return columns, of_each, lambda rows: flat.chain(row[:width] for row in rows)


def _sent(row: Any) -> dict[str, Any]:
    """Returns the fields of a NamedTuple that are sent, with their types."""
    hints = get_type_hints(row, include_extras=True)
    return {name: hints[name] for name in row._fields if _NOT_SENT not in getattr(hints[name], "__metadata__", ())}


def _column(name: str, hint: Any) -> AnswerValue:
    says = name.replace("_", " ")
    if get_origin(hint) is Annotated:
        hint, says = get_args(hint)
    return AnswerValue(name, types_of(hint), says)


def types_of(hint: Any) -> tuple[type, ...]:
    """Returns the types that a value with this annotation may have."""
    return get_args(hint) if _is_union(hint) else (hint,)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _is_scalar(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _is_scalar(get_args(hint)[0])
    return all(map(_is_scalar, get_args(hint))) if _is_union(hint) else hint in _SCALARS
