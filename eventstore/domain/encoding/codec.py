"""Encodes dataclasses as JSON: the payloads of commands and events, and the states of projections.

A codec is built once per class, from the types of its fields (see `objects`). Encoding or decoding an event of three fields
takes about a microsecond.

A field that is missing in a payload gets its default, if it has one: that is how fields are added. An unknown name is refused,
because its value would be lost silently.

What was written is read back as it was. Where that does not follow from the types of fields, `PayloadCodec.written` reads it
at once: the first instance of each class, those with lists or dicts, which their owner may change later, with values that
are read back in another form, and of classes that run code when they are created.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
from collections.abc import Callable
from itertools import count
from typing import Final, Generic, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from eventstore.domain.encoding.annotations import (
    EndlessError,
    InstanceContents,
    made_up,
    refusing_parameters,
    without_new_types,
)
from eventstore.domain.encoding.canonical import canonical_decoder, equal_matcher
from eventstore.domain.encoding.containers import dict_codec, list_codec, optional_codec, tuple_codec
from eventstore.domain.encoding.field_mismatch import FieldMismatch, expected
from eventstore.domain.encoding.objects import object_decoder, object_encoder, object_exact
from eventstore.domain.encoding.subclasses import LENIENT_VALUES
from eventstore.domain.encoding.values import VALUES, Codec, Exact, enum_codec
from eventstore.domain.initial_state import is_mutable
from eventstore.errors import DomainRefused, EventStoreError, PayloadInvalid
from eventstore.failures import text_of
from eventstore.fields import shown

T = TypeVar("T")
_ALLOWED: Final = (
    "str, int, float, bool, None, bytes, datetime, date, Decimal, UUID, enums of text or whole numbers, frozen dataclasses, "
    "X | None, list[X], tuple[X, ...], tuple[X, Y], dict[str, X]"
)
_MADE_UP_FROM: Final = (3, 1, -20)
"""Made-up values begin with these numbers: a class may refuse some of them."""
_UNWRITABLE: Final = (FieldMismatch, ValueError, RecursionError, AttributeError)
"""What encoders raise, also for text that is not UTF-8, numbers with thousands of digits, cycles, fields that were not set."""

_codecs: dict[type, Codec] = {}
_lenient_codecs: dict[type, Codec] = {}
"""They also encode values of subclasses of the declared types (see `subclasses`)."""


def class_path(cls: type) -> str:
    """Returns module and name of a class, for messages."""
    return f"{cls.__module__}.{cls.__qualname__}"


class PayloadCodec(Generic[T]):
    """Encodes and decodes instances of one frozen dataclass. `what` and `name` identify it in errors, as in: event 'Opened'.

    Raises:
        DomainRefused: the class is not a frozen dataclass, or a field has a type that JSON cannot hold.
    """

    def __init__(self, cls: type[T], name: str, what: str) -> None:
        check_dataclass(cls)
        self.cls = cls
        self.name = name
        self._what = f"{what} {name!r}"
        codec = _class_codec(cls)
        self._encode, self._decode = codec.encode, cast("Callable[[object], T]", codec.decode)
        self._encode_equal = codec.comparing.encode
        self.decode_canonical = cast("Callable[[bytes], T | None]", codec.decode_canonical or _not_canonical)
        """As `decode`, of what `encode` returns; None if these bytes are something else, or that is not known."""
        self.is_equal = codec.is_equal
        """Returns whether what `decode_canonical` has decoded is what `encode_equal` returns; None: it always is."""
        self.exact = codec.exact
        """Returns whether reading an instance would give one of the same types and digits; None: it always does."""
        contents = InstanceContents(cls)
        self._runs_code = contents.runs_code
        self._rebuilds = contents.runs_code or contents.mutable
        self._proves = True
        self._kept: Exact | None = _never
        """Returns whether an instance is certain to be what is read back; None: it always is."""

    def encode(self, value: T) -> bytes:
        """Returns the JSON of `value`: fields in order, no white space, UTF-8.

        Raises:
            PayloadInvalid: the value of a field does not match its type.
        """
        try:
            return self._encode(value).encode()
        except _UNWRITABLE as error:
            return self._of_subclasses(value, error)

    def _of_subclasses(self, value: T, error: Exception) -> bytes:
        """Returns the JSON of an instance that has values of subclasses of the declared types, and was refused for it.

        Raises:
            PayloadInvalid: something else is wrong.
        """
        try:
            return _class_codec(self.cls, lenient=True).encode(value).encode()
        except _UNWRITABLE as lenient:
            raise self._unwritable(lenient if isinstance(error, FieldMismatch) else error) from None

    def encode_equal(self, value: T) -> bytes:
        """As `encode`, with the same JSON for all equal values: the names of a dict in order, times in UTC, a Decimal without
        zeros at its end, 0.0 for -0.0.
        """
        try:
            return self._encode_equal(value).encode()
        except _UNWRITABLE as error:
            raise self._unwritable(error) from None

    def written(self, value: T) -> tuple[bytes, T]:
        """Returns the JSON of `value`, and the value that is read from it: `value` itself if that is certain to be the same.

        Raises:
            PayloadInvalid: the value of a field does not match its type, or would be read back as another one, or not at all.
        """
        try:
            data = self._encode(value).encode()  # as `encode`: each event passes through here
            if self._kept is None or self._kept(value):
                return data, value
        except _UNWRITABLE as error:
            data = self._of_subclasses(value, error)
        return data, self._read_back(data)

    def proven(self, value: T) -> bytes:
        """Returns the JSON of `value`. Raises as `written`."""
        try:
            data = self._encode(value).encode()  # as `encode`: each command that is sent passes through here
        except _UNWRITABLE as error:
            data = self._of_subclasses(value, error)
        if self._proves:
            self._read_back(data)
        return data

    def check(self) -> None:
        """Writes and reads made-up instances, unless the class refuses them.

        Raises:
            DomainRefused: one is read back as another, or has a value that cannot be written.
        """
        for start in _MADE_UP_FROM:
            try:
                made = self._decode(made_up(self.cls, count(start)))
            except (EndlessError, FieldMismatch, EventStoreError):
                continue
            try:
                data = self.encode(made)
            except PayloadInvalid as error:
                raise DomainRefused(
                    f"{error.message}; its __init__ or __post_init__ makes it so, also of an instance that is read: "
                    "none could be stored",
                    name=class_path(self.cls),
                    field=error.fields.get("field"),
                ) from None
            try:
                self._prove(data, self._read(data))
            except PayloadInvalid as error:
                raise DomainRefused(error.message, name=class_path(self.cls), field=error.fields.get("field")) from None

    def _read_back(self, data: bytes) -> T:
        again = self._read(data)
        if self._proves:
            self._prove(data, again)
            self._proves = self._runs_code
            self._kept = _never if self._rebuilds else self.exact
        return again

    def _read(self, data: bytes) -> T:
        """As `decode`, of what was just written."""
        try:
            return self.decode(data)
        except EventStoreError as error:
            raise PayloadInvalid(
                f"{self._what} can be written, but not be read back: {text_of(error)}", type=self.name, field=None
            ) from None

    def _prove(self, data: bytes, again: T) -> None:
        """Raises PayloadInvalid unless writing what was read gives the same data."""
        try:
            found = self.encode(again)
        except PayloadInvalid as error:
            raise PayloadInvalid(f"{self._what} is read back as another: {error.message}", **error.fields) from None
        if found == data:
            return
        one, other = self.parse(data), self.parse(found)
        field = next(name for name in one if one[name] != other[name])
        raise PayloadInvalid(
            f"{self._what} of class {class_path(self.cls)} is read back as another: field {field} is written as "
            f"{shown(one[field])}, and after reading as {shown(other[field])}; its __init__ or __post_init__ must not change "
            "the values of an instance that is read: do that in a classmethod",
            type=self.name,
            field=field,
        )

    def _unwritable(self, error: Exception) -> PayloadInvalid:
        if isinstance(error, FieldMismatch):
            return self._invalid(error)
        return self._invalid(FieldMismatch(f"cannot be written as JSON: {error}"))

    def decode(self, data: bytes) -> T:
        """Returns the instance encoded in `data`.

        Raises:
            PayloadInvalid: it is not a JSON object, or does not match the class.
        """
        found = self.decode_canonical(data)
        return self.decode_parsed(data) if found is None else found

    def decode_parsed(self, data: bytes) -> T:
        """As `decode`, for data that `decode_canonical` has returned None for."""
        try:
            text = data.decode()
            parsed, end = _scan(text, 0)
            if end == len(text):
                return self._decode(parsed)
        except (FieldMismatch, ValueError, RecursionError, StopIteration):
            pass
        return self.build(self.parse(data))  # accepts white space around it, or reports the error

    def parse(self, data: bytes) -> dict[str, object]:
        """Parses the JSON object in `data`."""
        try:
            parsed = _decoder.decode(data.decode())
        except (ValueError, RecursionError) as error:
            raise self._invalid(FieldMismatch(f"{shown(data)} is not JSON: {error}")) from None
        if type(parsed) is not dict:
            raise self._invalid(expected("an object", parsed))
        return parsed

    def build(self, parsed: dict[str, object]) -> T:
        """Returns the instance with these fields."""
        try:
            return self._decode(parsed)
        except FieldMismatch as mismatch:
            raise self._invalid(mismatch) from None
        except (ValueError, RecursionError) as error:
            raise self._invalid(FieldMismatch(f"cannot be read: {error}")) from None

    def _invalid(self, mismatch: FieldMismatch) -> PayloadInvalid:
        where = f"field {mismatch.field} {mismatch.why}" if mismatch.field else mismatch.why
        return PayloadInvalid(
            f"{self._what} does not match class {class_path(self.cls)}: {where}", type=self.name, field=mismatch.field or None
        )


def _not_canonical(data: bytes) -> None:
    """Nothing is known of what a class encodes."""


def _never(value: object) -> bool:
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_scan = cast("Callable[[str, int], tuple[object, int]]", _decoder.scan_once)  # type: ignore[attr-defined] # missing in the stubs


def check_dataclass(cls: type) -> None:
    """Raises DomainRefused unless `cls` is a frozen dataclass."""
    if isinstance(cls, types.FunctionType):  # a decorator without parentheses gets the function
        raise DomainRefused(
            f"{cls.__qualname__} is a function; its decorator needs the event class as argument, as in @applies(Deposited)",
            name=cls.__qualname__,
        )
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise DomainRefused(
            f"{shown(cls)} is not a dataclass; put @dataclass(frozen=True) directly above it, below @event and @command",
            name=shown(cls),
        )
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined] # typed as a plain class
        raise DomainRefused(f"{class_path(cls)} is not frozen; make it @dataclass(frozen=True)", name=class_path(cls))


def _class_codec(cls: type, *, lenient: bool = False) -> Codec:
    """Returns the cached codec of a dataclass, or builds it."""
    codecs = _lenient_codecs if lenient else _codecs
    codec = codecs.get(cls)
    if codec is None:
        codecs[cls] = _late_bound(cls, codecs)  # used by a class that contains itself
        try:
            codec = codecs[cls] = _build(cls, lenient)
        except BaseException:
            del codecs[cls]
            raise
    return codec


def _late_bound(cls: type, codecs: dict[type, Codec]) -> Codec:
    def encode(value: object) -> str:
        return codecs[cls].encode(value)

    def decode(value: object) -> object:
        return codecs[cls].decode(value)

    def exact(value: object) -> bool:
        found = codecs[cls].exact
        return found is None or found(value)

    def encode_equal(value: object) -> str:
        return codecs[cls].comparing.encode(value)

    return Codec(encode, decode, exact=exact, encode_equal=encode_equal)


def _build(cls: type, lenient: bool) -> Codec:
    try:
        hints = get_type_hints(cls)
    except Exception as error:  # an annotation may be any expression
        raise DomainRefused(
            f"the annotations of {class_path(cls)} cannot be resolved: {error}; import these types in its module",
            name=class_path(cls),
        ) from None
    fields = dataclasses.fields(cls)
    hidden = [field.name for field in fields if not field.init]
    if hidden:
        raise DomainRefused(
            f"field {hidden[0]} of {class_path(cls)} has init=False and cannot be restored; remove init=False", name=hidden[0]
        )
    shared = [field.name for field in fields if is_mutable(field.default)]
    if shared:
        raise DomainRefused(
            f"field {shared[0]} of {class_path(cls)} has a default with a list or dict in it, which all instances would share; "
            "create it in a default_factory",
            name=shared[0],
        )
    why = refusing_parameters(cls)
    if why is not None:
        raise DomainRefused(
            f"{class_path(cls)} can be written, but not be read back: {why}; keep what it needs in fields, and let a "
            "classmethod create it from anything else",
            name=class_path(cls),
        )
    codecs = [_hinted(hints[field.name], f"field {field.name} of {class_path(cls)}", lenient) for field in fields]
    names = [field.name for field in fields]
    encode_equal = None
    if any(codec.encode_equal for codec in codecs):
        encode_equal = object_encoder(cls, names, [codec.comparing.encode for codec in codecs])
    return Codec(
        object_encoder(cls, names, [codec.encode for codec in codecs]),
        object_decoder(cls, fields, [codec.decode for codec in codecs], tuple(codec.json_type for codec in codecs)),
        decode_canonical=canonical_decoder(cls, fields, codecs),
        exact=object_exact(cls, names, [codec.exact for codec in codecs]),
        encode_equal=encode_equal,
        is_equal=equal_matcher(fields, codecs),
    )


def _hinted(hint: object, where: str, lenient: bool) -> Codec:
    """Returns the codec for a type annotation."""
    hint = without_new_types(hint)
    if hint in VALUES:
        return LENIENT_VALUES[hint] if lenient else VALUES[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    codec: Codec | None = None
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        codec = optional_codec(_hinted(arguments[arguments[0] is type(None)], where, lenient))
    elif origin is list:
        codec = list_codec(_hinted(arguments[0], where, lenient))
    elif origin is tuple:
        repeated = len(arguments) == 2 and arguments[1] is Ellipsis
        codec = tuple_codec(
            [_hinted(each, where, lenient) for each in (arguments[:1] if repeated else arguments)], repeated=repeated
        )
    elif origin is dict:
        key = _hinted(arguments[0], where, lenient)
        codec = dict_codec(key, _hinted(arguments[1], where, lenient)) if key.textual else None
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        codec = enum_codec(hint)
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        check_dataclass(hint)
        codec = _class_codec(hint, lenient=lenient)
    if codec is None:
        raise DomainRefused(f"{where} has type {hint}, which JSON cannot hold; allowed are {_ALLOWED}", name=where)
    return codec
