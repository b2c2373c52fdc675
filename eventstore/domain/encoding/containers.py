"""Encodes containers as JSON: optional values, lists, tuples, dicts, with the codecs of their members."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from operator import call

from eventstore.domain.encoding.field_mismatch import FieldMismatch, expected
from eventstore.domain.encoding.values import Codec, Decode, quote


def optional_codec(inner: Codec) -> Codec:
    """Returns the codec of X | None: the value, or null."""
    encode_inner, decode_inner, exact_inner = inner.encode, inner.decode, inner.exact

    def encode(value: object) -> str:
        return "null" if value is None else encode_inner(value)

    def decode(value: object) -> object:
        return None if value is None else decode_inner(value)

    read = inner.read
    comparing = optional_codec(inner.comparing) if inner.encode_equal else None
    return Codec(
        encode,
        decode,
        canonical=inner.canonical and f"(?:null|{inner.canonical})",
        read=read and (lambda text: None if text is None else read(text)),
        exact=exact_inner and (lambda value: value is None or exact_inner(value)),
        encode_equal=comparing and comparing.encode,
        canonical_equal=comparing and comparing.canonical,
    )


def list_codec(member: Codec) -> Codec:
    """Returns the codec of list[X]: an array."""
    encode_member, decode_member, exact_member = member.encode, member.decode, member.exact

    def encode(value: object) -> str:
        if type(value) is not list:
            raise expected("a list", value)
        return _array(value, [encode_member] * len(value))

    def decode(value: object) -> object:
        if type(value) is not list:
            raise expected("an array", value)
        return _members(value, [decode_member] * len(value))

    return Codec(
        encode,
        decode,
        exact=exact_member and (lambda value: type(value) is list and all(map(exact_member, value))),
        encode_equal=member.encode_equal and list_codec(member.comparing).encode,
    )


def tuple_codec(members: Sequence[Codec], *, repeated: bool) -> Codec:
    """Returns the codec of tuple[X, Y], an array of that length; if `repeated`, of tuple[X, ...], an array of any length."""
    encoders = [member.encode for member in members]
    decoders = [member.decode for member in members]

    def encode(value: object) -> str:
        if type(value) is not tuple:
            raise expected("a tuple", value)
        if not repeated and len(value) != len(encoders):
            raise expected(f"{len(encoders)} members", value)
        return _array(value, encoders * len(value) if repeated else encoders)

    def decode(value: object) -> object:
        if type(value) is not list or (not repeated and len(value) != len(decoders)):
            raise expected("an array" if repeated else f"an array of {len(decoders)}", value)
        return tuple(_members(value, decoders * len(value) if repeated else decoders))

    exacts = [member.exact or _always for member in members]

    def exact(value: object) -> bool:
        return type(value) is tuple and all(map(call, exacts * len(value) if repeated else exacts, value))

    encode_equal = None
    if any(member.encode_equal for member in members):
        encode_equal = tuple_codec([member.comparing for member in members], repeated=repeated).encode
    return Codec(encode, decode, exact=exact if any(member.exact for member in members) else None, encode_equal=encode_equal)


def dict_codec(key: Codec, member: Codec, *, in_order: bool = False) -> Codec:
    """Returns the codec of dict[K, X]: an object; the JSON of K is text. `in_order`: members are sorted by their JSON, so
    that equal dicts have one text.
    """

    def encode(value: object) -> str:
        if type(value) is not dict:
            raise expected("a dict", value)
        pieces = []
        for name, inner in value.items():
            try:
                pieces.append(f"{key.encode(name)}:{member.encode(inner)}")
            except FieldMismatch as mismatch:
                raise mismatch.within(f"[{name!r:.80}]") from None
        if key.exact is not None:
            _check_distinct(value, key)
        return f"{{{','.join(sorted(pieces) if in_order else pieces)}}}"

    def decode(value: object) -> object:
        if type(value) is not dict:
            raise expected("an object", value)
        found: dict[object, object] = {}
        for name, inner in value.items():
            try:
                found[key.decode(name)] = member.decode(inner)
            except FieldMismatch as mismatch:
                raise mismatch.within(f"[{quote(name):.80}]") from None
        return found

    exact_key, exact_member = key.exact or _always, member.exact or _always

    def exact(value: object) -> bool:
        return type(value) is dict and all(map(exact_key, value)) and all(map(exact_member, value.values()))

    encode_equal = None if in_order else dict_codec(key.comparing, member.comparing, in_order=True).encode
    return Codec(encode, decode, exact=exact if key.exact or member.exact else None, encode_equal=encode_equal)


def _always(value: object) -> bool:
    return True


def _check_distinct(names: Iterable[object], key: Codec) -> None:
    """Raises FieldMismatch if two keys are read back as the same one: times of a zone when its clocks go back, for instance."""
    found: dict[object, object] = {}
    for name in names:
        first = found.setdefault(key.decode(json.loads(key.encode(name))), name)
        if first is not name:
            raise FieldMismatch(f"is one key with [{first!r:.80}] when it is read back", f"[{name!r:.80}]")


def _array(values: Iterable[object], encoders: Sequence[Callable[[object], str]]) -> str:
    pieces: list[str] = []
    try:
        for encode, value in zip(encoders, values, strict=True):
            pieces.append(encode(value))  # a loop, because the number of pieces is the index of the one that raises
    except FieldMismatch as mismatch:
        raise mismatch.within(f"[{len(pieces)}]") from None
    return f"[{','.join(pieces)}]"


def _members(values: Iterable[object], decoders: Sequence[Decode]) -> list[object]:
    found: list[object] = []
    try:
        for decode, value in zip(decoders, values, strict=True):
            found.append(decode(value))
    except FieldMismatch as mismatch:
        raise mismatch.within(f"[{len(found)}]") from None
    return found
