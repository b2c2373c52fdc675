"""Takes a value of a subclass for the value of the declared type that it is: an enum of text in a `str` field, a
`pandas.Timestamp` or the `datetime` of a stopped clock (freezegun) in a `datetime` field.

Values are mostly of the declared class itself, and are encoded without looking further; only what was refused comes here. What
was written of such a value is read back as one of the declared type, which is what an aggregate gets.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from eventstore.domain.encoding.field_mismatch import expected
from eventstore.domain.encoding.values import VALUES, Codec, EncodeValue
from eventstore.stopped_clock import real_class

_DATETIME, _DATE = _REAL = real_class(datetime), real_class(date)
_Convert = Callable[[Any], object]


def _plain_time(value: datetime) -> object:
    kind, _ = _REAL  # in a tuple, where freezegun does not replace them
    made = kind.combine(kind.date(value), kind.timetz(value))
    if made != value:  # nanoseconds, or pandas.NaT
        raise expected("a time in whole microseconds", value)
    return made


def _plain_float(value: float) -> object:
    return float.__float__(value) if isinstance(value, float) else int.__int__(value)


_PLAIN: Final[dict[type, tuple[tuple[type, ...], tuple[type, ...], _Convert]]] = {
    str: ((str,), (), str.__str__),
    int: ((int,), (bool,), int.__int__),
    float: ((float, int), (bool,), _plain_float),
    bytes: ((bytes,), (), lambda value: bytes(memoryview(value))),
    real_class(datetime): ((real_class(datetime),), (), _plain_time),
    real_class(date): (
        (real_class(date),),
        (real_class(datetime),),
        lambda value: real_class(date).fromordinal(value.toordinal()),
    ),
    Decimal: ((Decimal,), (), Decimal),
    UUID: ((UUID,), (), lambda value: UUID(int=value.int)),
}
"""By declared type: of which classes a value has to be, and of which not, and what makes one of the type of it."""


def _accepting(codec: Codec, kind: type) -> Codec:
    strict: EncodeValue = codec.encode
    accepted, refused, convert = _PLAIN[kind]

    def encode(value: object) -> str:
        if type(value) not in accepted and isinstance(value, accepted) and not isinstance(value, refused):
            value = convert(value)
        return strict(value)

    return codec._replace(encode=encode)


LENIENT_VALUES: Final[dict[object, Codec]] = {
    kind: _accepting(codec, kind) if kind in _PLAIN else codec for kind, codec in VALUES.items()
}
"""As `VALUES`; they also encode values of subclasses."""
