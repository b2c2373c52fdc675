"""`SnapshotFile`: a snapshot as the bytes of a file: a prefix with a checksum, a head that says whose state it is, at which
event, made by which code, and the state. They vouch for themselves, because the file is not synced.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Final

from eventstore.checksum import crc32c
from eventstore.chunks.layout import FieldLayout
from eventstore.domain.encoding.codec import class_path
from eventstore.domain.snapshots.code_fingerprint import class_fingerprint
from eventstore.domain.snapshots.state_codec import read_state

MAGIC: Final = b"ESSNAP01"
PREFIX: Final = FieldLayout(("magic", "8s"), ("crc", "I"), ("head_bytes", "I"))
_CRC_FROM: Final = PREFIX["crc"].end


class DamagedError(Exception):
    """The bytes are not those of a whole snapshot."""


class OutdatedError(Exception):
    """The snapshot was made by other code."""


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """What a snapshot says about itself.

    Attributes:
        store: uuid of the store.
        aggregate: its id.
        kind: the class of the aggregate, with its module.
        code: fingerprint of this class.
        version: of the last event that the state has.
        event: the identity of this event, see `event_identity`.
        classes: those that the state has values of, each with its fingerprint.
    """

    store: str
    aggregate: str
    kind: str
    code: str
    version: int
    event: str
    classes: list[list[str]]


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A snapshot as it was read: its state is still JSON."""

    head: SnapshotHead
    state: bytes

    def encode(self) -> bytes:
        head = json.dumps(asdict(self.head), separators=(",", ":")).encode()
        rest = b"".join((len(head).to_bytes(4, "little"), head, self.state))
        return MAGIC + crc32c(rest).to_bytes(4, "little") + rest

    @classmethod
    def decode(cls, raw: bytes) -> SnapshotFile:
        """Raises DamagedError."""
        if len(raw) < PREFIX.size:
            raise DamagedError(f"it has {len(raw)} bytes")
        magic, crc, head_bytes = PREFIX.struct.unpack_from(raw)
        if magic != MAGIC or crc32c(memoryview(raw)[_CRC_FROM:]) != crc:
            raise DamagedError("its checksum does not match")
        begin = PREFIX.size
        try:
            head = SnapshotHead(**json.loads(raw[begin : begin + head_bytes]))
        except (TypeError, ValueError) as error:  # of another version of this program
            raise DamagedError(f"its head cannot be read: {error}") from None
        return cls(head, raw[begin + head_bytes :])

    def values(self) -> dict[str, object]:
        """Returns the state.

        Raises:
            OutdatedError: a class that it has values of is gone, or has another fingerprint.
            DamagedError: it does not match these classes.
        """
        classes = [_found(path, fingerprint) for path, fingerprint in self.head.classes]
        try:
            return read_state(self.state, classes)
        except ValueError as error:
            raise DamagedError(str(error)) from None


def named_classes(classes: list[type]) -> list[list[str]]:
    """Returns the classes as a head has them. Raises ValueError: one cannot be found by its name, as one made in a function."""
    named = [[class_path(each), class_fingerprint(each)] for each in classes]
    for cls, (path, _) in zip(classes, named, strict=True):
        if _by_path(path) is not cls:
            raise ValueError(f"has a value of class {path}, which is not found by this name")
    return named


def _found(path: str, fingerprint: str) -> type:
    cls = _by_path(path)
    if cls is None or class_fingerprint(cls) != fingerprint:
        raise OutdatedError(path)
    return cls


def _by_path(path: str) -> type | None:
    """Returns the class of this name, which some loaded module has. Imports nothing."""
    words = path.split(".")
    for length in range(len(words) - 1, 0, -1):
        found: object = sys.modules.get(".".join(words[:length]))
        if found is not None:
            for word in words[length:]:
                found = getattr(found, word, None)
            return found if isinstance(found, type) else None
    return None
