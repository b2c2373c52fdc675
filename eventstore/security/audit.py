"""The audit trail: records of important actions and who did them, as events of an aggregate of the server's own, in a chain of
hashes.

Each record holds the SHA-256 of the record before it. Changing, removing or inserting a record breaks the chain at that place.
Somebody who can write to the files could write all later records again; anyone who noted the head of the chain before notices
that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import read_number, shown

AUDIT: Final = "$audit"
"""The aggregate; each shard of a cluster has its own."""
AUDITED: Final = "$Audited"
FIRST: Final = hashlib.sha256(b"").hexdigest()
"""What the first record holds instead of the hash of a record before it."""
_TEXT_CHARACTERS_MAX: Final = 200
_ROWS_MAX: Final = 10

Details = Mapping[str, str | int | bool | None]


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An action.

    Attributes:
        what: a login that was refused, a change of access, or a kind of request.
        who: the identity; empty: unknown.
        origin: address and name of the client.
        details: the values of the request, and what else belongs to it.
        id: of an action that is recorded once, though each process that leads a shard may note it; empty: it is noted once.
    """

    what: str
    who: str
    origin: str
    details: Details
    id: str = ""

    def encode(self, previous: str, time_us: int, access: str = "") -> bytes:
        """Returns the record with the hash of the record before it. `time_us`: when it was, in µs since 1970: the time of an
        event is outside its data, and so outside the chain. `access`: the digest of the access list then; empty: not known.
        """
        values = {
            "time": time_us,
            "what": self.what,
            "who": self.who,
            "origin": self.origin,
            "details": dict(self.details),
            "previous": previous,
            "access": access,
        }
        return json.dumps(values, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()


def details_of(request: object) -> dict[str, str | int | bool | None]:
    """Returns the values of a request as a record holds them: short, and no payloads."""
    assert is_dataclass(request), "requests are"
    return {each.name: _short(getattr(request, each.name)) for each in fields(request)}


def _short(value: object) -> str | int | bool | None:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, tuple):
        return ", ".join(str(each)[:_TEXT_CHARACTERS_MAX] for each in value[:_ROWS_MAX]) + (
            "…" if len(value) > _ROWS_MAX else ""
        )
    return str(value)[:_TEXT_CHARACTERS_MAX] if isinstance(value, str) else f"{type(value).__name__}"


def digest(data: bytes) -> str:
    """Returns the hash by which the next record names this one."""
    return hashlib.sha256(data).hexdigest()


def access_in(data: bytes) -> str:
    """Returns the digest of the access list that a record holds; empty: none."""
    try:
        return str(json.loads(data)["access"])
    except (ValueError, KeyError, TypeError, RecursionError):  # of an earlier program, or changed
        return ""


class BrokenChain(EventStoreError):
    """The records are not the ones that were written; names the first record that shows it. The files may be without damage."""

    def __init__(self, version: int, why: str) -> None:
        super().__init__(f"record {version} of the audit trail: {why}", version=version)


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain: the number of its records, and the hash of the last."""

    version: int
    hash: str

    def __str__(self) -> str:
        return f"{self.version}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Reads `VERSION:HASH`. Raises InvalidArgument."""
        number, _, found = text.partition(":")
        version = read_number(number)
        if not version or len(found) != len(FIRST) or not set(found) <= set("0123456789abcdef"):
            form = f"VERSION:HASH, with the {len(FIRST)} digits of 0-9 a-f that --verify prints"
            raise InvalidArgument(f"{shown(text)} is not {form}", field="head", value=shown(text))
        return cls(version, found)


def verified(records: Iterable[tuple[int, bytes]], known: Head | None = None) -> Iterator[tuple[Head, Mapping[str, Any]]]:
    """Yields the values of each record, given with its version, and the head of the chain up to it.

    `known`: a head that was noted before; it must be part of the chain.

    Raises:
        BrokenChain: the chain is broken, or never had this head.
    """
    previous, expected = FIRST, 1
    for version, data in records:
        try:
            values = json.loads(data)
            found = values["previous"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BrokenChain(version, "it is none of the server's") from None
        if version != expected or found != previous:
            raise BrokenChain(version, f"the chain is broken: it does not follow record {expected - 1} as that is now")
        previous, expected = digest(data), version + 1
        if known is not None and known.version == version and known.hash != previous:
            raise BrokenChain(version, "the chain is another one: it had another hash when that was noted")
        yield Head(version, previous), values
    if known is not None and known.version >= expected:
        raise BrokenChain(expected, f"it is missing: there are {expected - 1}, and were {known.version} when that was noted")
