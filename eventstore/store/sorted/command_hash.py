"""The hash by which an index finds command ids and tags: keyed, so that a client cannot choose many ids that share one.

All candidates of one hash are read to find a repeated command. Indexes that an older program wrote have no key: they join two
CRCs, which are linear, so any number of ids that share one can be computed. A hit is always verified against the record, so a
hash never decides anything.

Each index carries the key of its hashes. A new index takes the key of the store's other indexes; the first index draws it. So
nothing else has to be kept with them, and a store has one key, or two if an older program wrote some of its indexes.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable
from hashlib import blake2s
from typing import Final

from eventstore.arrays import np, npt
from eventstore.checksum import crc32c

KEY_BYTES: Final = 16
NO_KEY: Final = b""
HASH_BYTES: Final = 8
TAG_HASH_BYTES: Final = 4

CommandHash = Callable[[bytes], bytes]
"""Returns the 8 bytes of a command id's hash, as they are in the index."""


def new_key() -> bytes:
    """Returns a key for the indexes of a store that has none with a key yet."""
    return secrets.token_bytes(KEY_BYTES)


def hash_with(key: bytes) -> CommandHash:
    """Returns the hash with this key. BLAKE2s costs as much as the two CRCs for ids of up to 64 bytes (ADR 11)."""
    if not key:
        return _unkeyed
    begin = blake2s(key=key, digest_size=HASH_BYTES).copy  # 0.40 us a hash; 0.60 with the key given each time

    def keyed(command_id: bytes) -> bytes:
        state = begin()
        state.update(command_id)
        return state.digest()

    return keyed


def _unkeyed(command_id: bytes) -> bytes:
    return (crc32c(command_id) << 32 | zlib.crc32(command_id)).to_bytes(HASH_BYTES, "little")


def hash_all(hash_of: CommandHash, command_ids: list[bytes]) -> npt.NDArray[np.uint64]:
    """Returns the column of hashes of these ids."""
    return np.frombuffer(b"".join(map(hash_of, command_ids)), "<u8")


def tag_hash(hash_of: CommandHash, tag: str) -> int:
    """Returns the hash of a tag, as it is in the index: the lower half of the hash of a command id."""
    return int.from_bytes(hash_of(tag.encode())[:TAG_HASH_BYTES], "little")


class StoreHashes:
    """The hashes of all indexes of a store that were opened: usually one. Any thread may add a key, and read `all`."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, CommandHash] = {}
        self.all: tuple[CommandHash, ...] = ()

    def add(self, key: bytes) -> None:
        """Adds the key of an index; on return `all` holds its hash. Call it before any hash of the index is used."""
        if self._by_key.setdefault(key, hash_with(key)) not in self.all:
            self.all = tuple(self._by_key.values())
