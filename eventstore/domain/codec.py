"""Dataclasses as JSON: the payloads of commands and events, and the states of projections.

A codec is built once per class, from the types of its fields. Encoding is one format string over all fields, decoding one
look-up of all names at once, and where JSON holds all values as they are, one comparison of their types; only if something does
not fit are the fields looked at one by one, to name the one that does not. An event of three fields takes about a microsecond
each way.

A field that a payload lacks takes its default, if it has one: that is how a field is added. A name that the class does
not know is refused, for it would be lost without a word.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
from collections.abc import Callable, Iterable
from operator import attrgetter, call, itemgetter
from typing import Final, Generic, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from eventstore.domain.containers import dict_codec, list_codec, optional_codec, tuple_codec
from eventstore.domain.misfit import Misfit, expected
from eventstore.domain.values import VALUES, Codec, Decode, Encode, enum_codec, quote
from eventstore.errors import DomainRefused, EventStoreError, PayloadInvalid
from eventstore.fields import shown

T = TypeVar("T")
_ABSENT: Final = object()
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
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise DomainRefused(f"{shown(cls)} is no dataclass; put @dataclass(frozen=True) above it", name=shown(cls))
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined] # the standard library's own, but untyped
        raise DomainRefused(f"{described(cls)} is not frozen; make it @dataclass(frozen=True)", name=described(cls))


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
        _object_encoder(cls, names, [codec.encode for codec in codecs]),
        _object_decoder(cls, fields, [codec.decode for codec in codecs], tuple(codec.same for codec in codecs)),
    )


def _hinted(hint: object, where: str) -> Codec:
    """The codec for a type annotation."""
    while hasattr(hint, "__supertype__"):  # NewType
        hint = hint.__supertype__
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


def _object_encoder(cls: type, names: list[str], encoders: list[Encode]) -> Encode:
    template = "{" + ",".join(f"{quote(name)}:%s" for name in names) + "}"
    get: Callable[[object], tuple[object, ...]] = _all_of(attrgetter, names)

    def encode(value: object) -> str:
        if type(value) is not cls:
            raise expected(f"a {cls.__name__}", value)
        values = get(value)
        try:
            return template % tuple(map(call, encoders, values))  # a third faster than a comprehension
        except Misfit:
            raise _blamed(names, encoders, values) from None

    return encode


def _object_decoder(
    cls: type, fields: tuple[dataclasses.Field[object], ...], decoders: list[Decode], same: tuple[type | None, ...]
) -> Decode:
    names = [field.name for field in fields]
    count, get = len(names), _all_of(itemgetter, names)
    keywords = any(field.kw_only for field in fields)

    def decode(parsed: object) -> object:
        if type(parsed) is not dict:
            raise expected("an object", parsed)
        try:
            values = get(parsed)
        except KeyError:
            return _with_defaults(cls, fields, decoders, parsed)
        if len(parsed) != count:
            raise _unknown(names, parsed)
        try:
            if keywords:
                return cls(**dict(zip(names, map(call, decoders, values), strict=True)))
            if tuple(map(type, values)) == same:  # a third of what the decoders take
                return cls(*values)
            return cls(*map(call, decoders, values))
        except Misfit:
            raise _blamed(names, decoders, values) from None
        except Exception as error:
            raise _refused_by_class(error) from None

    return decode


def _with_defaults(
    cls: type, fields: tuple[dataclasses.Field[object], ...], decoders: list[Decode], parsed: dict[str, object]
) -> object:
    names = [field.name for field in fields]
    if not parsed.keys() <= set(names):
        raise _unknown(names, parsed)
    given: dict[str, object] = {}
    for field, decode in zip(fields, decoders, strict=True):
        value = parsed.get(field.name, _ABSENT)
        if value is not _ABSENT:
            try:
                given[field.name] = decode(value)
            except Misfit as misfit:
                raise misfit.within(field.name) from None
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise Misfit("is missing", field.name)
    try:
        return cls(**given)
    except Exception as error:
        raise _refused_by_class(error) from None


def _refused_by_class(error: Exception) -> Exception:
    """What a class's own check (`__post_init__`) raised."""
    if isinstance(error, EventStoreError):
        return error
    return Misfit(f"it is refused: {type(error).__name__}: {error!s:.200}")


def _unknown(names: list[str], parsed: dict[str, object]) -> Misfit:
    name = next(name for name in parsed if name not in names)
    return Misfit("is unknown to the class", shown(name)[1:-1])


def _blamed(names: list[str], codecs: Iterable[Callable[[object], object]], values: tuple[object, ...]) -> Misfit:
    """Which field it was; looked for only once something did not fit."""
    found = None
    for name, convert, value in zip(names, codecs, values, strict=True):
        try:
            convert(value)
        except Misfit as misfit:
            found = found or misfit.within(name)
    assert found is not None
    return found


def _all_of(getter: Callable[..., Callable[..., object]], names: list[str]) -> Callable[..., tuple[object, ...]]:
    """`getter` of several names gives a tuple; so does this for one or none."""
    if not names:
        return lambda _: ()
    get = getter(*names)
    return (lambda value: (get(value),)) if len(names) == 1 else cast("Callable[..., tuple[object, ...]]", get)
