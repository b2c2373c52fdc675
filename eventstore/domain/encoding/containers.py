"""Encodes containers as JSON: optional values, lists, tuples, dicts, with the codecs of their members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from eventstore.domain.encoding.field_mismatch import FieldMismatch, expected
from eventstore.domain.encoding.values import Codec, Decode, quote


def optional_codec(inner: Codec) -> Codec:
    """Returns the codec of X | None: the value, or null."""
    encode_inner, decode_inner = inner.encode, inner.decode

    def encode(value: object) -> str:
        return "null" if value is None else encode_inner(value)

    def decode(value: object) -> object:
        return None if value is None else decode_inner(value)

    read = inner.read
    return Codec(
        encode,
        decode,
        canonical=inner.canonical and f"(?:null|{inner.canonical})",
        read=read and (lambda text: None if text is None else read(text)),
    )


def list_codec(member: Codec) -> Codec:
    """Returns the codec of list[X]: an array."""
    encode_member, decode_member = member.encode, member.decode

    def encode(value: object) -> str:
        if type(value) is not list:
            raise expected("a list", value)
        return _array(value, [encode_member] * len(value))

    def decode(value: object) -> object:
        if type(value) is not list:
            raise expected("an array", value)
        return _members(value, [decode_member] * len(value))

    return Codec(encode, decode)


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

    return Codec(encode, decode)


def dict_codec(key: Codec, member: Codec) -> Codec:
    """Returns the codec of dict[K, X]: an object; the JSON of K is text."""

    def encode(value: object) -> str:
        if type(value) is not dict:
            raise expected("a dict", value)
        pieces = []
        for name, inner in value.items():
            try:
                pieces.append(f"{key.encode(name)}:{member.encode(inner)}")
            except FieldMismatch as mismatch:
                raise mismatch.within(f"[{name!r:.80}]") from None
        return f"{{{','.join(pieces)}}}"

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

    return Codec(encode, decode)


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
