"""The master keys, under which the keys of subjects are encrypted in their files. They are in a file of the operator's, in no
data folder and no backup: who has the one without the other reads nothing.

The file has a key a line, 64 hexadecimal digits each; `#` begins a comment. The first one encrypts; the others only decrypt, so
a new one is put in front of the old one, and the old one is removed after the next start.
"""

from __future__ import annotations

import os
import re
import stat
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eventstore.errors import Corrupt, FolderRefused
from eventstore.sealing import SECRET_BYTES, aead

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_FILE_BYTES_MAX: Final = 64 * 1024


class MasterKeys:
    """Encrypts secrets by the first key, and decrypts those of any. `several`: there are old ones, too."""

    def __init__(self, keys: list[bytes]) -> None:
        """Raises InvalidArgument: the library is missing."""
        self._aeads: dict[bytes, AESGCM] = {blake2b(key, digest_size=_ID_BYTES).digest(): aead(key) for key in keys}
        self._first = next(iter(self._aeads))
        self.several = len(self._aeads) > 1

    def wrapped(self, subject: str, secret: bytes) -> str:
        """Returns the secret of a subject, encrypted, in hexadecimal digits."""
        nonce = os.urandom(_NONCE_BYTES)
        return (self._first + nonce + self._aeads[self._first].encrypt(nonce, secret, subject.encode())).hex()

    def unwrapped(self, path: Path, subject: str, wrapped: str) -> bytes:
        """Returns the secret. Raises Corrupt: `path` has been changed, or no master key is the one that it needs."""
        try:
            raw = bytes.fromhex(wrapped)
            key, nonce, sealed = raw[:_ID_BYTES], raw[_ID_BYTES : _ID_BYTES + _NONCE_BYTES], raw[_ID_BYTES + _NONCE_BYTES :]
            if key not in self._aeads:
                raise ValueError(f"it is encrypted under master key {key.hex()}, which is not in the file of master keys")
            secret = bytes(self._aeads[key].decrypt(nonce, sealed, subject.encode()))
        except Exception as error:  # the library's own has no message
            what = f"the key of subject {subject!r} cannot be decrypted: {error or type(error).__name__}"
            raise Corrupt(str(path), 0, what) from None
        if len(secret) != SECRET_BYTES:
            raise Corrupt(str(path), 0, f"the key of subject {subject!r} has {len(secret)} bytes, not {SECRET_BYTES}")
        return secret

    def is_old(self, wrapped: str) -> bool:
        """Whether it is encrypted under another key than the first."""
        return not wrapped.startswith(self._first.hex())


def read_master_keys(path: Path) -> MasterKeys:
    """Returns the keys in the operator's file.

    Raises:
        FolderRefused: it cannot be read, has no key, or others may read it.
        InvalidArgument: the library is missing.
    """
    try:
        with open(path, encoding="ascii") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & stat.S_IRWXO:
                raise FolderRefused(str(path), "everyone may read the master keys in it; run chmod o= on it")
            text = file.read(_FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise FolderRefused(str(path), f"the file of master keys cannot be read: {error}") from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    keys = [line for line in lines if line]
    for number, line in enumerate(lines, 1):
        if line and not _KEY.fullmatch(line):
            raise FolderRefused(
                str(path), f"line {number} is not a key of 64 hexadecimal digits; make one with openssl rand -hex 32"
            )
    if not keys:
        raise FolderRefused(str(path), "it has no key; make one with openssl rand -hex 32")
    return MasterKeys([bytes.fromhex(key) for key in keys])
