"""Declares requests: one class states a request's code, its values on the wire, the check of each, and what it is answered by.

    @request(31, needs=on(Permission.TOPICS, "topic"), resend=False)
    class AddQueues(Answered[list[int]]):
        topic: Name
        count: Annotated[int, integer(1, QUEUES_MAX)]

The fields are the values on the wire, in this order. A check is part of a field's annotation and runs when a request is
made, on either side: a request that exists is within its limits. The last field may be `Rows`; their values follow one
another. The answer is an OK with values as `answer_form` has it, or a `Page`, `Messages` or `Outcomes`. The codecs of both
sides, the types of handlers and of calls, the table of codes and the routes of a server follow from the declaration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from operator import attrgetter
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from eventstore.errors import InvalidArgument
from eventstore.fields import check_flag, check_int, check_text
from eventstore.model import ID_BYTES_MAX
from eventstore.protocol.across import Across
from eventstore.protocol.answer_form import Form, form_of, types_of
from eventstore.protocol.answers import Answer, Ok, Outcomes, Page
from eventstore.protocol.codes import AnswerCode
from eventstore.protocol.limits import INT64_MAX
from eventstore.protocol.message_answers import Messages
from eventstore.security.permissions import Needs

Check: TypeAlias = Callable[[str, object], object]
"""Takes the name and the value of a field, and raises InvalidArgument with field, limit and value."""


class Request:
    """A request of a client. Each kind of request is a class, declared with `request`."""

    __slots__ = ()


R = TypeVar("R", bound=Request)
A = TypeVar("A")


class Answered(Request, Generic[A]):
    """A request that is answered by an `A`, or an error."""

    __slots__ = ()


_OTHERS: Final = {Page: AnswerCode.PAGE, Messages: AnswerCode.MESSAGES, Outcomes: AnswerCode.OUTCOMES}
"""Answers that are no OK."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A value of a request. `low`, `high`: the range of an integer, the bytes of a text, or the number of rows, if they are
    limited. `rows`: the values of each row, if it is a field of rows. For those who do not know the kinds of requests: pages,
    and tests that make requests.
    """

    name: str
    types: tuple[type, ...]
    low: int | None = None
    high: int | None = None
    rows: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class Declaration:
    """How a request travels: `fields` one by one; with `row_values`, the last field as rows of that many values.

    `answer`: the code of its answer; None: it has none. `answered`: the class of that, as it is decoded. `form`: the values of
    an OK. `resend`: whether it is safe to send again if the connection is lost before the answer. `across`: how the answers of
    several shards become one; None: it is for the shard of what it names, or several requests are made of it. `waits`: the
    answer may rightly take long, and UNSUBSCRIBE ends the wait.
    """

    code: int
    name: str
    answer: AnswerCode | None
    answered: type[Answer]
    form: Form
    fields: tuple[str, ...]
    arguments: tuple[Argument, ...]
    row_values: int
    needs: Needs
    resend: bool
    across: Across | None
    waits: bool = False


DECLARATIONS: Final[dict[type[Request], Declaration]] = {}


def code_of(kind: type[Request]) -> int:
    """Returns the code that requests of this class have on the wire."""
    return DECLARATIONS[kind].code


@dataclass_transform(frozen_default=True)
def request(
    code: int,
    *,
    needs: Needs,
    resend: bool = True,
    across: Across | None = None,
    form: Form | None = None,
    frozen: bool = True,
    waits: bool = False,
) -> Callable[[type[R]], type[R]]:
    """Declares the class as the request with this code, which is never reused for another one.

    `needs`: which permission, on which names. `resend=False`: it would change something again. `across`: as in `Declaration`.
    `form`: of an answer that does not follow from its type. `waits`: as in `Declaration`. `frozen=False` halves the time that
    constructing a request takes (0.2 µs instead of 0.4), for those without checks that arrive by the hundred thousand a second.
    """

    def declare(kind: type[R]) -> type[R]:
        hints = get_type_hints(kind, include_extras=True)
        metadata = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
        checks = [(name, check) for name, found in metadata.items() for check in found if callable(check)]
        if checks:
            _attach_checks(kind, checks)
        declared = cast("type[R]", dataclass(frozen=frozen, slots=True)(kind))
        names = tuple(field.name for field in fields(cast(Any, declared)))
        arguments = tuple(_argument(name, hints[name]) for name in names)
        assert code not in (each.code for each in DECLARATIONS.values()), code
        name, width = _wire_name(kind), len(arguments[-1].rows) if arguments else 0
        DECLARATIONS[declared] = Declaration(
            code, name, *_answer_of(kind, name, form), names, arguments, width, needs, resend, across, waits
        )
        return declared

    return declare


def _argument(name: str, hint: Any) -> Argument:
    """Returns what a field's annotation says."""
    value, *found = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    low, high = next((limits for limits in map(_LIMITS.get, found) if limits), (None, None))
    rows = next((each for each in found if isinstance(each, Rows | UncheckedRows)), None)
    if rows is None:
        return Argument(name, types_of(value), low, high)
    (of_each, *_) = get_args(value)
    columns = get_args(of_each) if get_origin(of_each) is tuple else (of_each,)
    each_row = tuple(Argument(column, types_of(types)) for column, types in zip(rows.names, columns, strict=True))
    return Argument(name, (tuple,), rows.low, rows.high, each_row)


def _answer_of(kind: type[Request], name: str, form: Form | None) -> tuple[AnswerCode | None, type[Answer], Form]:
    """Returns code, class and form of the answers to a kind of request."""
    bases = vars(kind).get("__orig_bases__")
    if bases is None:
        return None, Ok, form_of(None, name)
    (answer,) = get_args(bases[0])
    if answer in _OTHERS:
        return _OTHERS[answer], answer, form_of(None, name)
    return AnswerCode.OK, Ok, form or form_of(answer, name)


def _attach_checks(kind: type[Request], checks: list[tuple[str, Check]]) -> None:
    """Gives the class a `__post_init__` that runs the checks of all fields, then the class's own check of several fields. A
    field that has its default needs none.
    """
    together: Callable[[Any], None] | None = kind.__dict__.get("__post_init__")

    values_of = attrgetter(*(name for name, _ in checks), "__class__", "__class__")  # a tuple, however few fields there are
    defaults = [_good_default(kind, name, check) for name, check in checks]

    def check_fields(self: Request) -> None:
        for (name, check), default, value in zip(checks, defaults, values_of(self), strict=False):
            if value is not default:
                check(name, value)
        if together is not None:
            together(self)

    kind.__post_init__ = check_fields  # type: ignore[attr-defined] # dataclass calls it


def _good_default(kind: type[Request], name: str, check: Check) -> object:
    """Returns the default of a field if it passes the check, else an object that no field has."""
    try:
        default = kind.__dict__[name]
        check(name, default)
    except (KeyError, InvalidArgument):
        return object()
    return default


def _wire_name(kind: type[Request]) -> str:
    """`RemoveQueue` → `REMOVE_QUEUE`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).upper()


# ---- checks

_LIMITS: Final[dict[object, tuple[int, int]]] = {check_text: (1, ID_BYTES_MAX)}
"""What a check allows: the range of an integer, or the bytes of a text."""


def text(low: int, high: int) -> Check:
    """Returns a check for text of `low` to `high` bytes in UTF-8."""

    def check(field: str, value: object) -> object:
        return check_text(field, value, low, high)

    _LIMITS[check] = low, high
    return check


def integer(low: int, high: int) -> Check:
    """Returns a check for an integer from `low` to `high`."""

    def check(field: str, value: object) -> None:
        if value.__class__ is not int or not low <= value <= high:
            check_int(field, value, low, high)  # says what is wrong

    _LIMITS[check] = low, high
    return check


def optional(check: Check) -> Check:
    """Returns a check that accepts None and what `check` accepts."""

    def check_optional(field: str, value: object) -> None:
        if value is not None:
            check(field, value)

    if check in _LIMITS:
        _LIMITS[check_optional] = _LIMITS[check]
    return check_optional


class Rows:
    """Checks a tuple of `low` to `high` rows. `check` takes the values of one row; a single value needs no row around it.

    A function for the whole row, since a loop over the checks of its values takes twice as long: a pull of many queues has
    a row for each.
    """

    def __init__(self, check: Callable[..., None], high: int, *, low: int = 1) -> None:
        self.names = tuple(signature(check).parameters)
        self.width, self.low, self.high = len(self.names), low, high
        self._check = check

    def __call__(self, field: str, value: object) -> None:
        rows = cast("Sequence[Any]", value)
        if not self.low <= len(rows) <= self.high:
            raise InvalidArgument(
                f"{len(rows)} {field} in one frame, allowed are {self.low} to {self.high}",
                field=field,
                limit=self.high,
                value=len(rows),
            )
        check = self._check
        if self.width == 1:
            for each in rows:
                check(each)
        else:
            for row in rows:
                check(*row)


class UncheckedRows:
    """1 to `high` rows of these values. Decoding checks their form; the handler checks the values of each row."""

    def __init__(self, *names: str, high: int) -> None:
        self.names, self.low, self.high = names, 1, high


Name: TypeAlias = Annotated[str, check_text]
"""1 to 255 bytes in UTF-8."""
Flag: TypeAlias = Annotated[bool, check_flag]
Count: TypeAlias = Annotated[int, integer(0, INT64_MAX)]
