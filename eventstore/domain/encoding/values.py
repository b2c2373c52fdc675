"""Encodes single values as JSON: one codec for each type that a field of a command or an event may have.

    str, int, float, bool, None     the JSON type; a float field also accepts an int; NaN and infinity are refused
    bytes                           text, base64
    datetime, date, UUID, Decimal   text; a datetime needs a time zone
    enum                            the member's value, text or a whole number

Both directions are strict: a value that could not be read back is not written, and JSON that does not match is refused.
Some values are read back as others that mean the same: an int in a float field as a float, a time in a zone with the offset it
has there. `Codec.exact` tells them.
Encoders return JSON text, not objects: joining pieces takes a third of the time of `json.dumps`.
"""

from __future__ import annotations

import base64
import enum
import json.encoder
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from eventstore.domain.encoding.field_mismatch import expected
from eventstore.stopped_clock import real_class

T = TypeVar("T")
EncodeValue: TypeAlias = Callable[[object], str]
"""Value → JSON text. Raises FieldMismatch."""

Decode: TypeAlias = Callable[[object], object]
"""Parsed JSON → value. Raises FieldMismatch."""

quote: Final[Callable[[str], str]] = json.encoder.encode_basestring  # in C; does not escape non-ASCII characters


Exact: TypeAlias = Callable[[object], bool]
"""Value → whether reading what was written of it gives a value of the same types and digits. May be asked about any value."""


class Codec(NamedTuple):
    """Encoder and decoder of one type. `textual`: its JSON is always text, so it may be a key of a dict. `json_type`: set if
    the parsed JSON is the value exactly when it has this type. `canonical`: a regular expression with one group; JSON that it
    matches is what `encode` returns for the value, which `read` makes from the group (None: the group is the value); None if
    no expression can tell. `decode_canonical`: of a class, see the module `canonical`. `exact`: None if every value that can
    be written is. `encode_equal`: as `encode`, with one text for all equal values, to compare them; None if `encode` does.
    `canonical_equal`: as `canonical`, for what `encode_equal` returns. `is_equal`: of a class; returns whether what
    `decode_canonical` has decoded is what `encode_equal` returns; None: it always is."""

    encode: EncodeValue
    decode: Decode
    textual: bool = False
    json_type: type | None = None
    canonical: str | None = None
    read: Callable[[str], object] | None = None
    decode_canonical: Callable[[bytes], object] | None = None
    exact: Exact | None = None
    encode_equal: EncodeValue | None = None
    canonical_equal: str | None = None
    is_equal: Callable[[bytes], object] | None = None

    @property
    def comparing(self) -> Codec:
        """The codec whose `encode` is `encode_equal`."""
        if self.encode_equal is None:
            return self
        return self._replace(encode=self.encode_equal, canonical=self.canonical_equal, encode_equal=None)


def _encode_text(value: object) -> str:
    if type(value) is not str:
        raise expected("text", value)
    return quote(value)


def _decode_text(value: object) -> object:
    if type(value) is not str:
        raise expected("text", value)
    return value


def _encode_int(value: object) -> str:
    if type(value) is not int:
        raise expected("a whole number", value)
    return repr(value)


def _decode_int(value: object) -> object:
    if type(value) is not int:
        raise expected("a whole number", value)
    return value


def _encode_bool(value: object) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    raise expected("true or false", value)


def _decode_bool(value: object) -> object:
    if type(value) is not bool:
        raise expected("true or false", value)
    return value


def _encode_float(value: object) -> str:
    number = _decode_float(value)
    if number != value:  # an int above 2**53
        raise expected("a number that a float holds without rounding", value)
    return repr(number)


def _is_float(value: object) -> bool:
    return type(value) is float


def _decode_float(value: object) -> float:
    if type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            raise expected("a number that fits a float", value) from None
    if type(value) is not float or not math.isfinite(value):
        raise expected("a finite number", value)
    return value


def _encode_equal_float(value: object) -> str:
    return repr(_decode_float(value) + 0.0)  # -0.0 becomes 0.0


def _encode_none(value: object) -> str:
    if value is not None:
        raise expected("null", value)
    return "null"


def _decode_none(value: object) -> object:
    if value is not None:
        raise expected("null", value)
    return None


def _encode_bytes(value: object) -> str:
    if type(value) is not bytes:
        raise expected("bytes", value)
    return f'"{base64.b64encode(value).decode("ascii")}"'


def _decode_bytes(value: object) -> object:
    if type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            pass
    raise expected("base64", value)


# As defaults of parameters these stay what they are: freezegun replaces what a module has by name.
_DATETIME, _DATE = real_class(datetime), real_class(date)


def _encode_datetime(value: object, datetime: type[datetime] = _DATETIME) -> str:
    if type(value) is not datetime or value.utcoffset() is None:
        raise expected("a datetime with a time zone, such as datetime.now(UTC)", value)
    return f'"{value.isoformat()}"'


def _encode_equal_datetime(value: object, datetime: type[datetime] = _DATETIME) -> str:
    text = _encode_datetime(value)
    assert isinstance(value, datetime)
    if value.tzinfo is UTC:
        return text
    try:
        return _encode_datetime(value.astimezone(UTC))
    except OverflowError:  # in UTC it would be of another year than 1 to 9999
        return text


def _decode_datetime(value: object, datetime: type[datetime] = _DATETIME) -> object:
    if type(value) is str:
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            if time.utcoffset() is not None:
                return time
    raise expected("a time with a time zone, such as 2030-01-31T12:00:00+00:00", value)


def _is_in_utc(value: object, datetime: type[datetime] = _DATETIME) -> bool:
    return type(value) is datetime and value.tzinfo is UTC and not value.fold


def _encode_date(value: object, date: type[date] = _DATE) -> str:
    if type(value) is not date:
        raise expected("a date", value)
    return f'"{value.isoformat()}"'


def _decode_date(value: object, date: type[date] = _DATE) -> object:
    if type(value) is str:
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise expected("a date, such as 2030-01-31", value)


def _encode_decimal(value: object) -> str:
    if type(value) is not Decimal or not value.is_finite():
        raise expected("a finite Decimal", value)
    return f'"{value}"'


def _encode_equal_decimal(value: object) -> str:
    text = _encode_decimal(value)
    if not value:
        return '"0"'
    number, e, power = text[1:-1].partition("E")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    if not e and number[-1] == "0":
        digits = number.rstrip("0")
        return f'"{Decimal(f"{digits}E{len(number) - len(digits)}")}"'
    return f'"{number}{e}{power}"'


def _decode_decimal(value: object) -> object:
    if type(value) is str:
        try:
            number = Decimal(value)
        except ArithmeticError:
            pass
        else:
            if number.is_finite():
                return number
    raise expected("a decimal number as text", value)


def _encode_uuid(value: object) -> str:
    if type(value) is not UUID:
        raise expected("a UUID", value)
    return f'"{value}"'


def _decode_uuid(value: object) -> object:
    if type(value) is str:
        try:
            return UUID(value)
        except ValueError:
            pass
    raise expected("a UUID as text", value)


def enum_codec(cls: type[enum.Enum]) -> Codec | None:
    """Returns None if a member's value is neither text nor a whole number."""
    members = {member.value: member for member in cls}
    kinds = set(map(type, members))
    if not members or not kinds <= {str, int} or issubclass(cls, enum.Flag):
        return None
    texts = {value: quote(value) if type(value) is str else repr(value) for value in members}
    allowed = f"one of {', '.join(map(str, texts.values()))}"[:200]

    def encode(value: object) -> str:
        if type(value) is cls:
            try:
                return texts[value.value]
            except KeyError:  # made by `_missing_`
                pass
        raise expected(f"a member of {cls.__name__}", value)

    def decode(value: object) -> object:
        if type(value) in kinds:  # True == 1, and a list is not hashable
            member = members.get(value)
            if member is not None:
                return member
        raise expected(allowed, value)

    canonical = f"({'|'.join(map(re.escape, texts.values()))})"
    read = {text: members[value] for value, text in texts.items()}.__getitem__
    return Codec(encode, decode, textual=kinds == {str}, canonical=canonical, read=read)


_FLOAT: Final = r"((?!-0\.0[,}])-?(?!0\.0000)(?=[0-9.]{3,16}[,}])(?:0|[1-9][0-9]*)\.(?:0|[0-9]*[1-9]))"
"""Floats of at most 15 digits, which every float keeps, and of a size that `repr` writes without an exponent; not -0.0."""

_IN_UTC: Final = r'"([0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.(?!000000)[0-9]{6})?\+00:00)"'
_DECIMAL: Final = r"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]{1,6})?)"
"""With more places Decimal may write an exponent."""

VALUES: Final[dict[object, Codec]] = {
    str: Codec(_encode_text, _decode_text, textual=True, json_type=str, canonical=r'"([^"\\\x00-\x1f]*)"'),
    int: Codec(_encode_int, _decode_int, json_type=int, canonical="(0|-?[1-9][0-9]{0,17})", read=int),
    bool: Codec(_encode_bool, _decode_bool, json_type=bool, canonical="(true|false)", read="true".__eq__),
    float: Codec(
        _encode_float,
        _decode_float,
        canonical=_FLOAT,
        read=float,
        exact=_is_float,
        encode_equal=_encode_equal_float,
        canonical_equal=_FLOAT,
    ),
    type(None): Codec(_encode_none, _decode_none, json_type=type(None)),
    bytes: Codec(_encode_bytes, _decode_bytes, textual=True),
    real_class(datetime): Codec(
        _encode_datetime,
        _decode_datetime,
        textual=True,
        canonical=_IN_UTC,
        read=real_class(datetime).fromisoformat,
        exact=_is_in_utc,
        encode_equal=_encode_equal_datetime,
        canonical_equal=_IN_UTC,
    ),
    real_class(date): Codec(
        _encode_date,
        _decode_date,
        textual=True,
        canonical='"([0-9]{4}-[0-9]{2}-[0-9]{2})"',
        read=real_class(date).fromisoformat,
    ),
    Decimal: Codec(
        _encode_decimal,
        _decode_decimal,
        textual=True,
        canonical=f'"{_DECIMAL}"',
        read=Decimal,
        encode_equal=_encode_equal_decimal,
        canonical_equal=rf'"(?!-0"|-?[0-9.]+0"){_DECIMAL}"',
    ),
    UUID: Codec(
        _encode_uuid, _decode_uuid, textual=True, canonical='"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"', read=UUID
    ),
}
