"""Dataclasses as JSON: the payloads of commands and events, and the states of projections.

A codec is built once per class, from the types of its fields (see `objects`). An event of three fields takes about a
microsecond each way.

A field that a payload lacks takes its default, if it has one: that is how a field is added. A name that the class does
not know is refused, for it would be lost without a word.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
from collections.abc import Callable
from typing import Final, Generic, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from eventstore.domain.containers import dict_codec, list_codec, optional_codec, tuple_codec
from eventstore.domain.misfit import Misfit, expected
from eventstore.domain.objects import object_decoder, object_encoder
from eventstore.domain.values import VALUES, Codec, enum_codec
from eventstore.errors import DomainRefused, PayloadInvalid
from eventstore.fields import shown

T = TypeVar("T")
_ALLOWED: Final = (
    "str, int, float, bool, None, bytes, datetime, date, Decimal, UUID, enums of text or whole numbers, frozen dataclasses, "
    "X | None, list[X], tuple[X, ...], tuple[X, Y], dict[str, X]"
)
_codecs: dict[type, Codec] = {}


def described(cls: type) -> str:
    """The class as messages name it."""
    return f"{cls.__module__}.{cls.__qualname__}"


class PayloadCodec(Generic[T]):
    """Instances of one frozen dataclass to JSON and back. `what` is what errors call it, as in: event 'Opened'.

    Raises:
        DomainRefused: the class is no frozen dataclass, or a field has a type that JSON cannot carry.
    """

    def __init__(self, cls: type[T], name: str, what: str) -> None:
        check_dataclass(cls)
        self.cls = cls
        self.name = name
        self._what = f"{what} {name!r}"
        codec = _class_codec(cls)
        self._encode, self._decode = codec.encode, codec.decode

    def encode(self, value: T) -> bytes:
        """The JSON of `value`: fields in their order, no white space, UTF-8.

        Raises:
            PayloadInvalid: a field holds what its type does not say.
        """
        try:
            return self._encode(value).encode()
        except Misfit as misfit:
            raise self._invalid(misfit) from None
        except (ValueError, RecursionError) as error:  # no UTF-8, a number of thousands of digits, a ring
            raise self._invalid(Misfit(f"cannot be written as JSON: {error}")) from None

    def decode(self, data: bytes) -> T:
        """The instance that `data` describes.

        Raises:
            PayloadInvalid: it is no JSON object, or does not fit the class.
        """
        try:
            text = data.decode()
            parsed, end = _scan(text, 0)
            if end == len(text):
                return cast(T, self._decode(parsed))
        except (Misfit, ValueError, RecursionError, StopIteration):
            pass
        return self.build(self.parse(data))  # takes white space around it, or says what is wrong

    def parse(self, data: bytes) -> dict[str, object]:
        """The JSON object in `data`."""
        try:
            parsed = _decoder.decode(data.decode())
        except (ValueError, RecursionError) as error:
            raise self._invalid(Misfit(f"{shown(data)} is not JSON: {error}")) from None
        if type(parsed) is not dict:
            raise self._invalid(expected("an object", parsed))
        return parsed

    def build(self, parsed: dict[str, object]) -> T:
        """The instance with these fields."""
        try:
            return cast(T, self._decode(parsed))
        except Misfit as misfit:
            raise self._invalid(misfit) from None
        except (ValueError, RecursionError) as error:
            raise self._invalid(Misfit(f"cannot be read: {error}")) from None

    def _invalid(self, misfit: Misfit) -> PayloadInvalid:
        where = f"field {misfit.field} {misfit.why}" if misfit.field else misfit.why
        return PayloadInvalid(
            f"{self._what} does not fit class {described(self.cls)}: {where}", type=self.name, field=misfit.field or None
        )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_scan = cast("Callable[[str, int], tuple[object, int]]", _decoder.scan_once)  # type: ignore[attr-defined] # known to no stub


def check_dataclass(cls: type) -> None:
    """Raises DomainRefused unless `cls` is a frozen dataclass."""
    if isinstance(cls, types.FunctionType):  # what a decorator without brackets is given
        raise DomainRefused(
            f"{cls.__qualname__} is a function; its decorator needs the class in brackets, as in @applies(Deposited)",
            name=cls.__qualname__,
        )
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise DomainRefused(f"{shown(cls)} is no dataclass; put @dataclass(frozen=True) above it", name=shown(cls))
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined] # the standard library's own, but untyped
        raise DomainRefused(f"{described(cls)} is not frozen; make it @dataclass(frozen=True)", name=described(cls))


def without_new_types(hint: object) -> object:
    """The type that a `NewType` is made of; any other annotation as it is."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return hint


def _class_codec(cls: type) -> Codec:
    """The codec of a dataclass, from the cache."""
    codec = _codecs.get(cls)
    if codec is None:
        _codecs[cls] = _late_bound(cls)  # what a class that contains itself meets on the way
        try:
            codec = _codecs[cls] = _build(cls)
        except BaseException:
            del _codecs[cls]
            raise
    return codec


def _late_bound(cls: type) -> Codec:
    def encode(value: object) -> str:
        return _codecs[cls].encode(value)

    def decode(value: object) -> object:
        return _codecs[cls].decode(value)

    return Codec(encode, decode)


def _build(cls: type) -> Codec:
    try:
        hints = get_type_hints(cls)
    except Exception as error:  # an annotation may be any expression
        raise DomainRefused(f"the types of {described(cls)} cannot be resolved: {error}", name=described(cls)) from None
    fields = dataclasses.fields(cls)
    hidden = [field.name for field in fields if not field.init]
    if hidden:
        raise DomainRefused(f"field {hidden[0]} of {described(cls)} has init=False and could not be restored", name=hidden[0])
    codecs = [_hinted(hints[field.name], f"field {field.name} of {described(cls)}") for field in fields]
    names = [field.name for field in fields]
    return Codec(
        object_encoder(cls, names, [codec.encode for codec in codecs]),
        object_decoder(cls, fields, [codec.decode for codec in codecs], tuple(codec.same for codec in codecs)),
    )


def _hinted(hint: object, where: str) -> Codec:
    """The codec for a type annotation."""
    hint = without_new_types(hint)
    if hint in VALUES:
        return VALUES[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    codec: Codec | None = None
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        codec = optional_codec(_hinted(arguments[arguments[0] is type(None)], where))
    elif origin is list:
        codec = list_codec(_hinted(arguments[0], where))
    elif origin is tuple:
        repeated = len(arguments) == 2 and arguments[1] is Ellipsis
        codec = tuple_codec([_hinted(each, where) for each in (arguments[:1] if repeated else arguments)], repeated=repeated)
    elif origin is dict:
        key = _hinted(arguments[0], where)
        codec = dict_codec(key, _hinted(arguments[1], where)) if key.textual else None
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        codec = enum_codec(hint)
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        check_dataclass(hint)
        codec = _class_codec(hint)
    if codec is None:
        raise DomainRefused(f"{where} has type {hint}; allowed are {_ALLOWED}", name=where)
    return codec
